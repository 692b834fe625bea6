"""The time of a whole training, from step times at the states of the gates that a run recorded.

A run of 200 epochs takes hours. Its record has a histogram of the open probabilities for each
epoch. Here gates are set to such states, a few epochs apart, and steps are timed beside dense ones.
The mean over the epochs (by the trapezoid rule) is the ratio for the whole training. Evaluations
are left out: they cost a dense training as much. In the lowest bin, below 0.05, it is not known
which gates are below the bound of shrinking: one row keeps them all, the other removes them all.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import l0arm
from l0arm.lab.bench import networks, steps
from l0arm.lab.bench.timing import Contestant, Plan, Spread, interleave

RUNS = {"MLP": "mlp-l0-arm", "LeNet-5": "lenet5-l0-arm-separate"}
MAKE: dict[str, Callable[[], steps.Network]] = {"MLP": steps.mlp, "LeNet-5": steps.lenet5}
TARGETS = {"MLP": 0.7, "LeNet-5": 0.25}
POINTS = 9  # epochs whose state is measured
KEPT, REMOVED = "gated", "gated, lowest bin removed"
DENSE = "dense"


def recorded(run: Path) -> list[dict[str, Any]]:
    """The epochs of a run, as they are stored in ``results``."""
    with gzip.open(run / "epochs.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def probabilities(record: dict[str, Any], block: int = 16) -> Tensor:
    """Open probabilities with the histograms of an epoch: midpoints of the bins.

    Inputs of a layer that come from filters in blocks are open where the filter is, an equal number
    for each, as in a trained network. Elsewhere the order says nothing, and is random.

    Example:
        >>> group = {"units": 3, "histogram": [1, 0, 0, 2]}
        >>> probabilities({"groups": [group]}).sort().values.tolist()
        [0.125, 0.875, 0.875]
    """
    parts: list[Tensor] = []
    for group in record["groups"]:
        counts = torch.tensor(group["histogram"])
        middle = (torch.arange(len(counts)) + 0.5) / len(counts)
        values = middle.repeat_interleave(counts).flip(0)  # the largest first
        if parts and len(parts[-1]) * block == len(values):
            turns = torch.arange(block) + block * (parts[-1] < 0.5)[:, None]
            order = turns.flatten().argsort(stable=True)
        else:
            generator = torch.Generator().manual_seed(len(values))
            order = torch.randperm(len(values), generator=generator)
        parts.append(torch.empty_like(values).scatter_(0, order, values))
    return torch.cat(parts)


def measure(runs: Path, quick: bool) -> list[dict[str, Any]]:
    """A row per network and way, for the networks whose run is in the folder."""
    plan = Plan(1, 2, warm=1) if quick else Plan(5, 12, warm=4, seconds=60)
    found = []
    for name, recipe in RUNS.items():
        run = runs / recipe / "seed-0"
        if (run / "epochs.jsonl.gz").is_file():
            epochs = recorded(run)
            chosen = np.linspace(0, len(epochs) - 1, 2 if quick else POINTS).round().astype(int)
            found += _rows(name, [epochs[number] for number in chosen], plan)
    return found


def _rows(name: str, epochs: Sequence[dict[str, Any]], plan: Plan) -> list[dict[str, Any]]:
    network = MAKE[name]()
    plain = steps.dense(network.plain(), network.optimizer, network.batches)
    contestants: dict[tuple[str, int], Contestant] = {(DENSE, 0): plain}
    gated = network.gate(network.ours(), method="l0-arm", lam=steps.LAM)
    step = steps.gated_step(gated, network)
    for record in epochs:
        state = probabilities(record)
        prepare = partial(networks.set_gates, gated, partial(_known, state))
        contestants[KEPT, record["epoch"]] = Contestant(step, prepare)
        contestants[REMOVED, record["epoch"]] = Contestant(
            steps.gated_step(_without_lowest(network, state), network)
        )
    times = interleave(contestants, plan)
    numbers = [record["epoch"] for record in epochs]
    rows = []
    for way in (KEPT, REMOVED):
        ratios = [np.divide(times[way, number], times[DENSE, 0]) for number in numbers]
        between = np.diff(numbers)[:, None]  # the trapezoid rule
        means = (np.array(ratios[1:]) + np.array(ratios[:-1])) / 2
        whole = (means * between).sum(0) / (numbers[-1] - numbers[0])
        spread = Spread.of(whole.tolist())
        rows.append(
            {
                "network": name,
                "way": way,
                "ratio": [spread.median, spread.low, spread.high],
                "epochs": numbers,
                "by_epoch": [float(np.median(each)) for each in ratios],
                "target": TARGETS[name],
            }
        )
    return rows


def _known(state: Tensor, gated: l0arm.Gated) -> Tensor:
    return state


def _without_lowest(network: steps.Network, state: Tensor) -> l0arm.Gated:
    """A network that was shrunk to the gates above the lowest bin."""
    gated = network.gate(network.ours(), method="l0-arm", lam=steps.LAM)
    networks.set_gates(gated, partial(_known, state))
    return l0arm.shrink(gated, bound=0.05)


def lines(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The rows as cells of a table."""
    return [
        (
            row["network"],
            row["way"],
            "{:.3f} [{:.2f}-{:.2f}]".format(*row["ratio"]),
            f"{row['target']:.2f}",
            " ".join(f"{ratio:.2f}" for ratio in row["by_epoch"]),
        )
        for row in rows
    ]
