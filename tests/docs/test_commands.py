"""Command lines in the README and on the pages: the command exists, its arguments are valid."""

import re
from typing import Any

import pytest
import typer
from tests.docs.pages import PAGES, ROOT, command_lines

from l0arm.lab.cli.main import application

LINES = sorted({(name, tuple(line)) for name in PAGES for line in command_lines(PAGES[name])})


def check(words: list[str]) -> None:
    """Parse the words as the command line would, without executing the command."""
    verb, *arguments = words
    if verb in ("--help", "--version"):
        return
    command: Any = typer.main.get_command(application(words))
    commands: dict[str, Any] = command.commands
    assert verb in commands, f"no verb '{verb}'; there are {', '.join(commands)}"
    if arguments and "--help" not in arguments:  # a verb alone in a sentence is its name
        commands[verb].make_context(verb, arguments)


@pytest.mark.parametrize(("page", "words"), LINES, ids=lambda value: str(value)[:60])
def test_a_command_line_can_be_typed(page: str, words: tuple[str, ...]) -> None:
    check(list(words))


@pytest.mark.parametrize(
    "line", ["trian mlp", "train mlp --no-such-option", "train mlp --epochs few", "sweep a b"]
)
def test_one_that_cannot_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"no verb|[Nn]o such option|valid integer|unexpected"):
        check(line.split())


def test_the_reader_of_pages_finds_command_lines_everywhere() -> None:
    page = (
        "Say `l0arm plan a:b` or `.venv/bin/l0arm --help`, not `l0arm.json`.\n\n"
        "    l0arm train one --epochs 3   # a comment\n"
        "    torchrun --nproc-per-node 2 -m l0arm train two\n\n"
        "```bash\n$ l0arm bench RUN\n```\n"
        "```python\nimport l0arm\n```\n"
    )
    assert command_lines(page) == [
        ["bench", "RUN"], ["train", "one", "--epochs", "3"], ["train", "two"],
        ["plan", "a:b"], ["--help"],
    ]  # fmt: skip


@pytest.mark.parametrize("page", sorted(PAGES))
def test_make_targets_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", PAGES[page], re.M))
    assert named <= targets


def test_the_two_commands_stand_at_the_top() -> None:
    head = PAGES["README.md"].split("\n## ")[0]
    assert head.index("l0arm.prune(") < head.index("    make demo")
    assert "    make test" in head
