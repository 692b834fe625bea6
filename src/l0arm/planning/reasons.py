"""Every layer that is not gated, with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from l0arm.gating.layout import named_tensors
from l0arm.planning._plan import Skipped
from l0arm.planning.atoms import Atoms, Birth
from l0arm.planning.capture import first_names
from l0arm.planning.site import Trace
from l0arm.planning.units import Found, module_of

UNUSED = "not used when the model runs on the example"


def skipped_layers(
    model: nn.Module, trace: Trace, found: Sequence[Found], asked: Sequence[Found]
) -> tuple[Skipped, ...]:
    """Layers with weights none of whose own units is gated."""
    gated = {s.tensor for f in asked for s in f.group.makes}
    left_out = {s.tensor for f in found if f not in asked for s in f.group.makes}
    births: dict[str, list[Birth]] = {}
    for birth in trace.atoms.births:
        births.setdefault(birth.tensor, []).append(birth)
    skipped: dict[str, str] = {}
    first = set(first_names(model).values())
    for name, tensor in named_tensors(model).items():
        layer = module_of(name) or name
        if name in first and tensor.dim() > 1 and isinstance(tensor, nn.Parameter):
            if name in gated:
                continue
            reason = _reason(trace.atoms, births.get(name)) or trace.refused.get(name, UNUSED)
            skipped.setdefault(layer, "left out by include" if name in left_out else reason)
    return tuple(Skipped(layer, reason) for layer, reason in skipped.items())


def _reason(atoms: Atoms, births: list[Birth] | None) -> str | None:
    """Why the dimension that makes units is not cut: one that labels values, if there is one.

    None if no value of the graph has units of it.
    """
    if not births or births[0].tensor in atoms.idle_tensors:
        return None
    labelling = [birth for birth in births if atoms.labels(birth.first)]
    reasons = [atoms.reason(birth.first) for birth in labelling or births]
    told = next((reason for reason in reasons if reason), None)
    return told or "all its units go together or nothing reads them: there is nothing to choose"
