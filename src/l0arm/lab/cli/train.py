"""``l0arm train``: one run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from l0arm.distributed import launched_team
from l0arm.lab.cli.console import progress_callback, say, say_json
from l0arm.lab.cli.options import DataDir, Json, Quiet, RunsRoot, load_data
from l0arm.lab.cli.outside import use_method
from l0arm.lab.recipes.recipe import Recipe, load_recipe
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.training import train as run_training


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A name from `l0arm recipes`, or the path of a .toml file."
        ),
    ],
    data_dir: DataDir = None,
    runs: RunsRoot = Path("runs"),
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of this run, instead of RUNS/RECIPE/seed-N.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set training.seed=N.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Same as --set training.epochs=N.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting: method.lam=0.2 (divided by N). No value removes it: teacher=",
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Another method, or package.module:factory of your own.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was interrupted.")
    ] = False,
    checkpoint_every: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Time between checkpoints (ten times as long within an epoch). 0: every step.",
        ),
    ] = 60.0,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard events to the run.")
    ] = False,
    tracker: Annotated[
        list[str] | None,
        typer.Option(help="Also record to tensorboard or wandb. Repeatable."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train one recipe; --resume continues an interrupted run, bit for bit.

    Writes the folder of the run: recipe.json, environment.json, a line of epochs.jsonl for each
    epoch, checkpoints (without pickle), and result.json at the end.

    Examples:

        l0arm train mlp-l0-arm --set data.name=mnist-mini --epochs 3
        l0arm train lenet5-l0-arm-separate --data-dir ~/mnist --seed 1
        l0arm train lenet5-l0-arm-separate --data-dir ~/mnist --seed 1 --resume
        torchrun --nproc-per-node 2 -m l0arm train mlp-l0-arm --data-dir ~/mnist
    """
    settings = load_recipe(recipe, [*use_method(method), *_overrides(set_, seed, epochs)])
    if method is not None:
        settings = with_other_method(settings)
    folder = RunFolder(run_dir or default_folder(runs, settings))
    with launched_team() as team:
        quiet, as_json = quiet or not team.first, as_json and team.first  # only one process prints
        data = load_data(settings.data.name, data_dir, quiet=quiet or as_json)
        say(f"{settings.title or settings.name}: {folder.path}", quiet=quiet or as_json)
        with progress_callback(settings.training.epochs, quiet=quiet, as_json=as_json) as callback:
            result = run_training(
                folder,
                settings,
                data,
                resume=resume,
                callback=callback,
                trackers=[*(["tensorboard"] if tensorboard else []), *(tracker or [])],
                checkpoint_seconds=checkpoint_every,
                team=team,
            )
    if as_json:
        say_json({"result": result})
    else:
        say(_sentence(result), quiet=quiet)


def with_other_method(recipe: Recipe) -> Recipe:
    """The recipe under a name of its own: it is no longer the paper's row.

    >>> with_other_method(load_recipe("mlp-l0-arm", ['method.name="l0-hc"'])).name
    'mlp-l0-arm-with-l0-hc'
    """
    name = recipe.method.name.rpartition(":")[2]
    return recipe.model_copy(
        update={
            "name": f"{recipe.name}-with-{re.sub(r'[^A-Za-z0-9]+', '-', name)}",
            "title": f"{recipe.title or recipe.name}, with method {recipe.method.name}",
            "paper": None,
            "control": None,
        }
    )


def default_folder(runs: Path, recipe: Recipe) -> Path:
    """The folder of a run, unless --run-dir names another."""
    return runs / recipe.name / f"seed-{recipe.training.seed}"


def _overrides(set_: list[str] | None, seed: int | None, epochs: int | None) -> list[str]:
    overrides = list(set_ or [])
    if seed is not None:
        overrides.append(f"training.seed={seed}")
    if epochs is not None:
        overrides.append(f"training.epochs={epochs}")
    return overrides


def _sentence(result: dict[str, Any]) -> str:
    return (
        f"{result['epochs']} epochs: {result['test_accuracy']:.2f} % right, "
        f"{result['architecture']}, {result['prune_rate']:.2f} % pruned as the paper counts, "
        f"{result['prune_rate_realised']:.2f} % realised, "
        f"{result['seconds_per_epoch']:.1f} s an epoch"
    )
