"""``l0arm figure``: the figures of the paper, from runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from l0arm.lab import plots
from l0arm.lab.cli.console import say
from l0arm.lab.cli.options import RunsRoot
from l0arm.lab.cli.report import drawable, drawables
from l0arm.lab.errors import UserError, nearest
from l0arm.lab.tables.front import front_points, fronts
from l0arm.lab.tables.thresholds import threshold_curve

Runs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RUN", help="Folders of runs. Default: those of the paper's rows."),
]
ROWS = [(method, strengths) for method in ("l0-arm", "l0-ar") for strengths in ("", "-separate")]
METHODS = {"L0-HC": "l0-hc", "L0-AR": "l0-ar", "L0-ARM": "l0-arm"}


def figure(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="fig1 ... fig5, tau, inputs, or filters.")
    ],
    run: Runs = None,
    runs: RunsRoot = Path("runs"),
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, .png, .svg or .pdf. Default: results/NAME.png."),
    ] = None,
) -> None:
    """Draw a figure of the paper from runs.

    - fig1: g(φ) for several k
    - fig2: histograms of g(φ) over the epochs
    - fig3: prune rate and expected FLOPs by epoch (LeNet-5)
    - fig4: expected FLOPs by iteration (CIFAR)
    - fig5: test accuracy by epoch
    - tau: prune rate and accuracy for thresholds from 0.1 to 0.9 (accuracy after l0arm sweep RUN)
    - front: accuracy against prune rate of all methods (MNIST), with the rows that papers print;
      RUN: further folders of runs. Prints the points that no other dominates
    - inputs: the pixels that the MLP keeps
    - filters: the filters that LeNet-5's first layer keeps

    Writes results/NAME.png, or the file that --out names.

    Examples:

        l0arm figure fig1
        l0arm figure fig2 runs/lenet5-l0-arm/seed-0 --out fig2.svg
    """
    if name not in FIGURES:
        raise UserError(f"no figure '{name}'; {nearest(name, FIGURES)}")
    path = out or Path("results") / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        plots.save(FIGURES[name](runs, run or []), path)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    say(f"wrote {path}")


def _gate_functions(runs: Path, chosen: Sequence[Path]) -> Any:
    return plots.gate_functions()


def _histograms(runs: Path, chosen: Sequence[Path]) -> Any:
    run = drawable(_one(runs, chosen, "fig2", "lenet5-l0-arm"))
    return plots.gate_histograms(run.epochs, title=f"{run.network}, {run.label}")


def _pruning(runs: Path, chosen: Sequence[Path]) -> Any:
    return plots.prune_rate_and_flops(
        _by_network(chosen)
        or _columns(
            runs,
            {"λ = 0.1/N": "lenet5-{}", "λ sep.": "lenet5-{}-separate"},
            "fig3",
        )
    )


def _flops_by_step(runs: Path, chosen: Sequence[Path]) -> Any:
    return plots.flops_by_step(
        _by_network(chosen)
        or _columns(
            runs, {"CIFAR-10": "wrn-cifar10-{}-001", "CIFAR-100": "wrn-cifar100-{}-001"}, "fig4"
        )
    )


def _accuracy(runs: Path, chosen: Sequence[Path]) -> Any:
    columns = _by_network(chosen) or _columns(runs, {"CIFAR-10": "wrn-cifar10-{}-001"}, "fig5")
    return plots.accuracy_by_epoch(
        {
            label if len(columns) == 1 else f"{network}, {label}": epochs
            for network, of_network in columns.items()
            for label, epochs in of_network.items()
        },
        title=next(iter(columns)) if len(columns) == 1 else "",
    )


def _thresholds(runs: Path, chosen: Sequence[Path]) -> Any:
    rows = (f"{network}-{m}{sep}" for network in ("mlp", "lenet5") for m, sep in ROWS)
    paths = chosen or [path for path in (_first_run(runs, row) for row in rows) if path is not None]
    return plots.threshold_curves([threshold_curve(path) for path in paths])


def _front(runs: Path, chosen: Sequence[Path]) -> Any:
    points = front_points([runs, *chosen])
    best = fronts(points)
    for name, front in best.items():
        say(f"{name}:\n" + "\n".join(f"- {point}" for point in front))
    return plots.pareto_front(points, best)


def _inputs(runs: Path, chosen: Sequence[Path]) -> Any:
    run = drawable(_one(runs, chosen, "inputs", "mlp-l0-arm"))
    if run.inputs is None:
        raise UserError("inputs: the run has no gates on pixels, or is not finished yet")
    return plots.surviving_inputs(run.inputs.pi, tau=run.inputs.tau)


def _filters(runs: Path, chosen: Sequence[Path]) -> Any:
    run = drawable(_one(runs, chosen, "filters", "lenet5-l0-arm"))
    if run.filters is None:
        raise UserError("filters: the run has no gates on image filters, or no checkpoint")
    return plots.surviving_filters(run.filters.weight, run.filters.pi, tau=run.filters.tau)


def _one(runs: Path, chosen: Sequence[Path], name: str, recipe: str) -> Path:
    found = chosen[0] if chosen else _first_run(runs, recipe)
    if found is None:
        raise UserError(
            f"no run to draw {name} from; train one (l0arm train {recipe}) or name its folder"
        )
    return found


def _first_run(runs: Path, recipe: str) -> Path | None:
    """The folder of the run of a recipe that has records and the lowest seed."""
    seeds = [p for p in (runs / recipe).glob("seed-*") if p.name[5:].isdecimal()]  # not logs
    for path in sorted(seeds, key=lambda path: int(path.name[5:])):
        if (path / "epochs.jsonl").exists() or (path / "epochs.jsonl.gz").exists():
            return path
    return None


def _by_network(chosen: Sequence[Path]) -> dict[str, dict[str, Any]]:
    columns: dict[str, dict[str, Any]] = {}
    for run in drawables(chosen):
        columns.setdefault(run.network, {})[run.label] = run.epochs
    return columns


def _columns(runs: Path, patterns: dict[str, str], name: str) -> dict[str, dict[str, Any]]:
    """The runs of the paper's methods that exist, a column for each pattern of recipes."""
    columns: dict[str, dict[str, Any]] = {}
    for title, pattern in patterns.items():
        for label, method in METHODS.items():
            path = _first_run(runs, pattern.format(method))
            if path is not None:
                columns.setdefault(title, {})[label] = drawable(path).epochs
    if not columns:
        recipe = next(iter(patterns.values())).format("l0-arm")
        raise UserError(
            f"no run to draw {name} from; train some (l0arm train {recipe}) or name their folders"
        )
    return columns


FIGURES: dict[str, Callable[[Path, Sequence[Path]], Any]] = {
    "fig1": _gate_functions,
    "fig2": _histograms,
    "fig3": _pruning,
    "fig4": _flops_by_step,
    "fig5": _accuracy,
    "tau": _thresholds,
    "front": _front,
    "inputs": _inputs,
    "filters": _filters,
}
