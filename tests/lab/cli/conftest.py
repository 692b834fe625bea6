"""The command line, called in this process, and runs that many tests start from."""

import shutil
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

    def refused(self, message: str, code: int = 2) -> bool:
        """Whether it ended with this code and one line of error, without a traceback."""
        return self.code == code and message in self.err and self.err.count("\n") == 1


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
        with pytest.raises(SystemExit) as end:
            main()
        captured = capfd.readouterr()
        if isinstance(end.value.code, str):  # the interpreter prints it and exits with 1
            return Ended(1, captured.out, f"{captured.err}{end.value.code}\n")
        return Ended(end.value.code or 0, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick run, trained once for all tests."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        line = f"l0arm train mlp-l0-arm {QUICK} --quiet --run-dir {folder}"
        patch.setattr(sys, "argv", line.split())
        with pytest.raises(SystemExit, match="0"):
            main()
    return folder


@pytest.fixture
def trained(cli: Cli, finished_run: Path, tmp_path: Path) -> Cli:
    """The command line, in a folder with a copy of the finished run."""
    shutil.copytree(finished_run, tmp_path / "runs/mlp-l0-arm/seed-0")
    return cli
