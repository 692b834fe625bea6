"""Records of runs that never ran, with figures that can be recognised in a drawing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest


@dataclass(frozen=True)
class Gates:
    name: str
    units: int
    open: int
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    epoch: int
    test_accuracy: float = 90.0
    seconds: float = 2.0
    prune_rate: float = 0.0
    prune_rate_realised: float = 0.0
    architecture: str = ""
    undecided: float = 0.0
    flops_dense: float = 0.0
    flops_inference: float = 0.0
    flops_training: float = 0.0
    groups: Sequence[Gates] = ()
    by_step: Sequence[tuple[int, float, float]] = field(default_factory=tuple)


def histogram(epoch: int, epochs: int) -> tuple[int, ...]:
    """Ten gates in the middle of four bins that move to both ends."""
    moved = round(5 * epoch / epochs)
    return (moved, 5 - moved, 5 - moved, moved)


def gated_epoch(epoch: int, epochs: int, passes: int, dense: float) -> Record:
    inference = dense * (1 - epoch / (2 * epochs))
    return Record(
        epoch=epoch,
        test_accuracy=90.0 + 8.0 * epoch / epochs,
        prune_rate=10.0 * epoch,
        prune_rate_realised=10.0 * epoch + 1,
        architecture=f"{10 - epoch}-20",
        undecided=1 - epoch / epochs,
        flops_dense=dense,
        flops_inference=inference,
        flops_training=passes * inference,
        groups=(
            Gates("conv1", 10, 10 - epoch, histogram(epoch, epochs)),
            Gates("fc1", 20, 20, (0, 0, 0, 20)),
        ),
        by_step=tuple((10 * epoch + n, passes * inference, inference) for n in (1, 5)),
    )


@pytest.fixture
def gated_run() -> Callable[..., list[Record]]:
    """``gated_run(epochs, passes, dense)``: ARM makes two passes in a step, AR one."""

    def run(epochs: int = 5, passes: int = 2, dense: float = 4e6) -> list[Record]:
        return [gated_epoch(n, epochs, passes, dense) for n in range(1, epochs + 1)]

    return run


@pytest.fixture
def dense_run() -> list[Record]:
    return [Record(epoch=n, test_accuracy=95.0 + n) for n in (1, 2, 3)]
