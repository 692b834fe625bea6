"""The text: sources of Python's standard library, a fixed list of files, each known by its hash.

``files.txt`` has a SHA-256 and a name on each line. It was written with Python 3.11.7. Another
version of Python has other sources, and is refused.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LIST = Path(__file__).parent / "files.txt"
LENGTH = 128  # characters of a sequence
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # anything else becomes a blank
VOCABULARY = len(CHARACTERS)
EVERY = 14  # of so many files, one is for the test and one for the validation


@dataclass(frozen=True)
class Texts:
    """Numbers of characters. Settings are tuned on ``validation``; ``test`` is for the table."""

    train: Tensor
    validation: Tensor
    test: Tensor


def listed() -> list[tuple[str, str]]:
    """Hash and name of every file."""
    return [tuple(line.split()) for line in LIST.read_text().splitlines()]  # type: ignore[misc]


def read(folder: Path | None = None) -> Texts:
    """The texts, as numbers of characters.

    Raises:
        ValueError: A file is not the one that was listed.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    table = np.full(256, CHARACTERS.index(" "), dtype=np.uint8)
    for number, character in enumerate(CHARACTERS):
        table[ord(character)] = number
    parts: dict[str, list[np.ndarray]] = {"train": [], "validation": [], "test": []}
    for position, (digest, name) in enumerate(listed()):
        raw = (folder / name).read_bytes()
        if hashlib.sha256(raw).hexdigest() != digest:
            raise ValueError(
                f"{folder / name} differs from the file that the benchmark was run on; use the "
                "sources of Python 3.11.7"
            )
        part = {EVERY - 1: "test", EVERY // 2 - 1: "validation"}.get(position % EVERY, "train")
        parts[part].append(table[np.frombuffer(raw, dtype=np.uint8)])
    return Texts(**{n: torch.from_numpy(np.concatenate(p)).long() for n, p in parts.items()})


def batch(text: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    """Random sequences of the text, with one character more than the network reads."""
    starts = torch.randint(len(text) - LENGTH - 1, (rows,), generator=generator)
    return text[starts[:, None] + torch.arange(LENGTH + 1)]


def rows_of(text: Tensor, rows: int) -> Tensor:
    """So many sequences, evenly spread over the text."""
    starts = torch.linspace(0, len(text) - LENGTH - 1, rows).long()
    return text[starts[:, None] + torch.arange(LENGTH + 1)]
