"""One run, recorded as one JSON file. Runs that are there are not repeated."""

from __future__ import annotations

import copy
import json
import platform
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_pruning as tp
from torch import nn

import l0arm
from benchmarks.peers.data import Data
from benchmarks.peers.methods import METHODS, Job
from benchmarks.peers.tasks import EPOCHS, TASKS, Task
from benchmarks.peers.training import Schedule, endless, train
from l0arm.costs import count_flops, latency
from l0arm.files import replacing, write_text

BATCHES = (1, 64)  # sizes that are timed


@dataclass(frozen=True)
class Place:
    """Where data are, and where results go.

    Attributes:
        out: Folder of the results.
        data_dir: Folder of the data sets, or None.
        validation: Measure on held-back training data, to choose settings.
    """

    out: Path
    data_dir: Path | None = None
    validation: bool = False

    def file(self, task: str, method: str, budget: float, seed: int) -> Path:
        """The file of one run."""
        folder = self.out / ("validation" if self.validation else "test")
        return folder / f"{task}-{method}-{100 * budget:g}-{seed}.json"


def run(place: Place, task_name: str, method: str, budget: float, seed: int) -> dict[str, Any]:
    """Run one method once, or read its record if there is one."""
    file = place.file(task_name, method, budget, seed)
    if file.is_file():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    task = TASKS[task_name]
    data = task.load(place.data_dir, place.validation)
    dense = trained(place, task, data, seed)
    record: dict[str, Any] = {
        "task": task_name,
        "method": method,
        "budget": budget,
        "seed": seed,
        "epochs": EPOCHS,
        "data": data.source,
        "versions": _versions(),
        "dense_score": task.measure(dense, data),
    }
    job = Job(task, data, dense, budget, seed)
    torch.manual_seed(seed)
    start = time.process_time()
    try:
        small = METHODS[method](job)
    except Exception as error:
        traceback.print_exc()
        record["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    else:
        record["cpu_seconds"] = time.process_time() - start - job.searched
        record |= measure(task, data, dense, small)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(record, indent=1) + "\n")
    return record


def measure(task: Task, data: Data, dense: nn.Module, small: nn.Module) -> dict[str, Any]:
    """Score, size and speed of the small network, beside the dense one."""
    one = task.example(data, 1)
    found: dict[str, Any] = {
        "score": task.measure(small, data),
        "macs": count_flops(small, one) // 2,
        "dense_macs": count_flops(dense, one) // 2,
        "parameters": sum(p.numel() for p in small.parameters()),
        "dense_parameters": sum(p.numel() for p in dense.parameters()),
        "faster": {},
    }
    pair = {
        name: copy.deepcopy(model).eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for name, model in (("dense", dense), ("small", small))
    }
    for size in BATCHES:
        x = task.example(data, size)
        times = latency(pair, x, rounds=15, calls=max(1, 64 // size // 6))
        found["faster"][str(size)] = times["dense"].median / times["small"].median
    return found


def trained(place: Place, task: Task, data: Data, seed: int) -> nn.Module:
    """The dense network of a seed, trained or read."""
    file = place.out / "dense" / f"{task.name}-{seed}.pt"
    torch.manual_seed(seed)
    model = task.network(1.0).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if file.is_file():
        model.load_state_dict(torch.load(file, weights_only=True))
        return model.eval()
    batches = task.batches(data, seed)
    steps = task.dense_epochs * len(batches)
    optimizer = task.optimizer(model.parameters())

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return task.loss(model(batch[0]), batch[1])

    train(model, endless(batches), loss, optimizer, Schedule(steps), steps)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        torch.save(model.state_dict(), temporary)
    return model.eval()


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch-pruning": tp.__version__,
        "l0arm": l0arm.__version__,
    }
