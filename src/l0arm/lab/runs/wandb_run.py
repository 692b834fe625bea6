"""Records as a W&B run, written to the run's folder: nothing is sent (`wandb sync` does that)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.records import EpochRecord, figures


class WandbRun:
    """An offline run of Weights & Biases; a resumed run becomes a second one, from its epoch on."""

    def __init__(self, folder: Path, name: str, settings: dict[str, Any], epoch: int) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError(
                "W&B is not installed; pip install 'l0arm[wandb]', or leave out --tracker wandb"
            ) from None
        self._run = wandb.init(
            project="l0arm",
            name=name if not epoch else f"{name}, resumed after epoch {epoch}",
            dir=str(folder),
            config=settings,
            mode="offline",
        )

    def record(self, record: EpochRecord) -> None:
        """The figures of an epoch."""
        self._run.log(figures(record), step=record.epoch)

    def close(self) -> None:
        """Write what is still in memory."""
        self._run.finish()
