"""The folder of a run: its recipe, environment, records and checkpoints, and a lock."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

import l0arm
from l0arm.files import remove_leftovers, write_json
from l0arm.lab.recipes.recipe import Recipe, parse_recipe
from l0arm.lab.runs.errors import UserError


@dataclass(frozen=True)
class RunFolder:
    """Paths inside the folder of a run."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.json"

    @property
    def records(self) -> Path:
        return self.path / "epochs.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def result(self) -> Path:
        """Written when the last epoch is done."""
        return self.path / "result.json"

    @property
    def finished(self) -> bool:
        return self.result.exists()

    def recipe(self) -> Recipe:
        """The recipe of the run, with all its settings."""
        return parse_recipe(self._json(self.recipe_file), str(self.recipe_file))

    def read_result(self) -> dict[str, Any]:
        """What came out, once the run is done."""
        result = self._json(self.result)
        if not isinstance(result, dict) or not isinstance(result.get("gates"), dict):
            raise UserError(f"{self.result} is damaged; start the run in a new folder")
        return result

    def _json(self, path: Path) -> Any:
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"no {path.name} in {self.path}: is it the folder of a run?") from None
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}); start the run in a new folder") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process works on the run meanwhile; the lock goes with the process."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise UserError(
                    f"process {file.read().strip() or '?'} is at work on {self.path}; wait for it, "
                    "or choose another folder with --run-dir"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def check(self, recipe: Recipe, *, resume: bool) -> None:
        """Refuse a folder that is another run's, or that of this one without ``resume``."""
        if not self.recipe_file.exists():
            if any(p.name != "lock" and not p.name.startswith(".") for p in self.path.iterdir()):
                raise UserError(
                    f"{self.path} is not empty and not the folder of a run; choose another one"
                )
            return
        written = self.recipe()
        if written != recipe:
            raise UserError(
                f"{self.path} holds a run of recipe '{written.name}' with other settings "
                f"({difference(written, recipe)}); choose another folder with --run-dir"
            )
        if not resume:
            raise UserError(f"{self.path} holds this run already; go on with it by --resume")

    def check_images(self, images: str) -> None:
        """Refuse to go on with other images than the run began with."""
        path = self.path / "environment.json"
        facts = self._json(path) if path.exists() else {}
        if not isinstance(facts, dict):
            raise UserError(f"{path} is damaged; start the run in a new folder")
        began = facts.get("images", images)
        if began != images:
            raise UserError(
                f"the run in {self.path} began with other images (fingerprint {began}, now "
                f"{images}); give it those again, or choose another folder with --run-dir"
            )

    def claim(self, recipe: Recipe, processes: int = 1, images: str = "") -> None:
        """Make the folder that of this recipe, and clear away what a killed process left."""
        for folder in (self.path, self.checkpoints):
            remove_leftovers(folder)
        if not self.recipe_file.exists():
            write_json(self.recipe_file, recipe.model_dump())
        if not (self.path / "environment.json").exists():
            facts = environment(recipe, processes) | ({"images": images} if images else {})
            write_json(self.path / "environment.json", facts)


def difference(one: Recipe, other: Recipe) -> str:
    """The first setting in which two recipes differ.

    >>> from l0arm.lab.recipes.recipe import load_recipe
    >>> difference(load_recipe("mlp-dense"), load_recipe("mlp-dense", ["training.seed=1"]))
    'training.seed: 0, not 1'
    """
    left, right = flat(one.model_dump()), flat(other.model_dump())
    for key in sorted(left.keys() | right.keys()):
        if left.get(key) != right.get(key):
            return f"{key}: {left.get(key)!r}, not {right.get(key)!r}"
    return "no difference"


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested tables, by path."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        leaves |= flat(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return leaves


def environment(recipe: Recipe, processes: int = 1) -> dict[str, Any]:
    """What a run depends on beside its recipe."""
    return {
        "l0arm": l0arm.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": recipe.training.threads,
        "processes": processes,
        **(_gpu() if recipe.training.device == "cuda" else {}),
    }


def _gpu() -> dict[str, Any]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }
