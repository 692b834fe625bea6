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

WIDTH, LAYERS, HEADS, HIDDEN = 192, 6, 6, 768  # 2.66 M parameters without embeddings
ROWS, RATE, MATRIX_RATE, WARM_UP = 8, 3e-3, 0.02, 50
STEPS, SAVED_EVERY = 1000, 25


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
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    optimizers: dict[str, torch.optim.Optimizer] = {
        "matrices": torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01),
        "others": torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01),
    }
    texts = read()
    generator, start = torch.Generator().manual_seed(0), 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(state[name])
        generator.set_state(state["generator"])
        start = state["step"]
    began = time.process_time()
    for step in range(start, steps):
        factor = min(1.0, (step + 1) / WARM_UP) * (1 - 0.95 * step / steps)
        for optimizer, rate in zip(optimizers.values(), (MATRIX_RATE, RATE), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
        loss = cost(model, batch(texts.train, ROWS, generator))
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        if (step + 1) % SAVED_EVERY == 0 or step + 1 == steps:
            state = {"model": model.state_dict(), "step": step + 1}
            state |= {name: optimizer.state_dict() for name, optimizer in optimizers.items()}
            state["generator"] = generator.get_state()
            with replacing(path) as temporary:
                torch.save(state, temporary)
            spent = time.process_time() - began
            print(
                f"{step + 1}/{steps}: {loss.item() / math.log(2):.3f} bits, {spent:.0f} s CPU",
                flush=True,
            )
    if start < steps:
        held_out = rows_of(texts.validation, 512)
        print(f"held out: {bits_per_character(model.eval(), held_out):.4f} bits")
    return model.eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--path", type=Path, default=Path("runs/forward-only/decoder.pt"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.path.parent.mkdir(parents=True, exist_ok=True)
    train(options.steps, options.path)
