"""One network in all its forms: sizes, latency with its spread, peak memory, accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.costs import count_flops
from l0arm.export import Exported, OnnxNetwork, export_onnx
from l0arm.lab.bench.memory import Make, peak_memory, torch_call
from l0arm.lab.bench.report import aligned
from l0arm.lab.bench.timing import Contestant, Plan, Spread, interleave
from l0arm.lab.runs.trained import Deployment, parameter_count

QUICK, FULL = Plan(rounds=3, steps=2, warm=1), Plan(rounds=15, steps=10, seconds=20.0)


@dataclass(frozen=True)
class Form:
    """A network in one form. ``make(threads)`` gives it as a call that uses so many threads."""

    make: Make
    parameters: int | None
    macs: int | None  # for one input
    bytes: int
    accuracy: float | None = None


def forms_of(found: Deployment, folder: Path) -> dict[str, Form]:
    """Dense and compact in torch, ONNX and its 8-bit form. The ONNX files go to ``folder``."""
    done = export_onnx(found.compact, found.example, folder / "model.onnx", quantise=True)
    assert done.quantised is not None
    small = _in_torch(found.compact, found, found.accuracy(found.compact))
    return {
        "dense": _in_torch(found.dense, found, None),
        "compact": small,
        "onnx": _in_onnx(done, small, found),
        "int8": _in_onnx(done.quantised, small, found),
    }


def _in_torch(model: nn.Module, found: Deployment, accuracy: float | None) -> Form:
    tensors = [*model.parameters(), *model.buffers()]
    return Form(
        make=partial(torch_call, model),
        parameters=parameter_count(model),
        macs=count_flops(model, found.example[:1]) // 2,
        bytes=sum(t.numel() * t.element_size() for t in tensors),
        accuracy=accuracy,
    )


def _in_onnx(done: Exported, small: Form, found: Deployment) -> Form:
    network = OnnxNetwork(done.path)
    return Form(
        make=partial(OnnxNetwork, done.path),
        parameters=small.parameters,
        macs=small.macs,
        bytes=done.bytes,
        accuracy=found.accuracy(lambda x: network(x)[0]),
    )


def measure(
    forms: Mapping[str, Form],
    example: Tensor,
    *,
    batches: Sequence[int],
    threads: Sequence[int],
    quick: bool,
) -> dict[str, Any]:
    """All figures as plain values. Within a round the forms take turns."""
    result: dict[str, Any] = {"quick": quick, "forms": {}, "latency": []}
    largest = _rows(example, max(batches))
    for name, form in forms.items():
        result["forms"][name] = {
            "parameters": form.parameters,
            "macs": form.macs,
            "bytes": form.bytes,
            "accuracy": form.accuracy,
            "peak_memory": peak_memory(form.make, largest),
        }
    for count in threads:
        with _torch_threads(count):
            calls = {name: form.make(count) for name, form in forms.items()}
            for batch in batches:
                x = _rows(example, batch)
                contestants = {name: Contestant(partial(call, x)) for name, call in calls.items()}
                times = interleave(contestants, QUICK if quick else FULL)
                spreads = {name: asdict(Spread.of(ms)) for name, ms in times.items()}
                result["latency"].append({"threads": count, "batch": batch, "ms": spreads})
    return result


def _rows(example: Tensor, batch: int) -> Tensor:
    """A batch of this size, with the examples repeated."""
    return example[torch.arange(batch) % len(example)]


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def deployed_text(result: Mapping[str, Any]) -> str:
    """The result as two tables: sizes and latency."""
    forms = result["forms"]
    rows = [
        (
            name,
            "",
            *(_number(figures[key]) for key in ("parameters", "macs", "bytes", "peak_memory")),
            "" if figures["accuracy"] is None else f"{figures['accuracy']:.2f}",
        )
        for name, figures in forms.items()
    ]
    head = ("form", "", "parameters", "MACs", "bytes", "peak memory", "% right")
    note = "QUICK RUN, not for comparison\n" if result["quick"] else ""
    times = [
        (str(line["threads"]), str(line["batch"]), *(_spread(line["ms"][name]) for name in forms))
        for line in result["latency"]
    ]
    sizes = aligned(f"{note}Sizes (peak memory: at the largest batch, one thread)", head, rows)
    title = "Latency in ms, median [smallest-largest] over the rounds, forms interleaved"
    return f"{sizes}\n\n{aligned(title, ('threads', 'batch', *forms), times)}\n"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _spread(ms: Mapping[str, float]) -> str:
    return f"{ms['median']:.3f} [{ms['low']:.3f}-{ms['high']:.3f}]"
