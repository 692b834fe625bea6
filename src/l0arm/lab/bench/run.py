"""The step benchmark: all sections, one process per number of threads, then text and plot.

A process of its own for every number of threads, so that no setting leaks. A full run takes about
half an hour on two idle cores. Times vary with the machine, ratios much less. Sections that are
not measured stay as they were in the folder.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import l0arm
from l0arm.files import write_json, write_text
from l0arm.lab.bench import inference, planning, report, steps
from l0arm.lab.bench.comparing import merged, worse
from l0arm.lab.bench.timing import Plan
from l0arm.lab.runs.device import keep_freed_memory

TRAINING = ("lenet5", "mlp", "wrn", "lenet5-shrunk", "mlp-shrunk", "resnet20", "transformer")
STEPS = (*TRAINING, "inference", "plot")
ALONE = ("growth", "whole")  # each is a module of its own, on one thread
SECTIONS = (*STEPS, *ALONE, "plan")


def run(
    sections: Sequence[str] = SECTIONS,
    threads: Sequence[int] = (1, 2),
    *,
    quick: bool = False,
    out: Path = Path("benchmarks/results"),
) -> None:
    """Measure the sections, print the tables, and write text, JSON and plot to ``out``."""
    began = time.perf_counter()
    if "plan" in sections:
        planning.run(quick=quick, out=out, cpu=_cpu())
    results, slower = {}, list[str]()
    for count in threads if set(sections) & set(STEPS) else ():
        stored = out / f"steps-{count}t.json"
        before = _read(stored)
        job = {"sections": sections, "threads": count, "quick": quick, "path": str(stored)}
        _child("run", job, count)
        results[count] = now = _read(stored)
        if before:
            slower += [f"{count} threads, {row}" for row in worse(before, now)]
            results[count] = merged(before, now)
            write_json(stored, results[count])
    for count, result in results.items():
        text = report.text(result)
        write_text(out / f"steps-{count}t.txt", text)
        print(f"\n{text}")
    for name in ALONE:
        if name in sections:
            stored = out / f"{name}.json"
            before = _read(stored)
            print(f"  1 thread: {name}", file=sys.stderr, flush=True)
            _child(name, {"path": str(stored), "quick": quick}, 1)
            slower += worse(before, _read(stored)) if before else []
            print(f"\n{stored.with_suffix('.txt').read_text()}")
    for row in slower:
        print(f"slower than the figures that were in {out}: {row}")
    curves = {count: result["curve"] for count, result in results.items() if result["curve"]}
    if curves:
        report.draw(curves, out / "step-time.png")
    print(f"measured {', '.join(sections)} in {(time.perf_counter() - began) / 60:.1f} minutes")


def _read(path: Path) -> dict[str, Any]:
    """A stored result. Empty: there is none."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _child(module: str, job: dict[str, Any], threads: int) -> None:
    """Run a module of this package in a process of its own."""
    subprocess.run(
        [sys.executable, "-m", f"l0arm.lab.bench.{module}", json.dumps(job)],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )


def work(sections: Sequence[str], threads: int, quick: bool, path: str) -> None:
    """Measure the sections with one number of threads, and write JSON."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    keep_freed_memory()  # else the same step takes 1 or 1.4 times as long, by chance
    # At p = 0.1 a draw may close a whole group. Its time is measured all the same.
    warnings.simplefilter("ignore", l0arm.EmptyGroupWarning)
    start, before = time.perf_counter(), os.getloadavg()[0]
    result: dict[str, Any] = {"quick": quick, "steps": []}
    result["steps"] = [_training(name, quick) for name in TRAINING if name in sections]
    result["inference"] = _inference(quick) if "inference" in sections else []
    result["curve"] = _curve(quick) if "plot" in sections else None
    result["environment"] = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "load_before": before,
        "load_after": os.getloadavg()[0],
        "seconds": time.perf_counter() - start,
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(Path(path), json.dumps(result, indent=1) + "\n")


def _training(name: str, quick: bool) -> dict[str, Any]:
    """The steps of one network. A step of WRN takes seconds, so a block is a single step."""
    _announce(name)
    networks: dict[str, tuple[Callable[[], steps.Network], Plan, Plan]] = {
        "lenet5": (steps.lenet5, Plan(4, 40, seconds=50), Plan(1, 10)),
        "mlp": (steps.mlp, Plan(7, 60, seconds=20), Plan(3, 40)),
        "wrn": (lambda: steps.wrn(2 if quick else 16), Plan(3, 1, 0, 80), Plan(1, 1, 0)),
        "lenet5-shrunk": (
            lambda: steps.shrunk(steps.lenet5(), "converged 6-10-39-11"),
            *(Plan(4, 40, seconds=30), Plan(1, 10)),
        ),
        "mlp-shrunk": (
            lambda: steps.shrunk(steps.mlp(), "converged 159-74-73"),
            *(Plan(7, 60, seconds=10), Plan(3, 40)),
        ),
        "resnet20": (
            lambda: steps.resnet20(16 if quick else 128),
            # New widths mean new kernels, which a training compiles once: more untimed steps.
            *(Plan(3, 4, warm=6, seconds=60), Plan(1, 1, 0)),
        ),
        "transformer": (
            lambda: steps.transformer(2 if quick else 32),
            *(Plan(4, 8, seconds=40), Plan(1, 1, 0)),
        ),
    }
    make, full, short = networks[name]
    network, plan = make(), short if quick else full
    return report.section(network, plan, steps.measure(network, plan))


def _inference(quick: bool) -> list[dict[str, Any]]:
    _announce("inference")
    rows = inference.measure(inference.cases(quick))
    return [{**asdict(row), "limit": row.limit, "which": row.which} for row in rows]


def _curve(quick: bool) -> steps.Curve:
    _announce("plot")
    return steps.measure_curve(Plan(1, 5) if quick else Plan(2, 40, seconds=25))


def _announce(section: str) -> None:
    print(f"  {torch.get_num_threads()} threads: {section}", file=sys.stderr, flush=True)


def _cpu() -> str:
    """The name of the processor, if the system reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    work(**json.loads(sys.argv[1]))
