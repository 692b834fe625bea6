"""The command line: which commands there are, and how a command ends.

Every command is a file of its own. Only the command that is called is imported, so that
``l0arm --help`` does not wait for torch.

Exit codes: 0 done; 1 a run failed or the output was lost, what was saved is there; 2 bad input,
nothing was changed; 130 interrupted, a run is saved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from l0arm import __version__
from l0arm.lab.cli import ending_on_interrupt, exit_for_missing
from l0arm.lab.cli.streams import check_output, safe_streams
from l0arm.lab.errors import Interrupted, OutputLost

COMMANDS = {
    "train": "Train one recipe.",
    "evaluate": "Test the newest checkpoint of a run.",
    "compact": "Write the small network of a run to a folder.",
    "inspect": "Check a saved network and list what is left of it.",
    "export": "Write a small network as ONNX or torch.export program.",
    "sweep": "Compact one run at several thresholds: accuracy against cost.",
    "bench": "Time training steps, or one network in all its forms.",
    "plan": "Show which parts of your model can be gated.",
    "prune": "Make a trained network of yours smaller.",
    "recipes": "List the recipes.",
    "data": "Download and check a data set.",
    "table": "Write a table of the paper from finished runs.",
    "figure": "Draw a figure of the paper.",
    "report": "Write one HTML page about runs.",
    "reproduce": "Run everything that a table of the paper needs.",
    "compare estimators": "Measure bias, variance and cost of gradient estimators.",
    "compare runs": "Compare finished runs, and the units that they keep.",
}
GROUPS = {"compare": "Compare estimators, or finished runs."}


def main() -> None:
    """Run the command that the command line names."""
    with safe_streams():
        try:
            app()
        except KeyboardInterrupt:
            _end("interrupted: the command did not finish", 130)
        except Exception as error:
            end = import_module("l0arm.lab.cli.console").exit_line(error)
            if end is None:
                raise
            _end(*end)
        except SystemExit:
            try:
                check_output()  # of what other packages print, such as the help
            except OutputLost as error:
                _end(f"failed: {error}", 1)
            raise


def _end(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)


def app() -> None:
    """Run the command line of this process, without what `main` makes of errors."""
    application(sys.argv[1:])(prog_name="l0arm")


def application(words: Sequence[str]) -> typer.Typer:
    """The command line for these words: the command they name is imported, the others listed."""
    root = typer.Typer(
        name="l0arm",
        help="Networks that learn to be small: train, compact and compare, as in the L0-ARM paper.",
        epilog="Start with: l0arm train mlp-l0-arm --set data.name=mnist-mini --epochs 3",
        callback=_options,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    groups = {name: typer.Typer(no_args_is_help=True, help=text) for name, text in GROUPS.items()}
    called = " ".join(word for word in words if not word.startswith("-")) + " "
    for name, sentence in COMMANDS.items():
        group, _, leaf = name.rpartition(" ")
        function = _imported(name) if called.startswith(f"{name} ") else _listed
        groups.get(group, root).command(leaf, short_help=sentence)(function)
    for name, commands in groups.items():
        root.add_typer(commands, name=name)
    return root


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Options of ``l0arm`` itself."""


def _imported(name: str) -> Callable[..., None]:
    """The function of a command. The library of the options turns Ctrl-C into silence."""
    with ending_on_interrupt():
        try:
            module = import_module(f"l0arm.lab.cli.{name.replace(' ', '_')}")
        except ModuleNotFoundError as error:
            exit_for_missing(error)
    function: Callable[..., None] = vars(module)[name.rpartition(" ")[2]]

    @wraps(function)
    def command(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except KeyboardInterrupt:
            raise Interrupted("the command did not finish") from None

    return command


def _listed() -> None:
    """The place of a command in the overview; it is never called."""
