"""Output that cannot be written: closed streams, full devices, readers that go, other encodings."""

from __future__ import annotations

import os
import random
import select
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.helpers.cli_process import CLOSED, Running, Start

COMMANDS = (
    "recipes",
    "--version",
    "--help",
    "train --help",
    "recipes mlp-l0-arm",
    "inspect nothing",
    "data nothing",
    "plan torch.nn:Identity --input 1,3",
    "train no-such-recipe",
    "table table2 --runs runs",
)
STREAMS = ("file.txt", CLOSED, "/dev/full", "pipe")
ENCODINGS = ("utf-8", "ascii", "latin-1", "utf-16")


def attack(chance: random.Random, folder: Path) -> Iterator[str]:
    for _ in count():
        line, encoding = chance.choice(COMMANDS), chance.choice(ENCODINGS)
        out, err = chance.choice(STREAMS), chance.choice(STREAMS)
        names = []
        for number, name in enumerate((out, err)):
            names.append(f"{number}-{name}" if name in ("file.txt", "pipe") else name)
        readers = [_reader(folder / name) for name in names if name.endswith("pipe")]
        running = Running(Start(line.split(), folder, *names, encoding=encoding))
        _wait(running, readers)  # until both streams are open
        for reader in readers:
            os.close(reader)
        ended = running.end(60.0)
        for name in names:
            if name.endswith("pipe"):
                (folder / name).unlink()
        wrong = ended.code not in (0, 1, 2) or ended.traceback
        what = f"{line} to {out}, errors to {err}, {encoding}"
        yield f"{what}: ended with {ended.code}: {ended.err[-300:]}" if wrong else ""


def _wait(running: Running, readers: list[int]) -> None:
    """Wait for the first output in a pipe, or for the end."""
    while readers and running.process.is_alive():
        if select.select(readers, [], [], 0.01)[0]:
            return


def _reader(path: Path) -> int:
    """A named pipe with a reader that does not wait."""
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)
