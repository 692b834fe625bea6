"""Whole trainings: replays of recorded ones (``replay.py``), and short ones on the embedded digits.

The short ones are dense, gated, and gated with shrinking. Their time is CPU time from the first
step to the last epoch's record, evaluation included. What is compared is one way of training with
another, not with the paper.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import l0arm
from l0arm.files import write_json, write_text
from l0arm.lab.bench import replay
from l0arm.lab.bench.report import aligned
from l0arm.lab.data import load_dataset
from l0arm.lab.recipes.recipe import load_recipe
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.training import train

WAYS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # which recipe, and what it sets
    "dense": ("dense", ()),
    "gated": ("gated", ("training.shrink=false",)),
    "gated, shrinking": ("gated", ("training.shrink=true",)),
}
# LeNet-5 has no row: in so few steps its groups close whole, whatever the way.
RECIPES = {"MLP": {"dense": "mlp-dense", "gated": "mlp-l0-arm"}}
# Few steps: gates move faster than in the recipes. lam is divided by N, which is 2,000 here.
GATED = {"MLP": ("optimizer.gate_lr=0.05", "method.lam=0.01")}
EPOCHS = {"MLP": 40}
RECORDED = Path("results/runs")  # in a checkout; elsewhere nothing is replayed


def measure(seeds: Sequence[int], quick: bool) -> list[dict[str, Any]]:
    """One row per network, seed and way."""
    data = load_dataset("mnist-mini")
    rows: list[dict[str, Any]] = []
    for network, recipes in RECIPES.items():
        epochs = 1 if quick else EPOCHS[network]
        for seed in seeds:
            for way, (kind, settings) in WAYS.items():
                short = ("data.name=mnist-mini", "data.limit=2000", f"training.epochs={epochs}")
                own = [f"training.seed={seed}", "schedule.every=0", *settings]
                own += GATED[network] if kind == "gated" else ()
                recipe = load_recipe(recipes[kind], [*short, *own])
                with tempfile.TemporaryDirectory() as folder:
                    start = time.process_time()
                    result = train(RunFolder(Path(folder) / "run"), recipe, data)
                    seconds = time.process_time() - start
                row = {key: result[key] for key in ("test_accuracy", "prune_rate", "architecture")}
                rows.append({"network": network, "seed": seed, "way": way, "s": seconds, **row})
    return rows


def text(result: Mapping[str, Any]) -> str:
    """Replays, the trainings of all seeds, and the ratio to the dense training of the seed."""
    replays, rows = result["replays"], result["rows"]
    dense = {(r["network"], r["seed"]): r["s"] for r in rows if r["way"] == "dense"}
    lines, kinds = [], dict.fromkeys((r["network"], r["way"]) for r in rows)
    for network, way in kinds:
        own = [r for r in rows if (r["network"], r["way"]) == (network, way)]
        ratios = [r["s"] / dense[network, r["seed"]] for r in own]
        lines.append(
            (
                network,
                way,
                f"{mean(r['s'] for r in own):.1f}",
                f"{mean(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]",
                " ".join(f"{r['test_accuracy']:.2f}" for r in own),
                " ".join("-" if r["prune_rate"] is None else f"{r['prune_rate']:.2f}" for r in own),
            )
        )
    head = ("network", "training", "CPU s", "/ dense", "accuracy by seed", "prune rate by seed")
    epochs = ", ".join(f"{name} {count} epochs" for name, count in result["epochs"].items())
    title = f"Whole trainings on 2,000 embedded digits: {epochs}"
    parts = [aligned(title, head, lines)]
    if replays:
        title = "Recorded trainings of 200 epochs, step times at their states of the gates"
        columns = ("network", "training", "/ plain dense", "target", "by epoch, evenly spaced")
        parts.insert(0, aligned(title, columns, replay.lines(replays)))
    return "\n\n".join(parts) + "\n"


def work(path: str, quick: bool) -> None:
    """Train, and write JSON and text."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", l0arm.EmptyGroupWarning)
    result: dict[str, Any] = {"quick": quick, "epochs": EPOCHS}
    result["replays"] = replay.measure(RECORDED, quick)
    result["rows"] = measure((0,) if quick else (0, 1, 2, 3, 4, 5), quick)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(Path(path), result)
    write_text(Path(path).with_suffix(".txt"), text(result))


if __name__ == "__main__":
    work(**json.loads(sys.argv[1]))
