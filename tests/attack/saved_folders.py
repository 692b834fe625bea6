"""Damaged and hostile saved folders: refused with a reason, or the network that was saved.

Each is loaded by ``l0arm.load``, printed by ``l0arm inspect``, and built as ``l0arm export`` does.
A case may take no more than two gigabytes and a minute.
"""

from __future__ import annotations

import io
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tests.helpers.hostile_folders import MUTATIONS
from torch import nn

import l0arm
from l0arm import SavedError
from l0arm.lab.cli.inspect import inspect
from l0arm.lab.errors import UserError
from l0arm.lab.runs.trained import deployment_of_saved

BYTES, SECONDS = 2 * 2**30, 60
RECORD = {"model": {"name": "mlp"}, "image": [1, 28, 28], "classes": 10}


class Attending(nn.Module):
    """Blocks, indices, an exchanged attention and buffers in few weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8)
        self.inner = nn.MultiheadAttention(8, 4, batch_first=True)
        self.wide, self.narrow = nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = x + self.inner(x, x, x)[0]
        return self.narrow(torch.relu(self.wide(x.mean(1))))


class Saved:
    """A saved network, its factory, and what it computes."""

    def __init__(self, factory: Callable[[], nn.Module], size: tuple[int, ...], path: Path) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.factory, self.x = factory, torch.rand(size)
            gated = l0arm.sparsify(factory(), example_inputs=self.x, method="l0-arm", lam=0.0)
            gated.eval().phi.data.uniform_(-0.4, 1.0)
            l0arm.save(gated, path, metrics={"right": 9.5, "network": RECORD})
        self.files = {file.name: file.read_bytes() for file in path.iterdir()}
        self.original = l0arm.load(path, factory)

    def mutant(self, folder: Path, kind: str, chance: random.Random) -> None:
        """Write the folder with damage."""
        folder.mkdir()
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        MUTATIONS[kind](folder, chance)

    def differs(self, model: nn.Module, folder: Path) -> str:
        """What is wrong with a network that was loaded: it must hold the tensors of the file.

        If the file of tensors is the one that was saved, it must be the network that was saved.
        """
        wanted = load_file(folder / "model.safetensors")
        found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        if not all(torch.equal(found[name], tensor) for name, tensor in wanted.items()):
            return "the network does not hold the tensors of the file"
        if (folder / "model.safetensors").read_bytes() != self.files["model.safetensors"]:
            return ""
        with torch.no_grad():
            same = torch.equal(model(self.x), self.original(self.x))
        return "" if same else "the network computes something else"


def attack(chance: random.Random, folder: Path) -> Iterator[str]:
    saved = [
        Saved(Attending, (2, 2, 4, 4), folder / "attending"),
        Saved(l0arm.models.MLP, (2, 784), folder / "mlp"),
    ]
    kinds = list(MUTATIONS)
    for number in count():
        place, seed, kind = folder / str(number), chance.getrandbits(32), kinds[number % len(kinds)]
        network = saved[1] if kind == "network" else chance.choice(saved)
        network.mutant(place, kind, random.Random(seed))
        try:
            with limits():
                failure = _try(network, place)
        except Exception as error:
            failure = f"{type(error).__name__}: {str(error)[:300]}"
        yield (
            f"{type(network.original).__name__}, {kind}, seed {seed}: {failure}" if failure else ""
        )
        shutil.rmtree(place)


def _try(network: Saved, folder: Path) -> str:
    """Load, print and build a folder. Returns what went wrong."""
    try:
        failure = network.differs(l0arm.load(folder, network.factory), folder)
    except SavedError as error:
        failure = _wrong_reason(error)
    for command in (_printed, _built):
        try:
            command(folder)
        except (SavedError, UserError) as error:
            failure = failure or _wrong_reason(error)
    return failure


def _wrong_reason(error: Exception) -> str:
    return "" if 20 < len(str(error)) < 2000 else f"no reason of a line: {str(error)[:300]!r}"


def _printed(folder: Path) -> None:
    for as_json in (False, True):
        with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
            inspect(folder, as_json=as_json)


def _built(folder: Path) -> None:
    found = deployment_of_saved(folder, None, None)
    with torch.no_grad():
        found.compact(found.example)


@contextmanager
def limits() -> Iterator[None]:
    """Bound the address space that is taken beyond that of now, and the time."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"not finished in {SECONDS} s")

    taken = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
