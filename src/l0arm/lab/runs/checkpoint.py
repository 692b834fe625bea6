"""The checkpoints of runs, in the format of ``l0arm.checkpoints``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from l0arm import checkpoints
from l0arm.checkpoints import SCHEMA, save_checkpoint
from l0arm.lab.errors import UserError

__all__ = ["SCHEMA", "newest_checkpoint", "save_checkpoint"]


def newest_checkpoint(
    folder: Path, use: Callable[[dict[str, Any]], object] | None = None
) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint of a run; see ``l0arm.checkpoints.newest_checkpoint``.

    Raises:
        UserError: The checkpoint is intact, and was written by a newer version of l0arm.
    """
    try:
        return checkpoints.newest_checkpoint(folder, use)
    except checkpoints.NewerCheckpoint as error:
        raise UserError(str(error)) from None
