"""The table and the plot of all recorded runs."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.peers.tasks import TASKS
from l0arm.files import write_text

NAMES = {
    "l0arm": "l0arm.prune",
    "l0arm-rounded": "l0arm.prune, round_to=8",
    "l0arm-fast": "l0arm.prune, 40 % of the time too, round_to=8",
    "l0arm-teacher": "l0arm.prune, teacher=0.5",
    "l0arm-gates": 'l0arm.prune, choice="gates"',
    "taylor": "Torch-Pruning, Taylor",
    "l1": "Torch-Pruning, L1",
    "taylor-teacher": "Torch-Pruning, Taylor, with our teacher",
    "taylor-isomorphic": "Torch-Pruning, Taylor, isomorphic",
    "taylor-heads": "Torch-Pruning, Taylor, whole heads",
    "taylor-uniform": "Torch-Pruning, Taylor, same ratio everywhere",
    "l1-uniform": "Torch-Pruning, L1, same ratio everywhere",
    "group-norm": "Torch-Pruning, group norm, sparse learning",
    "bn": "Torch-Pruning, BN scale",
    "bn-sparse": "Torch-Pruning, BN scale, sparse learning",
    "random": "random units",
    "narrow": "narrower, from scratch",
    "dense": "dense, trained further",
}
PLOTTED = ("l0arm", "taylor", "l1", "group-norm", "bn", "random", "narrow")
Rows = dict[tuple[str, str, float], list[dict[str, Any]]]


def collected(folder: Path) -> Rows:
    """All records, by task, method and budget."""
    rows: Rows = defaultdict(list)
    for file in sorted((folder / "test").glob("*.json")):
        record = json.loads(file.read_text())
        record["data"] = record["data"].partition(": /")[0]  # no folder of this machine
        rows[record["task"], record["method"], record["budget"]].append(record)
    return rows


def table(rows: Rows) -> str:
    """A Markdown table for each task."""
    parts = []
    for task in TASKS.values():
        what = "perplexity, smaller is better" if task.is_text else "accuracy in %"
        lines = [f"## {task.title} ({what})", ""]
        lines.append(
            "| method | budget | score: mean ± sd | seeds | MACs | faster, 1 / 64 | CPU s |"
        )
        lines.append("|---|---|---|---|---|---|---|")
        for method, name in NAMES.items():
            for budget in (0.5, 0.25, 0.125):
                found = rows.get((task.name, method, budget))
                if found:
                    share = "all" if method == "dense" else f"{100 * budget:g} %"
                    lines.append(f"| {name} | {share} | {_cells(found)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _cells(found: list[dict[str, Any]]) -> str:
    good = [r for r in found if "error" not in r]
    if not good:
        return f"failed: {found[0]['error']} | {len(found)} | | | "
    scores = [r["score"] for r in good]
    spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
    macs = 100 * mean(r["macs"] / r["dense_macs"] for r in good)
    faster = " / ".join(f"{mean(r['faster'][s] for r in good):.2f}" for s in ("1", "64"))
    seconds = mean(r["cpu_seconds"] for r in good)
    return f"{mean(scores):.2f}{spread} | {len(good)} | {macs:.1f} % | {faster} | {seconds:.1f}"


def plot(rows: Rows, file: Path) -> None:
    """Score against the share of MACs, one panel for each task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 8.5), layout="constrained")
    for axis, task in zip(axes.flat, TASKS.values(), strict=True):
        for number, method in enumerate(PLOTTED):
            points = []
            for budget in (0.125, 0.25, 0.5):
                scores = [
                    r["score"] for r in rows.get((task.name, method, budget), []) if "score" in r
                ]
                if scores:
                    middle = mean(scores)
                    points.append(
                        (100 * budget, middle, middle - min(scores), max(scores) - middle)
                    )
            if points:
                x, y, low, high = zip(*points, strict=True)
                strong = method == "l0arm"
                axis.errorbar(
                    *(x, y, (low, high)),
                    label=NAMES[method],
                    color=f"C{number}",  # the same in all panels
                    marker="osv^D<>"[number],
                    linewidth=2.5 if strong else 1.2,
                    capsize=3,
                )
        further = [r["score"] for r in rows.get((task.name, "dense", 0.25), []) if "score" in r]
        if further:
            axis.axhline(mean(further), color="grey", linewidth=1, label=NAMES["dense"])
        axis.set_xscale("log")
        axis.set_xticks((12.5, 25, 50), ("12.5", "25", "50"))
        axis.minorticks_off()
        axis.set_title(task.title)
        axis.set_xlabel("MACs left, % of dense")
        axis.set_ylabel("test perplexity" if task.is_text else "test accuracy, %")
        axis.grid(alpha=0.3)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Write peers.md, peers.json and peers.png."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.report")
    parser.add_argument("runs", type=Path, help="the --out folder of the runs")
    parser.add_argument("--into", type=Path, default=Path("results"))
    options = parser.parse_args()
    rows = collected(options.runs)
    head = (
        "# prune beside other ways to make a network smaller\n\n"
        "Made by `python -m benchmarks.peers --out RUNS` and `python -m benchmarks.peers.report "
        "RUNS`. Test data; mean and standard deviation over seeds. Rows with fewer than three "
        "seeds, and rows that are missing, were not run. *Faster* is the time of the dense "
        "network divided by that of the small one, for batches of 1 and 64, on one thread of a "
        "machine that other programs used too: it is noisy. *CPU s* is the process time of the "
        "whole method, without the search for the ratio that fits the budget. "
        "[docs/peers.md](../docs/peers.md) reads the table.\n\n"
    )
    write_text(options.into / "peers.md", head + table(rows))
    records = [record for found in rows.values() for record in found]
    write_text(options.into / "peers.json", json.dumps(records, indent=1) + "\n")
    plot(rows, options.into / "peers.png")


if __name__ == "__main__":
    main()
