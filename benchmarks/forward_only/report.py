"""The tables and the plot of the benchmark, from its records."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.forward_only.methods import METHODS
from l0arm.files import write_text

HEAD = """# Units chosen for a frozen language model

Made by `python -m benchmarks.forward_only --out DIR`. A decoder of characters with {size:,}
parameters but the embeddings, trained on sources of Python's standard library, is cut to a share of
these parameters: heads and MLP units go, and no weight is changed. Bits per character on held-out
files, mean ± standard deviation over seeds (their number in brackets if it is not three). The dense
network has {dense:.3f}. Searches have {forwards} forward-equivalents; a backward pass counts two.
CPU seconds are those of the whole choice; the peak counts all tensors alive at once, weights
included, relative to inference of the dense network.
[docs/large-models.md](../docs/large-models.md) reads the tables.
"""


def report(out: Path, into: Path) -> None:
    """Write forward-only.md, .json and .png."""
    files = sorted((out / "records").glob("test-*.json"))
    records = [json.loads(file.read_text()) for file in files]
    longest = max(record["forwards"] for record in records)
    memory = {}
    for file in (out / "records").glob("memory-*.json"):
        found = json.loads(file.read_text())
        memory[found["method"]] = found["peak"]
    cells: dict[tuple[str, float, int], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        cells[record["method"], record["left"], record["forwards"]].append(record)
    dense = json.loads((out / "dense.json").read_text())["bits"]
    shares = sorted({record["left"] for record in records}, reverse=True)
    text = HEAD.format(dense=dense, forwards=longest, size=_size())
    text += "\n| method | backward | " + " | ".join(f"{share:.0%}" for share in shares)
    text += " | CPU s at 50% | peak |\n|---|---|" + "---|" * (len(shares) + 2) + "\n"
    for name, method in METHODS.items():
        row = [_spread([r["bits"] for r in cells[name, share, longest]]) for share in shares]
        seconds = [r["cpu_seconds"] for r in cells[name, shares[-1], longest]]
        row.append(f"{mean(seconds):.1f}" if seconds else "")
        row.append(f"{memory[name] / memory['inference']:.2f}" if name in memory else "")
        title = f"**{method.title}**" if method.ours else method.title
        text += f"| {title} | {'yes' if method.backward else 'no'} | " + " | ".join(row) + " |\n"
    sizes = [record["size"] for record in records if record["left"] == shares[-1]]
    for record in records:
        del record["kept"]  # long, and in the records
    text += (
        f"\nSizes at {shares[-1]:.0%}: {min(sizes):.4f} to {max(sizes):.4f}. Above the share are "
    )
    text += "only networks that lost all heads of a layer: a placeholder without effect stays.\n"
    text += f"\n## Recovered at {shares[-1]:.0%}\n\nAfter a short training of all weights.\n\n"
    text += "| method | cut | recovered |\n|---|---|---|\n"
    for name, method in METHODS.items():
        done = [r for r in cells[name, shares[-1], longest] if "recovered" in r]
        if done:
            cut = _spread([r["bits"] for r in done])
            text += f"| {method.title} | {cut} | {_spread([r['recovered'] for r in done])} |\n"
    text += "\n![Loss against forward-equivalents](forward-only.png)\n"
    write_text(into / "forward-only.md", text)
    write_text(
        into / "forward-only.json",
        json.dumps({"dense": dense, "peak": memory, "records": records}, indent=1) + "\n",
    )
    plot(cells, shares[-1], dense, into / "forward-only.png")


def _size() -> int:
    from benchmarks.forward_only.network import Decoder

    model = Decoder()
    return sum(p.numel() for p in (*model.blocks.parameters(), *model.norm.parameters()))


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread}" + (f" [{len(values)}]" if len(values) != 3 else "")


def plot(
    cells: dict[tuple[str, float, int], list[dict[str, Any]]], left: float, dense: float, file: Path
) -> None:
    """Bits against forward-equivalents, at the smallest size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(11, 5.5), layout="constrained")
    for number, (name, method) in enumerate(METHODS.items()):
        found = sorted(
            (n, rows)
            for (m, share, n), rows in cells.items()
            if m == name and share == left and rows
        )
        if not method.searches or not found:
            continue
        x = [n for n, _ in found]
        y = [mean(r["bits"] for r in rows) for _, rows in found]
        style = "-" if method.ours else "--" if method.backward else ":"
        axis.plot(
            x,
            y,
            style,
            marker="osv^D<>Pph*X"[number % 12],
            label=method.title,
            linewidth=2.2 if method.ours else 1.2,
        )
    axis.axhline(dense, color="grey", linewidth=1, label="dense")
    axis.set_xscale("log")
    ticks = sorted({n for _, share, n in cells if share == left})
    axis.set_xticks(ticks, [str(n) for n in ticks])
    axis.minorticks_off()
    axis.set_xlabel("forward-equivalents (a backward pass counts two)")
    axis.set_ylabel(f"bits per character with {left:.0%} of the parameters")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
