"""What every method sees: a frozen network, units with a price, and losses that are counted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

import l0arm
from benchmarks.forward_only.network import WIDTH, Decoder, cost
from benchmarks.forward_only.text import Texts, batch

ROWS = 2  # sequences of one evaluation


class Problem:
    """The decoder with gates on heads and MLP units, and the costs of these units.

    Attributes:
        spent: Forward-equivalents so far. A backward pass counts two.
        groups: The number of units of each group.
        price: Parameters of each unit, in one flat vector over all groups.
    """

    def __init__(self, model: Decoder, texts: Texts, plan: l0arm.Plan | None = None) -> None:
        warnings.simplefilter("ignore", l0arm.EmptyGroupWarning)
        self.model, self.texts = model.eval().requires_grad_(False), texts
        example = texts.train[:128].view(1, -1)
        self.plan = plan or l0arm.plan(self.model, example)
        # Straight-through needs the derivative in closed gates; values do not, and drop them.
        self.gated = l0arm.sparsify(
            self.model, self.plan, "l0", lam=0.0, estimator="disarm-slopes", initial=0.9
        )
        self.gated.eval()
        self.groups = {group.name: group.units for group in self.gated.groups}
        head = 4 * WIDTH * WIDTH // self.groups["blocks.0.qkv"]
        prices = {name: head if name.endswith("qkv") else 2 * WIDTH + 1 for name in self.groups}
        self.price = torch.cat(
            [torch.full((n,), float(prices[name])) for name, n in self.groups.items()]
        ).double()
        blocks = self.model.blocks.parameters()
        self.size = sum(p.numel() for p in (*blocks, *self.model.norm.parameters()))
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Start anew: a stream of batches of its own for each seed."""
        self.spent = 0
        self.generator = torch.Generator().manual_seed(1000 + seed)
        self.batch = batch(self.texts.train, ROWS, self.generator)

    def next_batch(self) -> None:
        """Evaluations from now on see other text."""
        self.batch = batch(self.texts.train, ROWS, self.generator)

    def room(self, left: float) -> float:
        """Parameters for units, if a share of all parameters but the embeddings is left."""
        return left * self.size - (self.size - float(self.price.sum()))

    def share(self, left: float) -> float:
        """The same as a share of the price of all units."""
        return self.room(left) / float(self.price.sum())

    def value(self, z: Tensor) -> float:
        """The loss by one forward pass. Closed units are not computed."""
        self.spent += 1
        with torch.no_grad(), self.gated.drawn(z.float(), writes=False):
            return cost(self.gated, self.batch).item()

    def of_masks(self, masks: Mapping[str, np.ndarray]) -> float:
        """The loss for masks by group."""
        return self.value(torch.from_numpy(np.concatenate([masks[name] for name in self.groups])))

    def differentiable(self, z: Tensor) -> Tensor:
        """The loss with its derivative in the gates: one forward pass, and one backward."""
        if not z.requires_grad or not torch.is_grad_enabled():
            return torch.tensor(self.value(z), dtype=z.dtype)
        self.spent += 3
        with self.gated.drawn(z.float(), writes=False):
            return cost(self.gated, self.batch).to(z.dtype)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector over all units, by group."""
        return dict(zip(self.groups, flat.split(list(self.groups.values())), strict=True))

    def kept(self, worth: Tensor, left: float) -> Tensor:
        """The units of most worth that fit, of exactly the size that is left."""
        keep, room = torch.zeros(len(worth)), self.room(left)
        for unit in worth.argsort(descending=True, stable=True).tolist():
            price = float(self.price[unit])
            if price <= room:
                keep[unit] = 1.0
                room -= price
        return keep

    def by_rank(self, scores: Tensor) -> Tensor:
        """The rank of each unit in its group, from 0 to 1: the same share of all groups stays."""
        parts = []
        for part in self.split(scores.double()).values():
            ranks = part.argsort(stable=True).argsort().double()
            parts.append((ranks + 0.5) / len(part))
        return torch.cat(parts)

    def cut(self, keep: Tensor) -> nn.Module:
        """The small network, compact, with its own weights."""
        gated = self.gated
        with torch.no_grad():
            gated.phi.copy_(torch.where(keep > 0, 8.0, -8.0))
        return gated.compact()

    def left(self, small: nn.Module) -> float:
        """The share of the parameters but the embeddings that a small network has."""
        kept = (*small.blocks.parameters(), *small.norm.parameters())  # type: ignore[union-attr]
        return sum(p.numel() for p in kept) / self.size


@torch.no_grad()
def activations(problem: Problem, batches: int) -> Tensor:
    """Activation times weight of each unit (as Wanda, for whole units): the norm of what it adds.

    ``sum over its inputs j of |x_j|^2 |W_j|^2``, square root. Forward passes only.
    """
    sums: dict[str, Tensor] = {}

    def watch(name: str, layer: nn.Linear) -> None:
        def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            squares = args[0].square().flatten(0, -2).mean(0) * layer.weight.square().sum(0)
            sums[name] = sums.get(name, torch.zeros(())) + squares

        handles.append(layer.register_forward_pre_hook(record))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for number, block in enumerate(problem.model.blocks):
        watch(f"blocks.{number}.qkv", block.out)  # type: ignore[arg-type,union-attr]
        watch(f"blocks.{number}.up", block.down)  # type: ignore[arg-type,union-attr]
    try:
        for _ in range(batches):
            problem.next_batch()
            problem.value(torch.ones(len(problem.price)))
    finally:
        for handle in handles:
            handle.remove()
    parts = [sums[name].view(units, -1).sum(1).sqrt() for name, units in problem.groups.items()]
    return torch.cat(parts)


def magnitudes(problem: Problem) -> Tensor:
    """The norm of all weights of each unit."""
    parts = []
    for block in problem.model.blocks:
        size = block.out.weight.shape[1] // problem.groups["blocks.0.qkv"]  # type: ignore[union-attr,operator,index]
        qkv = block.qkv.weight.square().sum(1).view(3, -1, size).sum((0, 2))  # type: ignore[union-attr,operator]
        out = block.out.weight.square().sum(0).view(-1, size).sum(1)  # type: ignore[union-attr,operator]
        up = block.up.weight.square().sum(1) + block.up.bias.square()  # type: ignore[union-attr,operator]
        parts += [qkv + out, up + block.down.weight.square().sum(0)]  # type: ignore[union-attr,operator]
    return torch.cat(parts).sqrt()


def taylor(problem: Problem, batches: int) -> Tensor:
    """|d loss / d gate| with all units open, the mean over batches. Needs backward passes."""
    total = torch.zeros(len(problem.price), dtype=torch.float64)
    for _ in range(batches):
        problem.next_batch()
        z = torch.ones(len(problem.price), dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(problem.differentiable(z), z)
        total += slope.abs()
    return total / batches
