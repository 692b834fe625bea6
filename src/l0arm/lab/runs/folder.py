"""The folder of a run: its files, its lock, the environment it was made in, and a small archive."""

from __future__ import annotations

import gzip
import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy
import torch

import l0arm
from l0arm.costs.timing import processor_name
from l0arm.files import read_json, remove_leftovers, write_bytes, write_json
from l0arm.lab.data import Dataset
from l0arm.lab.errors import RunFailed, UserError
from l0arm.lab.recipes.recipe import Recipe, parse_recipe

# Exclusive locks of open files. A second process gets an OSError at once. The operating system
# releases the lock when the process ends, however it ends.
if sys.platform == "win32":
    import msvcrt

    LOCKED_BYTE = 2**30  # far behind the text: Windows does not let others read a locked byte

    def _lock(file: FileIO) -> None:
        file.seek(LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def _unlock(file: FileIO) -> None:
        file.seek(LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: FileIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(file: FileIO) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


@dataclass(frozen=True)
class FolderLock:
    """The lock of a run's folder while a process holds it."""

    path: Path
    file: FileIO

    def check(self) -> None:
        """Fail if the folder is no longer the one that was locked.

        The open file keeps its inode, so that no other file can have the same one.
        """
        try:
            same = os.path.samestat(self.path.stat(), os.fstat(self.file.fileno()))
        except OSError:
            same = False
        if not same:
            raise RunFailed(
                f"{self.path.parent} was moved, deleted or replaced during the run, and nothing "
                "more is written; put the folder back and go on with --resume"
            )


@dataclass(frozen=True)
class RunFolder:
    """The files in the folder of a run."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.json"

    @property
    def environment_file(self) -> Path:
        return self.path / "environment.json"

    @property
    def records(self) -> Path:
        return self.path / "epochs.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def result(self) -> Path:
        """Written after the last epoch."""
        return self.path / "result.json"

    @property
    def finished(self) -> bool:
        return self.result.exists()

    def recipe(self) -> Recipe:
        """The recipe of the run, with all its settings."""
        return parse_recipe(self._json(self.recipe_file), str(self.recipe_file))

    def read_result(self) -> dict[str, Any]:
        """The result of a finished run."""
        result = self._json(self.result)
        if not isinstance(result, dict) or not isinstance(result.get("gates"), dict):
            raise UserError(f"{self.result} is damaged; start the run in a new folder")
        return result

    def _json(self, path: Path) -> Any:
        try:
            return read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"no {path.name} in {self.path}: is it the folder of a run?") from None
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}); start the run in a new folder") from None

    @contextmanager
    def locked(self) -> Iterator[FolderLock]:
        """Keep other processes out of the run. The lock is released when the process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / "lock"
        with path.open("ab+", buffering=0) as file:
            try:
                _lock(file)
            except OSError:
                file.seek(0)
                owner = file.read().decode(errors="replace").strip() or "?"
                raise UserError(
                    f"process {owner} is at work on {self.path}; wait for it, "
                    "or choose another folder with --run-dir"
                ) from None
            try:
                file.truncate(0)
                file.write(str(os.getpid()).encode())
                yield FolderLock(path, file)
            finally:
                _unlock(file)

    def check(self, recipe: Recipe, *, resume: bool) -> None:
        """Refuse the folder of another run, or of this run unless it is resumed."""
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
                f"({first_difference(written, recipe)}); choose another folder with --run-dir"
            )
        if not resume:
            raise UserError(f"{self.path} holds this run already; go on with it by --resume")

    def check_images(self, images: str) -> None:
        """Refuse to resume with images of another fingerprint than at the start of the run."""
        path = self.environment_file
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
        """Write recipe and environment, and delete temporary files of killed processes."""
        for folder in (self.path, self.checkpoints):
            remove_leftovers(folder)
        if not self.recipe_file.exists():
            write_json(self.recipe_file, recipe.model_dump())
        if not self.environment_file.exists():
            facts = environment(recipe, processes) | ({"images": images} if images else {})
            write_json(self.environment_file, facts)
        self.checkpoints.mkdir(exist_ok=True)  # only here, see save_checkpoint


def first_difference(one: Recipe, other: Recipe) -> str:
    """The first setting in which two recipes differ.

    >>> from l0arm.lab.recipes.recipe import load_recipe
    >>> first_difference(load_recipe("mlp-dense"), load_recipe("mlp-dense", ["training.seed=1"]))
    'training.seed: 0, not 1'
    """
    left, right = flat(one.model_dump()), flat(other.model_dump())
    for key in sorted(left.keys() | right.keys()):
        if left.get(key) != right.get(key):
            return f"{key}: {left.get(key)!r}, not {right.get(key)!r}"
    return "no difference"


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested dicts, by their dotted path."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        leaves |= flat(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return leaves


def environment(recipe: Recipe, processes: int = 1) -> dict[str, Any]:
    """What the results of a run depend on, apart from its recipe."""
    facts: dict[str, Any] = {
        "l0arm": l0arm.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "threads": recipe.training.threads,
        "processes": processes,
    }
    if recipe.training.device == "cuda":
        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return facts


def fingerprint(data: Dataset) -> str:
    """A hash of all images and labels in their order, which decides the minibatches."""
    digest = hashlib.sha256()
    for tensor in (data.train_images, data.train_labels, data.test_images, data.test_labels):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def archive(run: RunFolder, target: Path) -> Path:
    """Copy what tables and figures need from a finished run: everything but its checkpoints."""
    target.mkdir(parents=True, exist_ok=True)
    for path in (run.recipe_file, run.environment_file, run.result):
        write_bytes(target / path.name, path.read_bytes())
    packed = gzip.compress(run.records.read_bytes(), mtime=0)  # the same bytes every time
    write_bytes(target / f"{run.records.name}.gz", packed)
    return target
