"""The files of a saved network, and where they may be written."""

from __future__ import annotations

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
