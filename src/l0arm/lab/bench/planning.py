"""What a plan costs: CPU time and extra memory by layers, width and parameters, one thread.

Every plan is made in a process of its own, after a small one that loads what torch loads on first
use. Extra memory is the peak of the process above what it held with the model before the plan.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.files import write_text
from l0arm.lab.bench.memory import RESET, status_bytes
from l0arm.planning import plan

TOKENS = 16
LIMIT = 1800  # seconds for one plan
Made = tuple[nn.Module, Mapping[str, Tensor]]


@dataclass(frozen=True)
class Case:
    """One plan: of which network, at which size, with which options."""

    series: str  # cases of one series differ in one size
    network: str
    size: Mapping[str, int]
    options: Mapping[str, bool] = field(default_factory=dict)


class Block(nn.Module):
    """A pre-norm block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed, shape = self.norm1(x), (*x.shape[:2], self.heads, -1)
        layers = (self.query, self.key, self.value)
        query, key, value = (layer(normed).view(shape).transpose(1, 2) for layer in layers)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class Literal(nn.Module):
    """A residual layer. With its number of units written into the forward, it cannot be cut."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.up, self.down, self.fixed = nn.Linear(256, 1024), nn.Linear(1024, 256), fixed

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if self.fixed:
            hidden = hidden.view_as(x.new_empty(len(x), 1024))
        y: Tensor = x + self.down(hidden).relu()
        return y


class Kinds(nn.Module):
    """Sixteen layers, each under a name of its own, so that each is tried as a kind of its own."""

    def __init__(self, faults: int) -> None:
        super().__init__()
        for number in range(16):
            self.add_module(chr(ord("a") + number), Literal(number * faults % 16 < faults))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def _kinds(faults: int) -> Made:
    return Kinds(faults), {"x": torch.randn(TOKENS, 256)}


def _transformer(layers: int, width: int) -> Made:
    blocks = [Block(width, max(1, width // 64)) for _ in range(layers)]
    model = nn.Sequential(nn.Linear(32, width), *blocks, nn.Linear(width, 10))
    return model, {"input": torch.randn(1, TOKENS, 32)}


def _mlp(width: int) -> Made:
    model = nn.Sequential(
        *(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()), nn.Linear(width, 10)
    )
    return model, {"input": torch.randn(TOKENS, 64)}


def _bert() -> Made:
    import transformers

    return transformers.BertModel(transformers.BertConfig()), _ids()


def _gpt2(layers: int, width: int) -> Made:
    import transformers

    config = transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=width // 64)
    return transformers.GPT2LMHeadModel(config), _ids()


def _ids() -> Mapping[str, Tensor]:
    return {"input_ids": torch.randint(3, 1000, (1, TOKENS))}


NETWORKS: dict[str, Callable[..., Made]] = {
    "transformer": _transformer,
    "MLP": _mlp,
    "kinds": _kinds,
    "BERT-base": _bert,
    "GPT-2": _gpt2,
}
BOTH = {"stream": True, "depth": True}


def cases(quick: bool) -> list[Case]:
    """What is measured. The large networks need the transformers library."""
    depths, widths = ((1, 2), (64, 128)) if quick else ((3, 6, 12, 24), (128, 256, 512, 1024))
    wide = (256, 512) if quick else (1024, 2048, 4096, 8192)
    found = [Case("layers", "transformer", {"layers": n, "width": 256}) for n in depths]
    found += [Case("width", "transformer", {"layers": 4, "width": n}) for n in widths]
    found += [Case("width of an MLP", "MLP", {"width": n}) for n in wide]
    found += [Case("faults", "kinds", {"faults": n}) for n in (0, 1, 2, 16)]
    if not quick and find_spec("transformers") is not None:
        sizes = {"layers": 24, "width": 1024}
        found += [Case("known", "BERT-base", {}), Case("known", "BERT-base", {}, BOTH)]
        found += [Case("known", "GPT-2", sizes), Case("known", "GPT-2", sizes, BOTH)]
    return found


def measure(case: Case) -> dict[str, Any]:
    """Make one plan in a process of its own."""
    job = {"network": case.network, "size": dict(case.size), "options": dict(case.options)}
    ended = subprocess.run(
        [sys.executable, "-m", "l0arm.lab.bench.planning", json.dumps(job)],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        timeout=LIMIT,
    )
    return {"series": case.series, **job, **json.loads(ended.stdout)}


def work(network: str, size: Mapping[str, int], options: Mapping[str, Any]) -> dict[str, Any]:
    """One plan in this process: CPU seconds, and the extra memory as a multiple of the model's."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plan(_mlp(8)[0], _mlp(8)[1]["input"])
    model, inputs = NETWORKS[network](**size)
    weights = sum(p.numel() for p in model.parameters())
    stored = sum(p.numel() * p.element_size() for p in model.parameters())
    before, memory = status_bytes("VmRSS"), RESET.exists()
    if memory:
        RESET.write_text("5")  # the peak starts again from the present size
    start = time.process_time()
    found = plan(model, (), inputs, **options)
    return {
        "parameters": weights,
        "seconds": time.process_time() - start,
        "extra": (status_bytes("VmHWM") - before) / stored if memory else None,
        "groups": len(found.groups),
        "masked": sum(entry.execution == "masked" for entry in found.planned),
    }


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(value) over log(size) by least squares: value ~ size^slope.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    x, y = [math.log(s) for s in sizes], [math.log(v) for v in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def text(result: Mapping[str, Any]) -> str:
    """The result as a table, with the growth exponents of every series."""
    environment = result["environment"]
    lines = [
        *(["QUICK RUN, not for comparison"] if result["quick"] else []),
        f"plans: one thread, torch {environment['torch']}, {environment['cpu']}",
        f"load average {environment['load_before']:.1f} before, {environment['load_after']:.1f} "
        "after",
        "extra: peak memory above the model's, as a multiple of the model in float32",
        "",
        f"{'network':<38} {'parameters':>12} {'CPU s':>8} {'extra':>7} {'groups':>7}",
    ]
    for series in dict.fromkeys(row["series"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["series"] == series]
        lines += [_line(row) for row in rows]
        sizes = next(({k: [r["size"][k] for r in rows]} for k in _varied(rows)), {})
        for name, values in {**sizes, "parameters": [r["parameters"] for r in rows]}.items():
            if sizes and len(rows) > 1 and rows[0]["series"] != "faults":
                slope = exponent(values, [row["seconds"] for row in rows])
                lines.append(f"    CPU seconds grow as {name}^{slope:.2f}")
    return "\n".join(lines) + "\n"


def _varied(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The sizes in which the rows of a series differ."""
    return [key for key in rows[0]["size"] if len({row["size"][key] for row in rows}) > 1]


def _line(row: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{key} {value:,}" for key, value in row["size"].items())
    name = " ".join(filter(None, [row["network"], sizes, " + ".join(row["options"])]))
    extra = "-" if row["extra"] is None else f"{row['extra']:.2f}"
    figures = f"{row['parameters']:>12,} {row['seconds']:>8.1f} {extra:>7} {row['groups']:>7}"
    return f"{name:<38} {figures}"


def run(*, quick: bool, out: Path, cpu: str) -> None:
    """Measure all cases, print the table, and write text and JSON to ``out`` after every case."""
    before, rows = os.getloadavg()[0], list[dict[str, Any]]()
    out.mkdir(parents=True, exist_ok=True)
    for case in cases(quick):
        print(f"  plan: {case.network} {dict(case.size)}", file=sys.stderr, flush=True)
        rows.append(measure(case))
        environment = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cpu": cpu,
            "load_before": before,
            "load_after": os.getloadavg()[0],
        }
        result = {"quick": quick, "rows": rows, "environment": environment}
        write_text(out / "plans.json", json.dumps(result, indent=1) + "\n")
        write_text(out / "plans.txt", text(result))
    print(f"\n{text(result)}")


if __name__ == "__main__":
    print(json.dumps(work(**json.loads(sys.argv[1]))))
