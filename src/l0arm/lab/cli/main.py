"""The command line: one verb per file, errors as one line with the way out.

Exit codes: 0 done; 1 a run failed, what it saved is there; 2 bad input, nothing was changed;
130 interrupted, the run is saved.
"""

from __future__ import annotations

import sys

import typer

from l0arm import SavedError
from l0arm.distributed import NoBackend, ProcessLost
from l0arm.export import ExportError
from l0arm.lab.cli.bench import bench
from l0arm.lab.cli.compact import compact
from l0arm.lab.cli.compare import compare
from l0arm.lab.cli.data import data
from l0arm.lab.cli.evaluate import evaluate
from l0arm.lab.cli.export import export
from l0arm.lab.cli.figure import figure
from l0arm.lab.cli.inspect import inspect
from l0arm.lab.cli.plan import plan
from l0arm.lab.cli.recipes import recipes
from l0arm.lab.cli.report import report
from l0arm.lab.cli.reproduce import reproduce
from l0arm.lab.cli.sweep import sweep
from l0arm.lab.cli.table import table
from l0arm.lab.cli.train import train
from l0arm.lab.data import DataError
from l0arm.lab.runs.errors import RunFailed, UserError
from l0arm.lab.runs.saving import Interrupted

app = typer.Typer(
    name="l0arm",
    help="Networks that learn to be small: train, compact and compare, as in the L0-ARM paper.",
    epilog="Start with: l0arm train mlp-l0-arm --set data.name=mnist-mini --epochs 3",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
VERBS = (
    *(train, evaluate, compact, inspect, export, sweep, bench),
    *(plan, recipes, data, table, figure, report, reproduce),
)
REFUSALS = (UserError, DataError, SavedError, ExportError, NoBackend, FileExistsError)
for verb in VERBS:
    app.command()(verb)
app.add_typer(compare, name="compare")


def main() -> None:
    """Run the verb that the command line names."""
    try:
        app()
    except REFUSALS as error:
        _end(f"error: {error}", 2)
    except ImportError as error:
        if "l0arm[" not in str(error):  # not an extra that is missing
            raise
        _end(f"error: {error}", 2)
    except BrokenPipeError:  # of what is printed: whoever read it has gone
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        where = "" if error.filename is None else f": {error.filename}"
        _end(f"error: {error.strerror or error}{where}", 2)
    except (RunFailed, ProcessLost) as error:
        _end(f"failed: {error}", 1)
    except Interrupted as error:
        _end(f"interrupted: {error}", 130)


def _end(message: str, code: int) -> None:
    print(" ".join(message.split()), file=sys.stderr)
    sys.exit(code)
