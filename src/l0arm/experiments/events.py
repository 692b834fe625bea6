"""Records as TensorBoard events, for those who watch their runs there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from l0arm.experiments.errors import UserError
from l0arm.experiments.records import EpochRecord

SCALARS = (
    "lr",
    "train_loss",
    "penalty",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "seconds",
    "prune_rate",
    "prune_rate_realised",
    "flops_inference",
    "flops_training",
    "undecided",
)


def event_writer(folder: Path, purge_after: int) -> Any:
    """A writer; events after the epoch that a run resumes from are dropped."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise UserError(
            "TensorBoard is not installed; pip install 'l0arm[tensorboard]', or leave out "
            "--tensorboard"
        ) from None
    return SummaryWriter(str(folder), purge_step=purge_after + 1)


def write_events(writer: Any, record: EpochRecord) -> None:
    """The figures of an epoch."""
    for name in SCALARS:
        writer.add_scalar(name, getattr(record, name), record.epoch)
    for group in record.groups:
        writer.add_scalar(f"open/{group.name}", group.open, record.epoch)
    writer.flush()
