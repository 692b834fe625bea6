"""``l0arm sweep``: one run compacted at several thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from l0arm.files import write_json, write_text
from l0arm.lab import plots
from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import DataDir, Force, Json, OutsideMethod, Run, check_absent, load_data
from l0arm.lab.cli.outside import use_outside
from l0arm.lab.errors import UserError
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.trained import SweepPoint, trained_network
from l0arm.lab.runs.trained import sweep as swept
from l0arm.lab.tables.markdown import grid

THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def sweep(
    run: Run,
    threshold: Annotated[
        list[float] | None, typer.Option(help="A threshold (tau of Eq. 14). Repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Files to write, without ending. Default: RUN/sweep.")
    ] = None,
    force: Force = False,
    data_dir: DataDir = None,
    method: OutsideMethod = None,
    as_json: Json = False,
) -> None:
    """Compact one run at several thresholds, and mark the Pareto points (*).

    Writes RUN/sweep.md, sweep.json and sweep.png: accuracy against cost. The accuracy is measured
    on the test images. To choose a threshold, train with data.held_out: then it is measured on
    images that are held out of the training set.

    Examples:

        l0arm sweep runs/mlp-l0-arm/seed-0
        l0arm sweep runs/mlp-l0-arm/seed-0 --threshold 0.3 --threshold 0.5
    """
    thresholds = sorted(set(threshold or THRESHOLDS))
    for tau in thresholds:
        if not 0.0 < tau < 1.0:
            raise UserError(f"--threshold {tau:g}: a threshold lies strictly between 0 and 1")
    stem = out or run / "sweep"
    paths = [stem.with_name(stem.name + ending) for ending in (".md", ".json", ".png")]
    check_absent(paths, force=force)
    use_outside(method)
    folder = RunFolder(run)
    trained = trained_network(folder, load_data(folder.recipe().data.name, data_dir, quiet=as_json))
    points = swept(trained, trained.gated(), thresholds)
    _write(paths, folder.recipe().title or folder.recipe().name, points)
    if as_json:
        for point in points:
            say_json(asdict(point))
        return
    say("\n".join(_lines(points)))
    say(f"wrote {', '.join(str(path) for path in paths)}")


def _lines(points: Sequence[SweepPoint]) -> list[str]:
    rows = [
        [
            *(_range(p), "-".join(map(str, p.widths)), f"{p.parameters:,}"),
            *(f"{p.macs:,}", f"{p.accuracy:.2f}", "*" if p.pareto else ""),
        ]
        for p in points
    ]
    return grid(["threshold", "units", "parameters", "MACs", "% right", "Pareto"], rows)


def _range(point: SweepPoint) -> str:
    """The thresholds that leave this network."""
    first, last = f"{point.threshold:g}", f"{point.upto:g}"
    return first if first == last else f"{first} to {last}"


def _write(paths: Sequence[Path], title: str, points: Sequence[SweepPoint]) -> None:
    table, data, picture = paths
    table.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"# {title}: a sweep of thresholds", "", *_lines(points), ""]
    write_text(table, "\n".join(lines))
    write_json(data, {"title": title, "points": [asdict(point) for point in points]})
    plots.save(plots.cost_curve(points, title=title), picture)
