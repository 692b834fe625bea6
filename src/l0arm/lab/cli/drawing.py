"""From the folders of runs to what figures and reports draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from l0arm.lab.plots.sections import Filters, Inputs, Run
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.folder import RunFolder, flat
from l0arm.lab.tables.bench_record import read_bench
from l0arm.lab.tables.survivors import open_counts

FIRST_LAYER = {"mlp": "fc1", "lenet5": "conv1", "wide-resnet": "conv1"}


def drawable(path: Path) -> Run:
    """A run as figures and reports see it."""
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


def drawables(paths: Sequence[Path]) -> list[Run]:
    """Several runs; those that would look the same are told apart by their folders."""
    runs = [drawable(path) for path in paths]
    names = [(run.network, run.label) for run in runs]
    return [
        run if names.count(name) == 1 else replace(run, label=f"{run.label} ({path})")
        for run, name, path in zip(runs, names, paths, strict=True)
    ]


def first_run(runs: Path, names: Sequence[str]) -> Path | None:
    """The folder of the first of these recipes that has a run, its lowest seed."""
    for name in names:
        seeds = [p for p in (runs / name).glob("seed-*") if p.name[5:].isdecimal()]  # not logs
        for path in sorted(seeds, key=lambda path: int(path.name[5:])):
            if (path / "epochs.jsonl").exists() or (path / "epochs.jsonl.gz").exists():
                return path
    return None


def _inputs(folder: RunFolder, recipe: Recipe) -> Inputs | None:
    """The gates of the input pixels, when the run is done and has such."""
    gates = folder.read_result()["gates"] if folder.finished else {}
    pixels = gates.get("fc1", [])
    if recipe.model.name != "mlp" or len(pixels) != 784:
        return None
    return Inputs(pixels, tau=_cut(folder, "fc1", pixels))


def _filters(folder: RunFolder, recipe: Recipe) -> Filters | None:
    """The first layer's filters, when there is a checkpoint and they have gates."""
    layer = FIRST_LAYER[recipe.model.name]
    gates = folder.read_result()["gates"] if folder.finished else {}
    state, _ = newest_checkpoint(folder.checkpoints) if folder.checkpoints.exists() else (None, [])
    if state is None or layer not in gates or recipe.model.name != "lenet5":
        return None
    weight: Any = state["trainee"].get(f"model.{layer}.weight")
    if weight is None:
        return None
    return Filters(weight.numpy(), gates[layer], tau=_cut(folder, layer, gates[layer]))


def _cut(folder: RunFolder, group: str, pi: Sequence[float]) -> float:
    """Between the gates that end open, as many as the records say, and the others."""
    kept = open_counts(folder)[group]
    return sorted(pi, reverse=True)[kept] if kept < len(pi) else -1.0


def required(run: Path | None, what: str, way_out: str) -> Path:
    """The run, or a sentence on how to get one."""
    if run is None:
        raise UserError(f"no run to draw {what} from; {way_out}")
    return run
