"""Latency budgets from end to end: predicted against measured after the cut.

    python -m benchmarks.latency

A residual network and a transformer are pruned to shares of their measured time. Then the small
network is timed beside the dense one, in turns, on one thread.
"""

from __future__ import annotations

import copy
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm
from benchmarks.peers.networks import LanguageModel, ResNet20
from l0arm.costs import latency
from l0arm.pruning import Pruning

SHARES = ("60%", "40%")
STEPS, ROUNDS = 40, 31


def pruned(model: nn.Module, x: Tensor, y: Tensor, share: str, round_to: int) -> tuple[float, str]:
    """Prune on one batch, and compare times.

    Returns:
        The predicted share of the dense time, and the measured one with its quartiles.
    """
    dense = copy.deepcopy(model).eval()
    gated = l0arm.sparsify(model.train(), example_inputs=x, budget={"latency": share}, initial=0.95)
    gated.width_multiple = round_to
    optimizer = torch.optim.SGD(gated.model.parameters(), lr=1e-3)
    pruning = Pruning(gated, optimizer, STEPS)
    while pruning.stage != "done":
        optimizer.zero_grad()
        pruning.loss(lambda: F.cross_entropy(pruning.model(x).flatten(0, -2), y)).backward()
        optimizer.step()
    small = pruning.finish().eval()
    ((predicted, _, _),) = gated.budget.shares(gated.deterministic()).values()  # type: ignore[union-attr]
    ratios = []
    for _ in range(ROUNDS):
        times = latency({"dense": dense, "small": small}, x, rounds=3, calls=1)
        ratios.append(times["small"].median / times["dense"].median)
    ratios.sort()
    middle, low, high = median(ratios), ratios[len(ratios) // 4], ratios[-len(ratios) // 4]
    error = 100 * (predicted / middle - 1)
    return predicted, f"{100 * middle:.1f} [{100 * low:.1f}–{100 * high:.1f}] | {error:+.1f} %"


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
    text = torch.randint(97, (64, 65))
    print("| network | round_to | budget | predicted | measured, quartiles | error |")
    print("|---|---|---|---|---|---|")
    for round_to in (1, 8):
        for share in SHARES:
            rows = {
                "ResNet-20": (ResNet20(), images, labels),
                "transformer": (LanguageModel(), text[:, :-1], text[:, 1:].flatten()),
            }
            for name, (model, x, y) in rows.items():
                predicted, found = pruned(model, x, y, share, round_to)
                row = f"{name} | {round_to} | {share} | {100 * predicted:.1f} % | {found}"
                print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
