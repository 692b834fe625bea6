"""Recurrent layers: every unit feeds back to every other, so nothing of them is cut."""

from __future__ import annotations

from typing import Any

from l0arm.planning.rules.base import Site, rule, spaces_in
from l0arm.planning.space import Space

CELLS = "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"


@rule(*(f"aten.{name}" for name in CELLS.split()))
def recurrent(site: Site, *args: Any, **kwargs: Any) -> tuple[Space, ...] | Space:
    """Pins all units that come in. The results have none."""
    reason = f"{site.where} is recurrent: its weights are left alone"
    for space in spaces_in(*args, *kwargs.values()):
        site.pin(space, reason)
    results = tuple(Space(shape, fixed=reason) for shape in site.shapes)
    return results if len(results) > 1 else results[0]
