"""``l0arm report``: one HTML page about runs. Also reads a run for ``l0arm figure``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

from l0arm.lab.cli.console import say
from l0arm.lab.plots.report import page, write_page
from l0arm.lab.plots.sections import Filters, Inputs, Run, comparison_section, run_section
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.folder import RunFolder, flat
from l0arm.lab.tables.bench_record import read_bench
from l0arm.lab.tables.survivors import open_counts


def report(
    run: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about runs.

    Writes report.html, or the file that --out names: tables, figures, what is left of every
    layer, and the settings. Several runs are also compared with each other.

    Examples:

        l0arm report runs/mlp-l0-arm/seed-0
        l0arm report runs/mlp-l0-arm/seed-0 runs/mlp-dense/seed-0 --out mlp.html
    """
    drawn = drawables(run)
    sections = [comparison_section(drawn)] if len(drawn) > 1 else []
    sections += [run_section(one) for one in drawn]
    title = drawn[0].network if len({one.network for one in drawn}) == 1 else "l0arm runs"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_page(out, page(title, sections, f"{len(drawn)} run{'s' if len(drawn) > 1 else ''}"))
    say(f"wrote {out} ({out.stat().st_size:,} bytes)")


def drawables(paths: Sequence[Path]) -> list[Run]:
    """Several runs. A label that occurs twice gets the folder of its run."""
    runs = [drawable(path) for path in paths]
    names = [(run.network, run.label) for run in runs]
    return [
        run if names.count(name) == 1 else replace(run, label=f"{run.label} ({path})")
        for run, name, path in zip(runs, names, paths, strict=True)
    ]


def drawable(path: Path) -> Run:
    """What figures and reports show of the run in a folder."""
    folder = RunFolder(path)
    recipe = folder.recipe()
    network, _, method = (recipe.title or recipe.name).partition(", ")
    return Run(
        network=network,
        label=f"{method or recipe.method.name}, seed {recipe.training.seed}",
        epochs=records.read(folder.records),
        planned=recipe.training.epochs,
        settings={key: str(value) for key, value in flat(recipe.model_dump()).items()},
        inputs=_inputs(folder, recipe),
        filters=_filters(folder, recipe),
        forms=read_bench(path),
    )


def _inputs(folder: RunFolder, recipe: Recipe) -> Inputs | None:
    """The gates of the input pixels, if the run is finished and has such gates."""
    gates = folder.read_result()["gates"] if folder.finished else {}
    pixels = gates.get("fc1", [])
    if recipe.model.name != "mlp" or len(pixels) != 784:
        return None
    return Inputs(pixels, tau=_threshold(folder, "fc1", pixels))


def _filters(folder: RunFolder, recipe: Recipe) -> Filters | None:
    """The filters of LeNet-5's first layer, if they have gates and there is a checkpoint."""
    gates = folder.read_result()["gates"] if folder.finished else {}
    state, _ = newest_checkpoint(folder.checkpoints) if folder.checkpoints.exists() else (None, [])
    if state is None or "conv1" not in gates or recipe.model.name != "lenet5":
        return None
    trainee, pi = state.get("trainee"), gates["conv1"]
    weight = trainee.get("model.conv1.weight") if isinstance(trainee, dict) else None
    if not isinstance(weight, Tensor) or weight.dim() != 4 or len(weight) != len(pi):
        return None
    return Filters(weight.numpy(), pi, tau=_threshold(folder, "conv1", pi))


def _threshold(folder: RunFolder, group: str, pi: Sequence[float]) -> float:
    """A threshold that leaves as many gates open as the records say."""
    kept = open_counts(folder)[group]
    return sorted(pi, reverse=True)[kept] if kept < len(pi) else -1.0
