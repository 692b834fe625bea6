"""``l0arm train``: one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from l0arm.distributed import launched_team
from l0arm.lab.cli.console import observer, say, say_json
from l0arm.lab.cli.options import DataDir, Json, OutsideMethod, Quiet, RunsRoot, load_data
from l0arm.lab.cli.outside import use_method
from l0arm.lab.recipes.recipe import Recipe, load_recipe
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.training import train as run_training


def train(
    recipe: Annotated[
        str, typer.Argument(help="A name from `l0arm recipes`, or the path of a .toml file.")
    ],
    data_dir: DataDir = None,
    runs: RunsRoot = Path("runs"),
    run_dir: Annotated[
        Path | None, typer.Option(help="The folder of this run, instead of one under RUNS.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set training.seed=N.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Same as --set training.epochs=N.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another setting: method.lam=0.2, or none: teacher=",
        ),
    ] = None,
    method: OutsideMethod = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was cut off.")
    ] = False,
    checkpoint_every: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How often to save (within an epoch, a tenth as often); 0: at every step.",
        ),
    ] = 60.0,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard events to the run.")
    ] = False,
    tracker: Annotated[
        list[str] | None, typer.Option(help="Also keep the records there: tensorboard, wandb.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train one recipe; kill it when you like, --resume goes on bit for bit.

    The folder of the run holds the recipe, the environment, a line of JSON for each epoch,
    checkpoints without pickle, and at the end result.json.

    Examples:

        l0arm train mlp-l0-arm --set data.name=mnist-mini --epochs 3
        l0arm train lenet5-l0-arm-separate --data-dir ~/mnist --seed 1
        l0arm train lenet5-l0-arm-separate --data-dir ~/mnist --seed 1 --resume
        torchrun --nproc-per-node 2 -m l0arm train mlp-l0-arm --data-dir ~/mnist
    """
    settings = load_recipe(recipe, [*use_method(method), *_overrides(set_, seed, epochs)])
    folder = RunFolder(run_dir or default_folder(runs, settings))
    with launched_team() as team:
        quiet, as_json = quiet or not team.first, as_json and team.first  # one of them speaks
        data = load_data(settings.data.name, data_dir, quiet=quiet or as_json)
        say(f"{settings.title or settings.name}: {folder.path}", quiet=quiet or as_json)
        with observer(settings.training.epochs, quiet=quiet, as_json=as_json) as watcher:
            result = run_training(
                folder,
                settings,
                data,
                resume=resume,
                observer=watcher,
                trackers=[*(["tensorboard"] if tensorboard else []), *(tracker or [])],
                checkpoint_seconds=checkpoint_every,
                team=team,
            )
    if as_json:
        say_json({"result": result})
    else:
        say(_sentence(result), quiet=quiet)


def default_folder(runs: Path, recipe: Recipe) -> Path:
    """Where a run is kept unless told otherwise."""
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
