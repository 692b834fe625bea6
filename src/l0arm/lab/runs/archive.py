"""A small copy of a finished run: recipe, environment, result, and its records compressed."""

from __future__ import annotations

import gzip
from pathlib import Path

from l0arm.files import write_bytes
from l0arm.lab.runs.folder import RunFolder


def archive(run: RunFolder, target: Path) -> Path:
    """Copy what tables and figures need; the checkpoints stay behind."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("recipe.json", "environment.json", "result.json"):
        write_bytes(target / name, (run.path / name).read_bytes())
    packed = gzip.compress(run.records.read_bytes(), mtime=0)  # the same bytes every time
    write_bytes(target / f"{run.records.name}.gz", packed)
    return target
