"""How long a forward pass takes, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from torch import Tensor, nn

from l0arm.equality.modes import in_eval


@dataclass(frozen=True)
class Latency:
    """Milliseconds: the median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, milliseconds: list[float]) -> Latency:
        low, _, high = quantiles(milliseconds, n=4)
        return cls(median(milliseconds), low, high)


def latency(
    models: Mapping[str, nn.Module], x: Tensor, *, rounds: int = 20, calls: int = 5
) -> dict[str, Latency]:
    """Interleaved: every round times every model, so that a noisy machine disturbs all alike."""
    times: dict[str, list[float]] = {name: [] for name in models}
    with in_eval(*models.values()), torch.inference_mode():
        for model in models.values():
            model(x)
        for _ in range(rounds):
            for name, model in models.items():
                start = time.perf_counter()
                for _ in range(calls):
                    model(x)
                times[name].append(1e3 * (time.perf_counter() - start) / calls)
    return {name: Latency.of(measured) for name, measured in times.items()}
