"""Jobs of a campaign that take seconds: the embedded digits, few of them."""

from pathlib import Path

from l0arm.lab.recipes.recipe import load_recipe
from l0arm.lab.runs.campaign import Job
from l0arm.lab.runs.folder import RunFolder

QUICK = ["data.name=mnist-mini", "data.limit=200", "training.epochs=1"]


def job(runs: Path, name: str = "mlp-dense", seed: int = 0, *more: str) -> Job:
    """A job whose command line says what its recipe does."""
    settings = [*QUICK, *more, f"training.seed={seed}"]
    made = Job(load_recipe(name, settings), RunFolder(runs / name / f"seed-{seed}"))
    made.command = lambda data_dir: [  # type: ignore[method-assign]
        "train", name, "--resume", "--quiet", "--run-dir", str(made.folder.path),
        *(part for setting in settings for part in ("--set", setting)),
    ]  # fmt: skip
    return made
