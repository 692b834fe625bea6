"""Noise of the estimates against the number of gates.

``python -m benchmarks.forward_only.variance`` measures it. The loss is the squared change of a
linear layer's output when its inputs are gated, relative to the output: a quadratic function of the
gates whose gradient is known. For each estimator, the table has the number of forward-equivalents
after which the squared error of the mean is as large as the squared gradient: total variance times
forward-equivalents of a step, over |gradient|^2.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from l0arm.contracts import Estimator
from l0arm.estimators import ARM, ARMS, DisARM, DisARMSlopes, DoubleCV, Reinforce, ReinforceLOO
from l0arm.files import write_text

GATES = (100, 1_000, 10_000, 100_000)
OUTPUTS, REPEATS, WARM_UP = 64, 400, 100
BLOCKS = 100
OPEN = 0.8
ESTIMATORS: dict[str, tuple[Callable[[], Estimator], int]] = {  # with forward-equivalents of a step
    "REINFORCE, moving average": (Reinforce, 1),
    "ARM": (ARM, 2),
    "DisARM": (DisARM, 2),
    "LOO, 4 draws": (lambda: ReinforceLOO(4), 4),
    "ARMS, 4 draws": (lambda: ARMS(4), 4),
    "DisARM with slopes": (DisARMSlopes, 4),
    "double-cv, 2 draws": (DoubleCV, 6),
}


def quadratic(gates: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The loss as a function of z, and the vectors that the units add to the output."""
    random = torch.Generator().manual_seed(0)
    sizes = torch.exp(torch.randn(gates, 1, generator=random))  # units differ in importance
    adds = sizes * torch.randn(gates, OUTPUTS, generator=random)
    adds /= adds.sum(0).norm()
    return lambda z: ((z - 1) @ adds.to(z.dtype)).square().sum(), adds


def draws_needed(estimator: Estimator, each: int, gates: int, blocks: int | None) -> float:
    """Forward-equivalents for a squared error of |gradient|^2."""
    f, adds = quadratic(gates)
    units = torch.arange(gates)
    if blocks is not None:
        units = units * blocks // gates
        loss, adds = f, torch.zeros(blocks, OUTPUTS).index_add(0, units, adds)
        f = lambda z: loss(z[units])  # noqa: E731
    pi = torch.full((len(adds),), OPEN, requires_grad=True)
    # E[f] = sum pi (1 - pi) |a|^2 + |sum (1 - pi) a|^2, in the logit
    slope = (1 - 2 * OPEN) * adds.square().sum(1) - 2 * (1 - OPEN) * adds @ adds.sum(0)
    gradient = OPEN * (1 - OPEN) * slope
    random, error = torch.Generator().manual_seed(1), 0.0
    for step in range(WARM_UP + REPEATS):
        (found,) = torch.autograd.grad(estimator(f, pi, random), pi)
        if step >= WARM_UP:
            error += (found * OPEN * (1 - OPEN) - gradient).square().sum().item() / REPEATS
    return each * error / gradient.square().sum().item()


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    for name, (make, each) in ESTIMATORS.items():
        found[name] = [draws_needed(make(), each, gates, None) for gates in GATES]
        print(name, [f"{value:.3g}" for value in found[name]], flush=True)
    name = f"DisARM, {BLOCKS} blocks"
    found[name] = [draws_needed(DisARM(), 2, gates, BLOCKS) for gates in GATES]
    text = "# Noise against the number of gates\n\nMade by `python -m "
    text += "benchmarks.forward_only.variance`. Forward-equivalents until the squared error of the "
    text += "mean estimate is as large as the squared gradient (gates open with probability "
    text += f"{OPEN}, {REPEATS} draws).\n\n| estimator | "
    text += " | ".join(f"{gates:,} gates" for gates in GATES)
    text += " |\n|---|" + "---|" * len(GATES) + "\n"
    for name, row in found.items():
        text += f"| {name} | " + " | ".join(f"{value:,.3g}" for value in row) + " |\n"
    write_text(options.into / "forward-only-variance.md", text)
    write_text(options.into / "forward-only-variance.json", json.dumps(found, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
