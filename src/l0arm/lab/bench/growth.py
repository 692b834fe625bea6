"""How time and memory of a gated step grow with gates, width and depth, and memory against dense.

Each exponent is the slope of log(time) over log(size) between the two largest sizes. A step of
linear cost has 1; the matrix products of a layer grow with the square of its width.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import l0arm
from l0arm.files import write_json, write_text
from l0arm.lab.bench import networks, steps
from l0arm.lab.bench.memory import step_peak, tensor_peak
from l0arm.lab.bench.report import aligned
from l0arm.models import MLP
from l0arm.optim import Adam

Step = Callable[[], object]
GATES = (100, 1_000, 10_000, 100_000, 1_000_000)
WIDTHS = (64, 128, 256, 512, 1024)
DEPTHS = (4, 16, 64, 256)
MEGABYTE = 2**20
AIM = 0.8  # of the memory of a dense step, with half open


@dataclass(frozen=True)
class Series:
    """One quantity that grows: the widths of the network for each of its sizes."""

    name: str
    sizes: tuple[int, ...]
    widths: Callable[[int], tuple[int, ...]]
    batch: int


SERIES = (
    Series("gates", GATES, lambda n: (1, n - 1, 2), 4),
    Series("width", WIDTHS, lambda w: (64, w, w, 10), 64),
    Series("depth", DEPTHS, lambda d: (*[16] * (d + 1), 10), 16),
)


def growth(quick: bool) -> list[dict[str, Any]]:
    """Milliseconds of CPU time and bytes of a dense and of a gated step, for every size."""
    rows = []
    for series in SERIES:
        for size in series.sizes[:2] if quick else series.sizes:
            widths = series.widths(size)
            x, y = torch.rand(series.batch, widths[0]), torch.zeros(series.batch).long()
            row: dict[str, Any] = {"series": series.name, "size": size}
            for name, make in (("dense", _dense), ("gated", _gated)):
                model = partial(MLP, widths)
                row[f"{name}_bytes"] = step_peak(partial(make, model, x, y))
                row[f"{name}_ms"] = _milliseconds(make(model, x, y), 3 if quick else 7)
            rows.append(row)
    return rows


def against_dense(quick: bool) -> list[dict[str, Any]]:
    """Peak memory of a gated step with half open, over that of a dense step."""
    cases = [steps.mlp(), steps.lenet5(), steps.resnet20(16 if quick else 128)]
    cases += [steps.transformer(4 if quick else 32)] + ([] if quick else [steps.wrn()])
    rows = []
    for network in cases:
        row: dict[str, Any] = {"network": network.name}
        for name, make in (("dense", _dense_of), ("gated", _half_open_of)):
            row[f"{name}_tensors"] = tensor_peak(partial(make, network))
            row[f"{name}_bytes"] = step_peak(partial(make, network))
        rows.append(row)
    return rows


def exponents(rows: list[dict[str, Any]], value: str) -> dict[str, float]:
    """The slope of log(value) over log(size) between the two largest sizes of each series.

    >>> two = [{"series": "width", "size": n, "ms": 3.0 * n * n} for n in (10, 20)]
    >>> {name: round(slope, 6) for name, slope in exponents(two, "ms").items()}
    {'width': 2.0}
    """
    found = {}
    for name in dict.fromkeys(row["series"] for row in rows):
        one, two = [row for row in rows if row["series"] == name][-2:]
        if one[value] and two[value]:
            rise = math.log(two[value] / one[value])
            found[name] = rise / math.log(two["size"] / one["size"])
    return found


def text(result: dict[str, Any]) -> str:
    """Both tables, and the exponents."""
    rows = [
        (
            row["series"],
            str(row["size"]),
            *(f"{row[f'{name}_ms']:.2f}" for name in ("dense", "gated")),
            *(_megabytes(row[f"{name}_bytes"]) for name in ("dense", "gated")),
        )
        for row in result["growth"]
    ]
    head = ("series", "size", "dense ms", "gated ms", "dense MB", "gated MB")
    title = "CPU time and peak memory of a step, all gates undecided, Adam"
    lines = [aligned(title, head, rows), ""]
    for value in ("dense_ms", "gated_ms", "dense_bytes", "gated_bytes"):
        slopes = exponents(result["growth"], value)
        found = ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items())
        lines.append(f"exponents of {value}: {found}")
    against = [
        (
            row["network"],
            "",
            *(
                cell
                for kind in ("tensors", "bytes")
                for cell in _compared(row[f"dense_{kind}"], row[f"gated_{kind}"])
            ),
        )
        for row in result["memory"]
    ]
    title = (
        f"Peak memory of a step, half open, in MB: of its tensors (aim: ratio {AIM}), and by which "
        "the process grows"
    )
    titles = ("network", "", *("dense", "gated", "ratio") * 2)
    lines += ["", aligned(title, titles, against)]
    return "\n".join(lines) + "\n"


def _compared(dense: int | None, gated: int | None) -> tuple[str, str, str]:
    ratio = f"{gated / dense:.2f}" if dense and gated else ""
    return _megabytes(dense), _megabytes(gated), ratio


def _megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / MEGABYTE:.1f}"


def _milliseconds(step: Step, repeats: int) -> float:
    """The median CPU time of a step."""
    step()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        step()
        times.append(1e3 * (time.process_time() - start))
    return median(times)


def _dense(model: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
    return steps.dense(model(), Adam, [(x, y)]).step


def _gated(model: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
    network = steps.Network("", model, model, torch.optim.Adam, [(x, y)], [(x, y)], {})
    return steps.gated_step(l0arm.sparsify(model(), method="l0-arm", lam=steps.LAM), network)


def _dense_of(network: steps.Network) -> Step:
    return steps.dense(network.ours(), network.ours_optimizer, network.our_batches).step


def _half_open_of(network: steps.Network) -> Step:
    gated = network.gate(network.ours(), method="l0-arm", lam=steps.LAM)
    networks.set_gates(gated, networks.uniform(0.5))
    return steps.gated_step(gated, network)


def work(path: str, quick: bool) -> None:
    """Measure, and write JSON and text."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", l0arm.EmptyGroupWarning)
    result = {"quick": quick, "growth": growth(quick), "memory": against_dense(quick)}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(Path(path), result)
    write_text(Path(path).with_suffix(".txt"), text(result))


if __name__ == "__main__":
    work(**json.loads(sys.argv[1]))
