"""A decoder of characters, and its training. ``python -m benchmarks.forward_only.network`` trains.

The training saves its state every minute or so and goes on from there when it is started again.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.forward_only.text import LENGTH, VOCABULARY, batch, read, rows_of
from l0arm.files import replacing

WIDTH, LAYERS, HEADS, HIDDEN = 160, 4, 5, 640
ROWS, RATE, WARM_UP = 32, 3e-3, 50
SAVED_EVERY = 50


class Block(nn.Module):
    """Attention and an MLP, each with a norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_m = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, length = x.shape[:2]
        size = WIDTH // HEADS
        heads = self.qkv(self.norm_a(x)).view(rows, length, 3, -1, size).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
        return x + self.down(F.gelu(self.up(self.norm_m(x))))


class Decoder(nn.Module):
    """Predicts the next character. The last layer shares its weights with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if deep else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.characters(ids) + self.positions.weight[: ids.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.characters.weight)


def cost(model: nn.Module, ids: Tensor) -> Tensor:
    """The mean loss of every next character, in nats."""
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def bits_per_character(model: nn.Module, ids: Tensor, rows: int = 32) -> float:
    """The loss on some sequences, in bits."""
    losses = [cost(model, part).item() * len(part) for part in ids.split(rows)]
    return sum(losses) / len(ids) / math.log(2)


def train(steps: int, path: Path) -> Decoder:
    """The network of a finished training. An unfinished one goes on."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    text, test = read()
    generator, start = torch.Generator().manual_seed(0), 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["generator"])
        start = state["step"]
    began = time.process_time()
    for step in range(start, steps):
        factor = min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = RATE * factor
        loss = cost(model, batch(text, ROWS, generator))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % SAVED_EVERY == 0 or step + 1 == steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"generator": generator.get_state(), "step": step + 1}
            with replacing(path) as temporary:
                torch.save(state, temporary)
            spent = time.process_time() - began
            print(f"{step + 1}/{steps}: {loss.item() / math.log(2):.3f} bits, {spent:.0f} s CPU")
    if start < steps:
        print(f"held out: {bits_per_character(model.eval(), rows_of(test, 512)):.4f} bits")
    return model.eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--path", type=Path, default=Path("runs/forward-only/decoder.pt"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.path.parent.mkdir(parents=True, exist_ok=True)
    train(options.steps, options.path)
