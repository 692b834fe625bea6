"""Where a small network comes from: what was cut from which model, and the certificate of the cut.

A small network carries it on a private attribute. It survives ``copy.deepcopy`` and ``.to()``, is
no part of the state dict, and is what ``save`` needs beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn

from l0arm.compaction.saved.weights import TensorInfo, tensor_infos
from l0arm.equality.certificate import Certificate
from l0arm.gating import Gated, Group
from l0arm.gating.attention import HeadAttention
from l0arm.gating.branches import Nothing
from l0arm.gating.draw import Draw

ATTRIBUTE = "_l0arm_provenance"
_LATEST: WeakKeyDictionary[Gated, tuple[ReferenceType[nn.Module], list[float]]] = (
    WeakKeyDictionary()
)  # of a gated model: its last compact network, and the checksums of its weights then


@dataclass(frozen=True)
class Origin:
    """The structure of a small network, relative to the model that it was cut from."""

    model: str  # the name of the class, for people: nothing is imported by it
    parameters: int  # of the dense model
    groups: tuple[Group, ...]
    kept: tuple[tuple[int, ...], ...]  # of every group: its open units that something reads
    replaced: tuple[str, ...]  # attention modules that were replaced to lose heads
    attributes: Mapping[str, int]  # integers that count units, after the cut
    original: Mapping[str, TensorInfo]

    @classmethod
    def of(cls, gated: Gated, draw: Draw, attributes: Mapping[str, int]) -> Origin:
        """From the gated model and the draw that cuts it."""
        open_units = gated.per_group(draw.z != 0).values()
        modules = gated.model.named_modules()
        return cls(
            model=f"{type(gated.model).__module__}.{type(gated.model).__qualname__}",
            parameters=sum(p.numel() for p in gated.model.parameters()),
            groups=gated.groups,
            kept=tuple(tuple(part.nonzero().flatten().tolist()) for part in open_units),
            replaced=tuple(name for name, m in modules if isinstance(m, HeadAttention)),
            attributes=dict(attributes),
            original=tensor_infos(gated.model),
        )


@dataclass(frozen=True)
class Provenance:
    """Where a small network comes from."""

    origin: Origin | None  # None: the model that was cut is itself the result of a cut
    certificate: Certificate | None = None  # None: it was not compared


def provenance_of(model: nn.Module) -> Provenance | None:
    """Where a network comes from. None: ``compact`` did not make it."""
    provenance = vars(model).get(ATTRIBUTE)
    return provenance if isinstance(provenance, Provenance) else None


def set_provenance(model: nn.Module, provenance: Provenance | None) -> nn.Module:
    """Store where a network comes from on the network itself. None removes what a copy carries."""
    if provenance is None:
        vars(model).pop(ATTRIBUTE, None)
    else:
        vars(model)[ATTRIBUTE] = provenance
    return model


def remember(gated: Gated, small: nn.Module) -> None:
    """Note the compact network of a gated model, to notice when it is trained on."""
    _LATEST[gated] = ref(small), _checksums(small)


def is_outdated(gated: Gated) -> bool:
    """Whether the last compact network of a gated model exists and has other weights now."""
    reference, checksums = _LATEST.get(gated, (None, []))
    small = None if reference is None else reference()
    return small is not None and _checksums(small) != checksums


def _checksums(model: nn.Module) -> list[float]:
    """Sums of the parameters. (Version counters would miss the steps of fused optimizers.)"""
    with torch.no_grad():
        return [float(p.double().sum()) for p in model.parameters()]


def certificate(small: nn.Module) -> Certificate:
    """The certificate with which a network was compacted.

    The certificate belongs to the moment of compaction: it does not follow what later training
    does to the weights. It survives ``copy.deepcopy`` and ``.to()``.

    Args:
        small: A network that ``compact``, ``prune`` or ``load`` returned.

    Returns:
        The comparison of the small network with the gated one.

    Raises:
        ValueError: The network has no certificate.

    Example:
        >>> import l0arm, torch
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0, initial=0.9)
        >>> small = l0arm.compact(gated, example_inputs=torch.rand(4, 6))
        >>> certificate(small).passed
        True
    """
    provenance = provenance_of(small)
    if provenance is None or provenance.certificate is None:
        raise ValueError(
            f"this {type(small).__name__} has no certificate; to get one, compact with inputs to "
            "compare on: pass example_inputs=(x,) to compact or to sparsify, and leave certify on"
        )
    return provenance.certificate


def attributes_of(model: nn.Module, groups: Sequence[Group]) -> dict[str, int]:
    """The integers that count units; read them before ``select_inputs`` wraps modules."""
    modules = {name: m for name, m in model.named_modules() if not isinstance(m, Nothing)}
    return {
        f"{patch.module}.{patch.attribute}": getattr(modules[patch.module], patch.attribute)
        for group in groups
        for patch in group.patches
        if patch.module in modules  # those of closed branches are gone
    }
