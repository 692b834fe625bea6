"""Recurrent layers feed every unit back to every other, through weights torch keeps in a list."""

from __future__ import annotations

from typing import Any

from l0arm.planning.registry import rule, spaces_in
from l0arm.planning.site import Site
from l0arm.planning.space import Space

CELLS = "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"


@rule(*(f"aten.{name}" for name in CELLS.split()))
def recurrent(site: Site, *args: Any, **kwargs: Any) -> tuple[Space, ...] | Space:
    """Left alone, with the reason."""
    reason = f"{site.where} is recurrent: its weights are left alone"
    for space in spaces_in(*args, *kwargs.values()):
        site.pin(space, reason)
    results = tuple(Space(shape, fixed=reason) for shape in site.shapes)
    return results if len(results) > 1 else results[0]
