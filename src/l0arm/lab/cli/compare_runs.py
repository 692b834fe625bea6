"""``l0arm compare runs``: results of runs, their gates, and the units that they share."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer

from l0arm.files import write_json, write_text
from l0arm.lab import plots
from l0arm.lab.cli.console import say
from l0arm.lab.cli.options import Quiet
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.tables.markdown import grid
from l0arm.lab.tables.survivors import Overlap, overlap, survivors

RUN_COLUMNS = (
    *("run", "epochs", "architecture", "prune rate %", "realised %", "accuracy %"),
    *("undecided %", "s/epoch"),
)
PAIR_COLUMNS = ("run", "other", "keeps", "keeps", "in common", "by chance", "σ")

CAUTION = (
    "By chance: two random choices as large as these. What two runs share beyond it was learned, "
    "or comes from the common start; runs of one seed share their random numbers, too. The same "
    "figures of controls (lambda = 0) tell how much."
)


@dataclass(frozen=True)
class Finished:
    """A run, with a label that no other run of the comparison has."""

    label: str
    folder: RunFolder
    recipe: Recipe
    result: dict[str, Any]

    @property
    def units(self) -> dict[str, int]:
        """How many units each group has."""
        return {name: len(pi) for name, pi in self.result["gates"].items()}


@dataclass(frozen=True)
class Pair:
    """Two runs of the same groups, from the same first weights."""

    one: str
    other: str
    kept: tuple[int, int]
    overlap: Overlap


def runs(
    run: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of finished runs.")],
    out: Annotated[
        Path, typer.Option(help="Files to write, without ending: .md, .json and .png.")
    ] = Path("results/runs"),
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Runs side by side",
    quiet: Quiet = False,
) -> None:
    """Compare finished runs: results, gates, and the units that two runs both keep.

    Units are compared between runs that start from the same weights (training.init_seed, or the
    same seed). Otherwise filter 3 of one run has nothing to do with filter 3 of the other. By
    chance is what two random choices of this size have in common. σ says how many standard
    deviations the runs are above it. What they share beyond chance was learned, or comes from the
    common start: compare with controls, and use different seeds, because runs of one seed also
    share their random numbers.

    Writes OUT.md, OUT.json and OUT.png.

    Examples:

        l0arm compare runs runs/mlp-l0-arm/seed-0 runs/mlp-l0-ar/seed-0
        l0arm compare runs runs/mlp-l0-arm/seed-0 runs/mlp-l0-arm/seed-1 --out seeds
    """
    compared = _finished(run)
    pairs = list(_pairs(compared))
    lines = [f"# {title}", "", f"    {_command(run, out, title)}", "", *_text(compared, pairs)]
    paths = [out.with_name(out.name + ending) for ending in (".md", ".json", ".png")]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(paths[0], "\n".join([*lines, ""]))
    write_json(paths[1], {"title": title, **_values(compared, pairs)})
    say("\n".join(lines), quiet=quiet)
    say(f"wrote {', '.join(map(str, _drawn(compared, paths, title)))}", quiet=quiet)


def _finished(paths: Sequence[Path]) -> list[Finished]:
    """The runs in these folders. All must be finished."""
    folders = [RunFolder(path) for path in paths]
    recipes = [folder.recipe() for folder in folders]
    for folder in folders:
        if not folder.finished:
            raise UserError(f"the run in {folder.path} is not finished; resume it, or leave it out")
    return [
        Finished(label, folder, recipe, folder.read_result())
        for label, folder, recipe in zip(_labels(recipes, paths), folders, recipes, strict=True)
    ]


def _labels(recipes: Sequence[Recipe], paths: Sequence[Path]) -> list[str]:
    """Unique labels: with the network if it differs, with the folder if needed."""
    titles = [recipe.title or recipe.name for recipe in recipes]
    if len({title.partition(", ")[0] for title in titles}) == 1:
        titles = [title.partition(", ")[2] or title for title in titles]
    labels = [f"{t}, seed {r.training.seed}" for t, r in zip(titles, recipes, strict=True)]
    return [
        label if labels.count(label) == 1 else f"{label} ({path})"
        for label, path in zip(labels, paths, strict=True)
    ]


def _drawn(compared: Sequence[Finished], paths: Sequence[Path], title: str) -> Sequence[Path]:
    """Draw the gates, if there are any, and return the files that were written."""
    gated = [run for run in compared if run.result["gates"]]
    if not gated:
        return paths[:2]
    epochs = {run.label: records.read(run.folder.records)[-1] for run in gated}
    plots.save(plots.last_histograms(epochs, title=title), paths[2])
    return paths


def _command(run: Sequence[Path], out: Path, title: str) -> str:
    parts = ["l0arm", "compare", "runs", *map(str, run), "--out", str(out), "--title", title]
    return shlex.join(parts)


def _pairs(compared: Sequence[Finished]) -> Iterator[Pair]:
    """All pairs of runs whose units can be compared."""
    kept = {run.label: survivors(run.folder) for run in compared if run.units}
    counts = {label: sum(map(len, units.values())) for label, units in kept.items()}
    for one, other in combinations((run for run in compared if run.units), 2):
        if one.units == other.units and _start(one.recipe) == _start(other.recipe):
            a, b = one.label, other.label
            yield Pair(a, b, (counts[a], counts[b]), overlap(kept[a], kept[b], one.units))


def _start(recipe: Recipe) -> tuple[Any, ...]:
    """What determines the initial weights of a run."""
    seed, init_seed = recipe.training.seed, recipe.training.init_seed
    return recipe.model, recipe.data.name, seed if init_seed is None else init_seed


def _values(compared: Sequence[Finished], pairs: Sequence[Pair]) -> dict[str, Any]:
    """All figures as JSON values, without the g(phi) of every gate."""
    results = [{"run": run.label, **run.result} for run in compared]
    for result in results:
        del result["gates"]
    sigmas = [{**asdict(pair), "sigmas": pair.overlap.sigmas} for pair in pairs]
    return {"runs": results, "pairs": sigmas}


def _text(compared: Sequence[Finished], pairs: Sequence[Pair]) -> list[str]:
    lines = grid(RUN_COLUMNS, [_run_cells(run.label, run.result) for run in compared])
    if pairs:
        lines += ["", "## Units that two runs from the same weights both keep", "", CAUTION, ""]
        lines += grid(PAIR_COLUMNS, [_pair_cells(pair) for pair in pairs])
    return lines


def _run_cells(label: str, row: dict[str, Any]) -> list[str]:
    return [
        *(label, str(row["epochs"]), row["architecture"]),
        *(f"{row[key]:.2f}" for key in ("prune_rate", "prune_rate_realised", "test_accuracy")),
        f"{100 * row['undecided']:.1f}",
        f"{row['seconds_per_epoch']:.1f}",
    ]


def _pair_cells(pair: Pair) -> list[str]:
    found = pair.overlap
    return [
        *(pair.one, pair.other, str(pair.kept[0]), str(pair.kept[1]), str(found.common)),
        f"{found.by_chance:.1f} ± {found.deviation:.1f}",
        f"{found.sigmas:+.1f}",
    ]
