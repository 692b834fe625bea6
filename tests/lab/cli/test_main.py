"""``l0arm`` itself: the overview, the version, and the help of every command."""

import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import l0arm
from l0arm.lab.cli.main import COMMANDS, app, application

Cli = Callable[[str], Any]
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
every_command = pytest.mark.parametrize("name", COMMANDS)


def test_the_version_is_that_of_the_package(cli: Cli) -> None:
    ended = cli("--version")
    assert (ended.code, ended.out) == (0, f"{l0arm.__version__}\n")


def test_the_command_line_can_be_called_from_outside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["l0arm", "--version"])
    with pytest.raises(SystemExit, match="0"):
        app()
    assert capsys.readouterr().out == f"{l0arm.__version__}\n"


def test_the_version_lives_in_the_package_only() -> None:
    settings = tomllib.loads(PYPROJECT.read_text())
    assert "version" not in settings["project"]
    assert settings["project"]["dynamic"] == ["version"]
    source = PYPROJECT.parent / settings["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{l0arm.__version__}"' in source.read_text()


@pytest.mark.parametrize("line", ["--help", "--version", "compare --help"])
def test_what_needs_no_torch_does_not_import_it(line: str) -> None:
    code = (
        "import sys; from l0arm.__main__ import main\n"
        f"sys.argv = ['l0arm', *{line.split()}]\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "False\n")


def test_the_overview_has_one_line_for_each_command(cli: Cli) -> None:
    lines = cli("--help").out.splitlines() + cli("compare --help").out.splitlines()
    for name, sentence in COMMANDS.items():
        row = [name.rpartition(" ")[2], *sentence.split()]
        assert [line for line in lines if line.strip("│ ").split() == row], sentence


def test_a_mistyped_command_gets_a_hint(cli: Cli) -> None:
    ended = cli("trian mlp-l0-arm")
    assert ended.code == 2
    assert "Did you mean 'train'?" in ended.err


def test_a_missing_package_is_named_with_the_way_to_install_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name="pydantic")

    monkeypatch.setattr("l0arm.lab.cli.main.import_module", missing)
    ended = cli("recipes")
    assert ended.refused("the command line needs 'pydantic'; pip install 'l0arm[cli]'", code=1)


@every_command
def test_help_says_what_is_written_and_has_examples(cli: Cli, name: str) -> None:
    lines = cli(f"{name} --help").out.splitlines()
    assert max(map(len, lines)) <= 80
    text = lines[: next(n for n, line in enumerate(lines) if line.startswith("╭"))]
    first = next(line.strip() for line in text if line.strip() and "Usage:" not in line)
    assert first[0].isupper()
    assert any("Writes " in line for line in text)
    start = next(n for n, line in enumerate(text) if line.strip() == "Examples:")
    examples = [line.strip() for line in text[start + 1 :] if line.strip()]
    assert len(examples) >= 2
    for example in examples:  # none is wrapped, and each can be typed
        words = shlex.split(example)
        words = words[words.index("l0arm") + 1 :]
        assert " ".join(words).startswith(name)
        group: Any = typer.main.get_command(application(words))
        group.commands[words[0]].make_context(words[0], words[1:])
