"""``l0arm compare runs``: what runs came to, their gates, and the units that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer

from l0arm import plots
from l0arm.cli.console import say
from l0arm.cli.options import Quiet
from l0arm.experiments import records
from l0arm.experiments.errors import UserError
from l0arm.experiments.files import replacing, write_json
from l0arm.experiments.folder import RunFolder
from l0arm.experiments.recipe import Recipe
from l0arm.experiments.survivors import Overlap, overlap, survivors, units

RUN_COLUMNS = (
    *("run", "seed", "epochs", "architecture", "prune rate %", "realised %", "accuracy %"),
    *("undecided %", "s/epoch"),
)
PAIR_COLUMNS = ("run", "other", "keeps", "keeps", "in common", "by chance", "σ")

CAUTION = (
    "By chance: two random choices as large as these. Runs of one seed share their random numbers "
    "too; only what runs of different seeds have in common was learned."
)


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
    title: Annotated[str, typer.Option(help="What the page is about.")] = "Runs side by side",
    quiet: Quiet = False,
) -> None:
    """Compare finished runs: figures of the last epoch, gates, units that two runs both keep.

    Units are compared between runs that start from the same weights (training.init_seed, or the
    same seed): of two others, filter 3 has nothing to do with filter 3. By chance is what two
    random choices as large as these would have in common, σ how many standard deviations the runs
    are above it. Runs of one seed share their random numbers too: only what runs of different seeds
    have in common was learned.

        l0arm compare runs runs/small-wrn-l0-arm/seed-0 runs/small-wrn-l0-arm/seed-1
    """
    folders = [RunFolder(path) for path in run]
    results = [_row(folder) for folder in folders]
    pairs = list(_pairs(folders))
    text = "\n".join(
        [f"# {title}", "", f"    {_command(run, out, title)}", "", *_text(results, pairs)]
    )
    paths = [out.with_name(out.name + ending) for ending in (".md", ".json", ".png")]
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(paths[0]) as file:
        file.write(f"{text}\n".encode())
    write_json(paths[1], {"title": title, "runs": results, "pairs": [asdict(p) for p in pairs]})
    say(text, quiet=quiet)
    say(f"wrote {', '.join(map(str, _drawn(folders, paths, title)))}", quiet=quiet)


def _drawn(folders: Sequence[RunFolder], paths: Sequence[Path], title: str) -> Sequence[Path]:
    """Draw the gates, if there are any; the files that were written."""
    gated = {_label(f): records.read(f.records)[-1] for f in folders if f.read_result()["gates"]}
    if not gated:
        return paths[:2]
    plots.save(plots.last_histograms(gated, title=title), paths[2])
    return paths


def _command(run: Sequence[Path], out: Path, title: str) -> str:
    return f'l0arm compare runs {" ".join(map(str, run))} --out {out} --title "{title}"'


def _label(folder: RunFolder) -> str:
    recipe = folder.recipe()
    method = (recipe.title or recipe.name).partition(", ")[2] or recipe.name
    return f"{method}, seed {recipe.training.seed}"


def _row(folder: RunFolder) -> dict[str, Any]:
    """What a run came to."""
    if not folder.finished:
        raise UserError(f"the run in {folder.path} is not finished; resume it, or leave it out")
    result = folder.read_result()
    row = {key: value for key, value in result.items() if key != "gates"}
    return {"run": _label(folder), **row}


def _pairs(folders: Sequence[RunFolder]) -> Iterator[Pair]:
    """Every two runs whose units are the same ones."""
    for one, other in combinations(folders, 2):
        sizes = units(one)
        if not sizes or sizes != units(other) or _start(one.recipe()) != _start(other.recipe()):
            continue
        first, second = survivors(one), survivors(other)
        kept = tuple(sum(map(len, kept.values())) for kept in (first, second))
        yield Pair(_label(one), _label(other), (kept[0], kept[1]), overlap(first, second, sizes))


def _start(recipe: Recipe) -> tuple[Any, int]:
    """What the first weights of a run are a function of."""
    training = recipe.training
    return recipe.model, training.seed if training.init_seed is None else training.init_seed


def _text(results: Sequence[dict[str, Any]], pairs: Sequence[Pair]) -> list[str]:
    lines = _grid(RUN_COLUMNS, [_run_cells(result) for result in results])
    if pairs:
        lines += ["", "## Units that two runs from the same weights both keep", "", CAUTION, ""]
        lines += _grid(PAIR_COLUMNS, [_pair_cells(pair) for pair in pairs])
    return lines


def _run_cells(row: dict[str, Any]) -> list[str]:
    return [
        row["run"].rpartition(", seed")[0],
        *(str(row["seed"]), str(row["epochs"]), row["architecture"]),
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


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)]
