"""Ctrl-C at a random instruction of a training step or a call: afterwards all is as it was."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tests.helpers.interrupts import Untouched, interrupt
from torch import Tensor, nn

from l0arm import EmptyGroupWarning, Gated, sparsify
from l0arm.models import MLP, LeNet5, WideResNet

METHODS = ("l0-arm", "l0-ar", "l0-disarm", "l0-hc", "sparse-vd", "bc-gnj")
EVENTS = 20_000  # more instructions than a step has
SKIPPED = ("Gated.loss",)  # its last instruction returns the result, and no signal is handled there


def attack(chance: random.Random, folder: Path) -> Iterator[str]:
    while True:
        method, execution = chance.choice(METHODS), chance.choice(("sliced", "masked"))
        model, x = _network(chance)
        torch.manual_seed(chance.randrange(2**31))
        gated = sparsify(model, method=method, lam=1e-6, execution=execution)
        run = _step(gated, x, chance) if chance.random() < 0.7 else _call(gated, x)
        untouched = Untouched(gated, x)
        case = f"{type(model).__name__}, {method}, {execution}, {run.__name__}"
        for _ in range(20):
            yield _interrupt(chance, run, untouched, case)


def _network(chance: random.Random) -> tuple[nn.Module, Tensor]:
    models: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
        (lambda: MLP((12, 10, 8, 3)), (4, 12)),
        (LeNet5, (2, 1, 28, 28)),
        (lambda: WideResNet(10, 1), (2, 3, 32, 32)),
    ]
    make, shape = chance.choice(models)
    return make(), torch.rand(shape)


def _step(gated: Gated, x: Tensor, chance: random.Random) -> Callable[[], object]:
    y = torch.zeros(len(x), dtype=torch.long)
    seed = chance.randrange(2**31)

    def step() -> object:
        random_numbers = torch.Generator().manual_seed(seed)
        return gated.loss(lambda: F.cross_entropy(gated(x), y), random_numbers)

    return step


def _call(gated: Gated, x: Tensor) -> Callable[[], object]:
    gated.eval()

    def call() -> object:
        return gated(x)

    return call


def _interrupt(
    chance: random.Random, run: Callable[[], object], untouched: Untouched, case: str
) -> str:
    at = int(EVENTS ** chance.random())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyGroupWarning)
        error = interrupt(at, run, "opcode", SKIPPED)
        try:
            if error is None:  # the run ended before, and wrote its statistics
                untouched.__init__(untouched.gated, untouched.x)  # type: ignore[misc]
            else:
                untouched.check()
        except Exception as failure:
            return f"{case}, instruction {at}: {type(failure).__name__}: {failure}"
    return ""
