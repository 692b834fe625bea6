"""Records of runs that never ran, with numbers that can be recognised in a drawing."""

from collections.abc import Callable
from typing import Any

import pytest

from l0arm.lab.runs.records import EpochRecord, GroupRecord


def record(epoch: int, **numbers: Any) -> EpochRecord:
    """An epoch in which only the given numbers matter."""
    training = {"lr": 0.1, "train_loss": 1.0, "penalty": 0.0, "train_accuracy": 90.0}
    test = {"test_loss": 1.0, "test_accuracy": 90.0, "seconds": 2.0}
    return EpochRecord(epoch, **{"steps": 100 * epoch, **training, **test, **numbers})


def histogram(epoch: int, epochs: int) -> tuple[int, ...]:
    """Ten gates in the middle of four bins that move to both ends."""
    moved = round(5 * epoch / epochs)
    return (moved, 5 - moved, 5 - moved, moved)


def gated_epoch(epoch: int, epochs: int, passes: int, dense: float) -> EpochRecord:
    inference = dense * (1 - epoch / (2 * epochs))
    return record(
        epoch,
        test_accuracy=90.0 + 8.0 * epoch / epochs,
        prune_rate=10.0 * epoch,
        prune_rate_realised=10.0 * epoch + 1,
        architecture=f"{10 - epoch}-20",
        undecided=1 - epoch / epochs,
        flops_dense=dense,
        flops_inference=inference,
        flops_training=passes * inference,
        groups=(
            GroupRecord("conv1", 10, 10 - epoch, histogram(epoch, epochs)),
            GroupRecord("fc1", 20, 20, (0, 0, 0, 20)),
        ),
        by_step=tuple((10 * epoch + n, passes * inference, inference) for n in (1, 5)),
    )


@pytest.fixture(scope="session")
def gated_run() -> Callable[..., list[EpochRecord]]:
    """``gated_run(epochs, passes, dense)``: ARM makes two passes in a step, AR one."""

    def run(epochs: int = 5, passes: int = 2, dense: float = 4e6) -> list[EpochRecord]:
        return [gated_epoch(n, epochs, passes, dense) for n in range(1, epochs + 1)]

    return run


@pytest.fixture(scope="session")
def dense_run() -> list[EpochRecord]:
    return [record(n, test_accuracy=95.0 + n) for n in (1, 2, 3)]


@pytest.fixture(scope="session")
def ended() -> Callable[..., EpochRecord]:
    """``ended(*histograms)``: a last epoch with a group of gates for each histogram."""

    def epoch(*histograms: tuple[int, ...]) -> EpochRecord:
        groups = tuple(GroupRecord(str(n), sum(h), 0, h) for n, h in enumerate(histograms))
        return record(6, groups=groups)

    return epoch
