"""A disk that becomes full anywhere: one line of error, no half file, and the run goes on later.

A limit on the size of files (RLIMIT_FSIZE) acts as a full disk does, in Python and in compiled
code alike.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.helpers.cli_process import run

TRAIN = "train mlp-l0-arm --quiet --set data.name=mnist-mini --set data.limit=200 --epochs 2"
LIMIT = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))\n"


def attack(chance: random.Random, folder: Path) -> Iterator[str]:
    whole = run(f"{TRAIN} --run-dir whole", folder)
    assert whole.code == 0, whole.err
    largest = max(path.stat().st_size for path in (folder / "whole").rglob("*") if path.is_file())
    for number in count():
        size = round(largest ** chance.random())
        place = f"run-{number}"
        lines = (
            f"{TRAIN} --run-dir {place}",
            f"compact whole --out {place}",
            f"report whole --out {place}.html",
            f"export whole --out {place}.pt2",
        )
        line = lines[number % len(lines)]
        ended = run(line, folder, setup=LIMIT.format(size))
        failure = ""
        if ended.traceback or ended.code not in (0, 1, 2):
            failure = f"ended with {ended.code}: {ended.err[-300:]}"
        elif ended.code != 0 and "train" not in line and list(folder.glob(f"*{place}*")):
            failure = f"left {[path.name for path in folder.glob(f'*{place}*')]}"
        elif "train" in line:
            again = run(f"{line} --resume", folder)
            if again.code != 0:
                failure = f"could not be resumed: {again.err[-300:]}"
        yield f"{line} with files of {size} bytes at most: {failure}" if failure else ""
        for path in folder.glob(f"*{place}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
