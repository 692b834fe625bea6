"""The results of all seeds of a recipe, read from the folders of their runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from l0arm.files import read_json
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.folder import RunFolder

# Settings in which a run may differ from its recipe. Epochs are reported separately.
IGNORED = frozenset({"title", "control", "paper", "training.seed", "training.epochs"}) | {
    *("training.device", "training.threads"),  # where it ran
}
# Fields with the same name in an Outcome and in result.json.
SAME = ("prune_rate", "prune_rate_realised", "architecture", "undecided", "seconds_per_epoch")


@dataclass(frozen=True)
class Outcome:
    """One run: the figures of its last epoch so far."""

    seed: int
    finished: bool
    epochs: int  # done
    planned: int
    changed: tuple[str, ...] = ()  # differences from the recipe, "method.lam: 0.2, not 0.1"
    accuracy: float | None = None
    prune_rate: float | None = None  # percent, as the paper counts
    prune_rate_realised: float | None = None
    architecture: str | None = None
    undecided: float | None = None  # share of gates with 0.05 < g(phi) < 0.95
    seconds_per_epoch: float | None = None


def outcomes(root: Path, recipe: Recipe) -> tuple[Outcome, ...]:
    """All runs of a recipe in ``root/<recipe>/seed-<n>``, by seed."""
    return tuple(_outcome(path, seed, recipe) for seed, path in _folders(root / recipe.name))


def comparable(runs: Sequence[Outcome]) -> list[Outcome]:
    """The finished runs that are closest to the recipe: same settings first, then most epochs.

    A trial run of three epochs must not be averaged with runs of two hundred.
    """
    finished = [run for run in runs if run.finished]
    closest = max(((not run.changed, run.epochs) for run in finished), default=None)
    return [run for run in finished if (not run.changed, run.epochs) == closest]


def median_run(runs: Sequence[Outcome]) -> Outcome | None:
    """The median run in terms of accuracy, as in the paper. Of an even number, the lower middle.

    This is one run, not a median per column: accuracy, prune rate and architecture belong together.
    """
    ranked = sorted(comparable(runs), key=lambda run: (run.accuracy or 0.0, run.seed))
    return ranked[(len(ranked) - 1) // 2] if ranked else None


def _folders(path: Path) -> Iterator[tuple[int, Path]]:
    named = ((re.fullmatch(r"seed-(\d+)", entry.name), entry) for entry in path.glob("seed-*"))
    found = [(int(name[1]), entry) for name, entry in named if name]
    yield from sorted(entry for entry in found if (entry[1] / "recipe.json").exists())


def _outcome(path: Path, seed: int, recipe: Recipe) -> Outcome:
    folder = RunFolder(path)
    settings = _settings(folder)
    training = settings["training"]
    if settings.get("name") != recipe.name or training["seed"] != seed:
        raise UserError(
            f"{path} holds a run of recipe '{settings.get('name')}' with seed {training['seed']}; "
            "rename the folder after what it holds"
        )
    figures = _result(folder) if folder.finished else _so_far(folder)
    return Outcome(
        seed=seed,
        finished=folder.finished,
        planned=training["epochs"],
        changed=tuple(_changes(settings, recipe.model_dump())),
        **figures,
    )


def _settings(folder: RunFolder) -> dict[str, Any]:
    """The recipe as plain values, since a run may be older than some fields of a recipe."""
    try:
        settings: dict[str, Any] = read_json(folder.recipe_file)
        _ = settings["training"]["seed"], settings["training"]["epochs"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder.recipe_file} is damaged ({error!r}); remove the run") from None
    return settings


def _changes(written: dict[str, Any], recipe: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The differences in the fields that both have."""
    for key in (key for key in recipe if key in written and f"{prefix}{key}" not in IGNORED):
        path, actual, expected = f"{prefix}{key}", written[key], recipe[key]
        if isinstance(expected, dict) and isinstance(actual, dict) and path != "method.options":
            yield from _changes(actual, expected, f"{path}.")
        elif actual != expected:
            yield f"{path}: {actual}, not {expected}"


def _result(folder: RunFolder) -> dict[str, Any]:
    result = folder.read_result()
    try:
        return {
            "epochs": result["epochs"],
            "accuracy": result["test_accuracy"],
            **{key: result[key] for key in SAME},
        }
    except KeyError as error:
        raise UserError(f"{folder.result} lacks {error}; remove it and resume the run") from None


def _so_far(folder: RunFolder) -> dict[str, Any]:
    packed = folder.records.with_name(f"{folder.records.name}.gz")
    begun = folder.records.exists() or packed.exists()
    epochs = records.read(folder.records) if begun else []
    if not epochs:
        return {"epochs": 0}
    last = epochs[-1]
    return {
        "epochs": last.epoch,
        "accuracy": last.test_accuracy,
        "prune_rate": last.prune_rate,
        "prune_rate_realised": last.prune_rate_realised,
        "architecture": last.architecture or "full model",
        "undecided": last.undecided,
        "seconds_per_epoch": median(epoch.seconds for epoch in epochs),
    }
