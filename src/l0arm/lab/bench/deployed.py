"""Forms of one network side by side: sizes, latency with its spread, memory, accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from l0arm.lab.bench.memory import Make, peak_memory
from l0arm.lab.bench.table import aligned
from l0arm.lab.bench.timing import Contestant, Plan, Spread, interleave

QUICK, FULL = Plan(rounds=3, steps=2, warm=1), Plan(rounds=15, steps=10, seconds=20.0)


@dataclass(frozen=True)
class Form:
    """A network in one form; ``make`` gives it as a call that uses so many threads."""

    make: Make
    parameters: int | None
    macs: int | None  # for one input
    bytes: int
    accuracy: float | None = None


def measure(
    forms: Mapping[str, Form],
    example: Tensor,
    *,
    batches: Sequence[int],
    threads: Sequence[int],
    quick: bool,
) -> dict[str, Any]:
    """Everything that is measured, as plain values; all forms take turns within a round."""
    result: dict[str, Any] = {"quick": quick, "forms": {}, "latency": []}
    largest = _rows(example, max(batches))
    for name, form in forms.items():
        told = {key: getattr(form, key) for key in ("parameters", "macs", "bytes", "accuracy")}
        result["forms"][name] = told | {"peak_memory": peak_memory(form.make, largest)}
    for count in threads:
        with _torch_threads(count):
            calls = {name: form.make(count) for name, form in forms.items()}
            for batch in batches:
                x = _rows(example, batch)
                times = interleave(_contestants(calls, x), QUICK if quick else FULL)
                spreads = {name: asdict(Spread.of(ms)) for name, ms in times.items()}
                result["latency"].append({"threads": count, "batch": batch, "ms": spreads})
    return result


def _contestants(
    calls: Mapping[str, Callable[[Tensor], object]], x: Tensor
) -> dict[str, Contestant]:
    return {name: Contestant(lambda call=call: call(x)) for name, call in calls.items()}  # type: ignore[misc]


def _rows(example: Tensor, batch: int) -> Tensor:
    return example[torch.arange(batch) % len(example)]


@contextmanager
def _torch_threads(count: int) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def deployed_text(result: Mapping[str, Any]) -> str:
    """The result as two tables."""
    forms = result["forms"]
    rows = [
        (
            name,
            "",
            *(_number(told[key]) for key in ("parameters", "macs", "bytes", "peak_memory")),
            "" if told["accuracy"] is None else f"{told['accuracy']:.2f}",
        )
        for name, told in forms.items()
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
