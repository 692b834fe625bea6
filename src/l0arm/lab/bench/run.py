"""Step times and latencies, against dense networks, side by side: `make bench`.

    python -m l0arm.lab.bench.run [--quick] [--threads 1 2] [--only lenet5 mlp wrn inference plot]

Every number of threads gets a process of its own, so that no setting leaks. A full run takes less
than ten minutes on two cores; times vary with the machine, ratios much less.
"""

from __future__ import annotations

import argparse
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
from l0arm.lab.bench import curve, inference, plot, report, steps, table
from l0arm.lab.bench.timing import Plan

SECTIONS = ("lenet5", "mlp", "wrn", "inference", "plot")


def main(line: Sequence[str] | None = None) -> None:
    """Measure in one process for each number of threads, then print and draw."""
    line = sys.argv[1:] if line is None else line
    args = parse(line)
    if args.worker:
        work(args, args.worker)
        return
    for threads in args.threads:
        command = [sys.executable, "-m", "l0arm.lab.bench.run", *line, "--worker", str(threads)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    results = {t: json.loads(path(args, t, "json").read_text()) for t in args.threads}
    for threads, result in results.items():
        text = table.text(result)
        path(args, threads, "txt").write_text(text)
        print(f"\n{text}")
    curves = {threads: r["curve"] for threads, r in results.items() if r["curve"]}
    if curves:
        plot.draw(curves, args.out / "step-time.png")


def parse(line: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it runs")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(line)


def path(args: argparse.Namespace, threads: int, suffix: str) -> Path:
    out: Path = args.out
    return out / f"steps-{threads}t.{suffix}"


def work(args: argparse.Namespace, threads: int) -> None:
    """All sections at one number of threads, as JSON."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    # A draw at p = 0.1 may close a whole group; how that runs is not the question here.
    warnings.simplefilter("ignore", l0arm.EmptyGroupWarning)
    start, before = time.perf_counter(), os.getloadavg()[0]
    result: dict[str, Any] = {"quick": args.quick, "steps": []}
    result["steps"] = [training(name, args.quick) for name in SECTIONS[:3] if name in args.only]
    result["inference"] = latencies(args.quick) if "inference" in args.only else []
    result["curve"] = fractions(args.quick) if "plot" in args.only else None
    result["environment"] = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu(),
        "load_before": before,
        "load_after": os.getloadavg()[0],
        "seconds": time.perf_counter() - start,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path(args, threads, "json").write_text(json.dumps(result, indent=1) + "\n")


def training(name: str, quick: bool) -> dict[str, Any]:
    """The steps of one network. A step of WRN takes seconds: a block is a single one."""
    say(name)
    networks: dict[str, tuple[Callable[[], steps.Network], Plan, Plan]] = {
        "lenet5": (steps.lenet5, Plan(4, 40, seconds=50), Plan(1, 10)),
        "mlp": (steps.mlp, Plan(7, 60, seconds=20), Plan(3, 40)),
        "wrn": (lambda: steps.wrn(2 if quick else 16), Plan(3, 1, 0, 80), Plan(1, 1, 0)),
    }
    make, full, short = networks[name]
    network, plan = make(), short if quick else full
    return report.section(network, plan, steps.measure(network, plan))


def latencies(quick: bool) -> list[dict[str, Any]]:
    say("inference")
    rows = inference.measure(inference.cases(quick))
    return [{**asdict(row), "limit": row.limit, "which": row.which} for row in rows]


def fractions(quick: bool) -> curve.Curve:
    say("plot")
    return curve.measure(Plan(1, 5) if quick else Plan(2, 40, seconds=25))


def cpu() -> str:
    """The processor's name, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def say(name: str) -> None:
    print(f"  {torch.get_num_threads()} threads: {name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
