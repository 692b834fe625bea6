"""One width for the MLPs of all layers, so that a plain ``config.json`` can state it.

The configuration of a transformer has one number for the width of its MLPs, not one per layer.
Every layer gets the width of the widest: its most probable closed units are re-opened.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from l0arm.compaction.saved.weights import SavedError
from l0arm.gating import Gated
from l0arm.gating.mask import reopen

# By model_type: the name of the width in the configuration, and the weight that makes the units.
WIDTHS = {
    "bert": ("intermediate_size", ".intermediate.dense.weight"),
    "gpt2": ("n_inner", ".mlp.c_fc.weight"),
    "llama": ("intermediate_size", ".mlp.gate_proj.weight"),
}


@dataclass(frozen=True)
class TiedWidths:
    """Gates that leave every MLP the same width, and the configuration that states it."""

    z: Tensor  # z-bar with units re-opened: what the small network is cut by
    reference: Tensor  # what the small network has to reproduce
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
    trained = gated.deterministic()
    spans = _mlps(gated, config.num_hidden_layers, maker, trained)
    width = max(1, *(int((trained[span] != 0).sum()) for span in spans))
    z = trained.clone()
    with torch.no_grad():
        gates = gated.gates
        for span in spans:
            reopen(z, span, gates, width)
        # Built from the trained gates, not from what reopen wrote: it must show a mistake there.
        reopened = (trained == 0) & (z != 0)
        reference = torch.where(reopened, gates.kept_value(), trained)
    small = copy.deepcopy(config)
    setattr(small, attribute, width)
    small.architectures = [type(gated.model).__name__]
    return TiedWidths(z, reference, small.to_json_string(use_diff=False))


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
