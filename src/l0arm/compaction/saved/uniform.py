"""One width for the MLPs of all layers, so that a plain ``config.json`` can say it.

The configuration of a transformer has one number for the width of its MLPs, not one for each
layer. Every layer gets the width of the widest: the most probable of its closed units open again.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from l0arm.compaction.saved.weights import SavedError
from l0arm.gating import Gated

# By model_type: what the configuration calls the width, and the weight that makes an MLP's units.
WIDTHS = {
    "bert": ("intermediate_size", ".intermediate.dense.weight"),
    "gpt2": ("n_inner", ".mlp.c_fc.weight"),
    "llama": ("intermediate_size", ".mlp.gate_proj.weight"),
}


@dataclass(frozen=True)
class TiedWidths:
    """Gates that leave every MLP the same width, and the configuration that says it."""

    z: Tensor
    width: int
    config: str


def tie_widths(gated: Gated) -> TiedWidths:
    """z-bar with every MLP as wide as the widest."""
    config: Any = getattr(gated.model, "config", None)
    attribute, maker = WIDTHS.get(getattr(config, "model_type", ""), ("", ""))
    if not attribute:
        raise SavedError(
            f"uniform=True knows the models of transformers that are {', '.join(sorted(WIDTHS))}; "
            f"got {type(gated.model).__name__}. Leave it out, and load with l0arm.load"
        )
    z = gated.deterministic()
    spans = _mlps(gated, config.num_hidden_layers, maker, z)
    width = max(1, *(int((z[span] != 0).sum()) for span in spans))
    pi = gated.gates.open_probability.detach()
    for span in spans:
        _widen(z, pi, span, width)
    small = copy.deepcopy(config)
    setattr(small, attribute, width)
    small.architectures = [type(gated.model).__name__]
    return TiedWidths(z, width, small.to_json_string(use_diff=False))


def _mlps(gated: Gated, layers: int, maker: str, z: Tensor) -> list[slice]:
    """The gates of every layer's MLP; all other gates must be open."""
    spans = []
    for number, group in enumerate(gated.groups):
        span = gated.layout.span(number)
        if any(piece.tensor.endswith(maker) for piece in group.makes):
            spans.append(span)
        elif bool((z[span] == 0).any()):
            raise SavedError(
                f"uniform=True ties the MLPs alone, but units of group '{group.name}' are closed; "
                "plan without that group, or leave uniform out and load with l0arm.load"
            )
    if len(spans) != layers:
        raise SavedError(
            f"uniform=True needs the MLP of every layer gated: {len(spans)} of {layers} are; gate "
            "them all, or leave uniform out and load with l0arm.load"
        )
    return spans


def _widen(z: Tensor, pi: Tensor, span: slice, width: int) -> None:
    """Open the most probable closed gates again, at their g(phi)."""
    missing = width - int((z[span] != 0).sum())
    if missing > 0:
        closed = torch.where(z[span] == 0, pi[span], -1.0)
        again = span.start + closed.topk(missing).indices
        z[again] = pi[again].clamp(min=torch.finfo(z.dtype).tiny)
