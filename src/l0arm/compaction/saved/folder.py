"""Folders that are either there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DESCRIPTION, TENSORS, CARD = "l0arm.json", "model.safetensors", "README.md"
CONFIG = "config.json"  # of transformers, where all layers have one width
OWN = {DESCRIPTION, TENSORS, CARD, CONFIG}
OWN_ENDINGS = {".onnx", ".pt2"}  # what export may have put beside them


def check_free(folder: Path, *, force: bool) -> Path:
    """Refuse to write where something is; with ``force``, unless it is a saved network whole.

    Gives the folder, or the one that a link leads to: the link stays.
    """
    folder = folder.resolve() if folder.is_symlink() else folder
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return folder
    if not force:
        raise FileExistsError(
            f"{folder} exists; choose another folder, or let it be replaced: force=True, or "
            "--force on the command line"
        )
    if not folder.is_dir() or not (folder / DESCRIPTION).is_file():
        raise FileExistsError(f"{folder} is not a saved network, so it is not replaced by force")
    foreign = [
        path.name
        for path in sorted(folder.iterdir())
        if path.is_dir() or not (path.name in OWN or path.suffix in OWN_ENDINGS)
    ]
    if foreign:
        raise FileExistsError(
            f"{folder} also holds {', '.join(foreign[:3])}, which l0arm did not write, so it is "
            "not replaced by force; move that away, or choose another folder"
        )
    return folder


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of ``folder`` once all of it is on the disk."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
    try:
        new.chmod(0o755)  # a temporary folder is the owner's alone
        yield new
        for path in new.iterdir():
            _settle(path)
        _exchange(new, folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _exchange(new: Path, folder: Path) -> None:
    """An old folder steps aside first, comes back if the new one cannot move, and goes last."""
    if not folder.exists():
        new.rename(folder)
        return
    old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".old.tmp"))
    try:
        folder.rename(old)  # onto an empty folder
    except BaseException:
        old.rmdir()
        raise
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _settle(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
