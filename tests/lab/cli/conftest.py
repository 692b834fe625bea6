"""The command line, called in this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from l0arm.lab.cli.main import main

QUICK = "--set data.name=mnist-mini --set data.limit=200 --set training.batch=50 --epochs 2"


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Cli = Callable[[str], Ended]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in an empty folder; 80 columns, no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(line: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["l0arm", *line.format(quick=QUICK).split()])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        captured = capfd.readouterr()
        return Ended(code, captured.out, captured.err)

    return call
