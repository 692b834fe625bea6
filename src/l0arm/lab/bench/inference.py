"""Inference time of the compact network against the dense one, and the limit that applies.

A compact network is limited by its multiplications (the MAC ratio) and by the cost of launching its
operators. A network of the same depth and width 1, at batch size 1, measures the launch cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import l0arm
from l0arm.costs import count_flops
from l0arm.lab.bench.networks import (
    PlainLeNet5,
    PlainMLP,
    PlainWideResNet,
    State,
    converged,
    half_open,
    lenet5_converged,
    set_gates,
)
from l0arm.lab.bench.timing import Contestant, Plan, Spread, interleave, ratio
from l0arm.lab.data import mnist_mini
from l0arm.models import MLP, LeNet5, WideResNet

SLACK = 1.2  # factor on the MAC ratio


@dataclass(frozen=True)
class Case:
    """One network: dense, compact at a gate state, and of width 1."""

    name: str
    plain: Callable[[], nn.Module]
    narrow: Callable[[], nn.Module]
    ours: Callable[[], nn.Module]
    state: State
    x: Tensor
    plans: dict[int, Plan]  # batch size -> how often to measure


@dataclass(frozen=True)
class Row:
    """Times in ms; ``to_dense`` should stay below ``limit``."""

    network: str
    batch: int
    dense: Spread
    compact: Spread
    to_dense: Spread
    to_our_dense: Spread
    macs: float
    floor: float

    @property
    def limit(self) -> float:
        return max(SLACK * self.macs, self.floor)

    @property
    def which(self) -> str:
        return f"{SLACK} x MACs" if SLACK * self.macs >= self.floor else "launches"


def cases(quick: bool) -> list[Case]:
    """The networks. WRN has one round at batch 64: its dense form takes ten seconds."""
    torch.manual_seed(0)
    digits = mnist_mini().test_images[:256, None].float() / 255
    few = 3 if quick else 9
    small = {1: Plan(few, 200, seconds=10), 256: Plan(few, 10, seconds=10)}
    large = {1: Plan(1 if quick else 5, 1 if quick else 3, warm=1)}
    if not quick:
        large |= {16: Plan(2, 1, warm=0), 64: Plan(1, 1, warm=0)}
    return [
        Case(
            "LeNet-5 6-10-39-11",
            PlainLeNet5,
            lambda: PlainLeNet5((1, 1, 1)),
            LeNet5,
            lenet5_converged,
            digits,
            small,
        ),
        Case(
            "MLP 159-74-73",
            PlainMLP,
            lambda: PlainMLP((1, 1)),
            MLP,
            converged(159, 74, 73),
            digits,
            small,
        ),
        Case(
            "WRN-28-10 half",
            PlainWideResNet,
            lambda: PlainWideResNet((1, 1, 1, 1)),
            WideResNet,
            half_open,
            torch.randn(64, 3, 32, 32),
            large,
        ),
    ]


def measure(cases: Sequence[Case]) -> list[Row]:
    """Time all networks at all batch sizes."""
    return [row for case in cases for row in _rows(case)]


def _rows(case: Case) -> list[Row]:
    gated = l0arm.sparsify(case.ours(), method="l0-arm", lam=1e-7)
    set_gates(gated, case.state)
    models = {
        "plain": case.plain(),
        "ours": case.ours(),
        "compact": gated.compact(),
        "narrow": case.narrow(),
    }
    for model in models.values():
        model.eval()
    one = case.x[:1]
    macs = count_flops(models["compact"], one) / count_flops(models["plain"], one)
    return [_row(case, models, batch, macs) for batch in case.plans]


def _row(case: Case, models: dict[str, nn.Module], batch: int, macs: float) -> Row:
    x = case.x[:batch]
    inputs = {name: case.x[:1] if name == "narrow" else x for name in models}
    contestants = {name: Contestant(_call(m, inputs[name])) for name, m in models.items()}
    times = interleave(contestants, case.plans[batch])
    return Row(
        case.name,
        batch,
        Spread.of(times["plain"]),
        Spread.of(times["compact"]),
        ratio(times["compact"], times["plain"]),
        ratio(times["compact"], times["ours"]),
        macs,
        ratio(times["narrow"], times["plain"]).median,
    )


def _call(model: nn.Module, x: Tensor) -> Callable[[], object]:
    def call() -> object:
        with torch.inference_mode():
            return model(x)

    return call
