"""Records as TensorBoard events, for those who watch their runs there."""

from __future__ import annotations

from pathlib import Path

from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.records import EpochRecord, figures


class TensorBoard:
    """A writer of events; those after the epoch that a run resumes from are dropped."""

    def __init__(self, folder: Path, epoch: int) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise UserError(
                "TensorBoard is not installed; pip install 'l0arm[tensorboard]', or leave out "
                "--tensorboard"
            ) from None
        self._writer = SummaryWriter(str(folder), purge_step=epoch + 1)

    def record(self, record: EpochRecord) -> None:
        """The figures of an epoch."""
        for name, value in figures(record).items():
            self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
