"""Hostile values on the command line and in recipes: one line of error with code 1 or 2."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.helpers.cli_process import Ended, run

FIELDS = (
    *("training.epochs", "training.batch", "training.lr", "training.threads", "data.name"),
    *("data.limit", "method.lam", "method.name", "model.name", "seed", "name", "no.such"),
)
VALUES = (
    *("-1", "0.5", "nan", "inf", "-inf", "1e999", "9" * 30, "9" * 5000, "0x" + "f" * 5000),
    *("[" * 50_000, "{" * 50_000, "[[1]]", "''", "'\\u0000'", "λ", "../x", "/x", "~nobodyx/x"),
    *("sys:exit", "..:x", ":", "os:abort", "true", "none", "[]", "{}", "1979-05-27"),
)
COMMANDS = (
    "train mlp-l0-arm --set {field}={value}",
    "train recipe.toml",
    "train mlp-l0-arm --method {value}",
    "train mlp-l0-arm --epochs {value}",
    "plan {value} --input 1,3",
    "plan torch.nn:Identity --input {value}",
    "data {value}",
    "evaluate {value}",
    "inspect {value}",
    "recipes {value}",
    "bench --only {value} --quick",
    "compare runs {value}",
)
HARMLESS = "--set data.name=mnist-mini --set data.limit=100 --epochs 1 --runs runs"
LONGEST = 2000  # characters of an error, beside the value that it quotes


def attack(chance: random.Random, folder: Path) -> Iterator[str]:
    (folder / "work").mkdir()
    before = sorted(folder.iterdir())
    for _ in count():
        field, value = chance.choice(FIELDS), chance.choice(VALUES)
        line = chance.choice(COMMANDS)
        text = f"{field} = {value}\n" if chance.random() < 0.5 else f"[a]\nb = {value}\n"
        (folder / "work" / "recipe.toml").write_text(text)
        words = line.format(field=field, value=value.replace(" ", ""))
        if words.startswith("train"):
            words = words.replace("train", "train --quiet", 1) + f" {HARMLESS}"
        ended = run(words, folder / "work")
        wrong = _wrong(ended, len(value)) or (
            "" if sorted(folder.iterdir()) == before else "a file outside"
        )
        yield f"{words[:200]} | {text[:60]!r}: {wrong}" if wrong else ""


def _wrong(ended: Ended, quoted: int) -> str:
    """What is not as documented about an end."""
    if ended.traceback:
        return f"a traceback: {ended.err[-300:]}"
    if ended.code not in (0, 1, 2):
        return f"ended with {ended.code}"
    if ended.code != 0 and not ended.err.strip():
        return "failed without a word"
    if len(ended.err) > LONGEST + quoted:
        return f"an error of {len(ended.err)} characters"
    return ""
