"""The commands of the comparison."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.methods import METHODS
from benchmarks.peers.running import Place, run
from benchmarks.peers.tasks import TASKS

BUDGETS = (25.0, 12.5, 50.0)  # per cent of the operations, most telling first
MAIN = ("taylor", "l1", "l0arm")  # methods that run before the others


def main() -> None:
    """Run what the options name; without options, everything. Runs that are there are skipped."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Compare l0arm.prune with Torch-Pruning and simpler ways. Without --task, "
        "--budget, --method or --seed, all of them. Finished runs are not repeated.",
    )
    parser.add_argument("--task", action="append", choices=list(TASKS))
    parser.add_argument("--budget", action="append", type=float, help="per cent of the MACs")
    parser.add_argument("--method", action="append", choices=list(METHODS))
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    parser.add_argument("--validation", action="store_true", help="measure on held-back data")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = Place(options.out, options.data_dir, options.validation)
    rows = itertools.product(
        options.seed or (0, 1, 2),
        options.budget or BUDGETS,
        options.method or METHODS,
        options.task or TASKS,
    )
    for seed, budget, method, task in sorted(rows, key=_urgency):
        if method == "dense" and budget != BUDGETS[0]:
            continue  # it has no budget
        _print(run(place, task, method, budget / 100, seed))


def _urgency(row: tuple[int, float, str, str]) -> tuple[bool, bool, int]:
    """Sorts the most telling rows first, so that a table exists whenever time runs out."""
    seed, budget, method, _ = row
    return method not in MAIN, method not in MAIN and budget not in BUDGETS[:2], seed


def _print(record: dict[str, Any]) -> None:
    who = "{task} {method} {budget:.1%} seed {seed}".format(**record)
    if "error" in record:
        print(f"{who}: {record['error']}", flush=True)
        return
    faster = ", ".join(f"{times:.2f}x at {size}" for size, times in record["faster"].items())
    print(
        f"{who}: {record['dense_score']:.2f} -> {record['score']:.2f}, MACs "
        f"{record['macs'] / record['dense_macs']:.2%}, {faster}, {record['cpu_seconds']:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
