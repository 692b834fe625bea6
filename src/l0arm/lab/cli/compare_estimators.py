"""``l0arm compare estimators``: bias, variance and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from l0arm.estimators import ESTIMATORS
from l0arm.files import write_json, write_text
from l0arm.lab import plots
from l0arm.lab.cli.console import say
from l0arm.lab.cli.options import DataDir, Quiet, load_data
from l0arm.lab.cli.outside import estimator_from_outside
from l0arm.lab.errors import UserError, nearest
from l0arm.lab.tables import estimator_table as measured
from l0arm.lab.tables.markdown import grid

COLUMNS = ("estimator", "stage", "variance", "/ ARM", "bias", "f", "ms")


def estimators(
    problem: Annotated[str, typer.Option(help="quadratic (50 bits) or mlp (1,184 gates).")] = (
        "quadratic"
    ),
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this estimator, or package.module:factory. Repeatable."),
    ] = None,
    draws: Annotated[int, typer.Option(min=30, help="Estimates per estimator.")] = 1000,
    data: Annotated[str, typer.Option(help="Images for the MLP.")] = "mnist-mini",
    data_dir: DataDir = None,
    results: Annotated[Path, typer.Option(help="Folder of table and plot.")] = Path("results"),
    quiet: Quiet = False,
) -> None:
    """Measure bias, variance and cost of gradient estimators at three stages of training.

    - variance: the sum over the gates
    - bias: |mean - gradient| / |gradient|, corrected for the noise of both; < x where zero lies
      within three standard errors, which reach up to x
    - f: evaluations of the loss
    - ms: median thread time of a step, with all backward passes
    - ±: the standard error; for ms, half the interquartile range

    ARM is always measured. Writes RESULTS/estimators-PROBLEM.md, .json and .png.

    Examples:

        l0arm compare estimators --only disarm --only ar
        l0arm compare estimators --problem mlp --draws 300
        l0arm compare estimators --only mypackage.estimators:Mine
    """
    names = _names(only)
    _make(results)
    chosen = _problem(problem, data, data_dir, draws, quiet)
    lines = []
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task(chosen.name, total=len(names) * len(chosen.stages))
        for line in measured.compare(chosen, names, draws):
            lines.append(line)
            progress.update(task, advance=1, description=line.estimator)
    command = f"l0arm compare estimators --problem {problem} --draws {draws}"
    command += f" --data {data}" if problem == "mlp" else ""
    command += "".join(f" --only {name}" for name in only or [])
    written = _write(chosen.name, command, lines, results / f"estimators-{problem}")
    if not quiet:
        for stage in chosen.stages:
            of_stage = [line for line in lines if line.stage == stage]
            Console().print(_table(f"{chosen.name}, {stage}", of_stage))
    say(f"wrote {', '.join(str(path) for path in written)}", quiet=quiet)


def _make(folder: Path) -> None:
    """Make the folder of results before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write results to {folder}: {error.strerror}") from None


def _names(only: list[str] | None) -> list[str]:
    names = sorted(set(ESTIMATORS) - measured.NEVER)
    for name in only or []:
        if ":" in name:
            ESTIMATORS[name] = estimator_from_outside(name)
            names = sorted({*names, name})
        elif name not in names:
            raise UserError(f"no estimator to measure as '{name}'; {nearest(name, names)}")
    return [n for n in names if not only or n in {*only, "arm"}]


def _problem(
    name: str, data: str, data_dir: Path | None, draws: int, quiet: bool
) -> measured.Problem:
    if name == "quadratic":
        return measured.quadratic_problem()
    if name == "mlp":
        pairs = min(draws, measured.REFERENCE_PAIRS)
        return measured.mlp_problem(load_data(data, data_dir, quiet=quiet), pairs=pairs)
    raise UserError(f"no problem '{name}'; {nearest(name, ['quadratic', 'mlp'])}")


def _cells(lines: Sequence[measured.Line]) -> list[list[str]]:
    return [
        [
            line.estimator,
            line.stage,
            _figure(line.variance, line.variance_error),
            _figure(line.ratio, line.ratio_error),
            _figure(line.bias, line.bias_error)
            if line.bias_shown
            else f"<{_short(line.bias_limit)}",
            _figure(line.evaluations, line.evaluations_error),
            _figure(1000 * line.seconds, 1000 * line.seconds_spread),
        ]
        for line in lines
    ]


def _figure(value: float, error: float) -> str:
    return f"{_short(value)}±{_short(error, 1)}" if error else _short(value)


def _short(value: float, digits: int = 2) -> str:
    """A number with few digits.

    >>> _short(0.123), _short(4567), _short(0.00098), _short(0.0)
    ('0.12', '4.6e3', '9.8e-4', '0')
    """
    if value and not 0.0095 <= abs(value) < 999.5:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{float(f'{value:.{digits}g}'):g}"


def _table(title: str, lines: Sequence[measured.Line]) -> Table:
    """The table of one stage, in 80 columns."""
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for n, column in enumerate(COLUMNS):
        if column != "stage":
            table.add_column(column, justify="right" if n else "left", no_wrap=True)
    for name, _, *figures in _cells(lines):
        table.add_row(name, *figures)
    return table


def _write(title: str, command: str, lines: Sequence[measured.Line], stem: Path) -> list[Path]:
    """Write the table as Markdown and JSON, and the plot."""
    paths = [stem.with_suffix(suffix) for suffix in (".md", ".json", ".png")]
    text = "\n".join(grid(COLUMNS, _cells(lines)))
    write_text(paths[0], f"# {title}\n\n    {command}\n\n{text}\n")
    write_json(
        paths[1], {"problem": title, "command": command, "lines": [asdict(x) for x in lines]}
    )
    plots.save(plots.estimator_comparison(lines, title=title), paths[2])
    return paths
