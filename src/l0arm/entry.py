"""``sparsify``: from a model to a gated model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from l0arm.groups import Gated, Group
from l0arm.groups.gated import Execution, Threshold
from l0arm.methods import METHODS, Method


def sparsify(
    model: nn.Module,
    groups: Sequence[Group] | None = None,
    method: Method | str = "l0-disarm",
    *,
    execution: Execution = "sliced",
    threshold: Threshold = 0.5,
    sharing: bool = True,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Gated:
    """Give every unit of ``model`` a stochastic binary gate.

    ``groups`` says where the gates sit; a model with a ``groups()`` method brings its own.
    ``method`` is a Method or its name in METHODS, then with its options (``lam=...``).
    ``sharing`` computes once what both evaluations of a step have in common (the same result).
    The model is used, not copied: it gets forward hooks, its parameters stay its own.

    >>> from l0arm.models import LeNet5
    >>> gated = sparsify(LeNet5(), method="l0-arm", lam=0.1 / 60_000)
    >>> gated.phi.shape
    torch.Size([1370])
    """
    if isinstance(model, Gated) or any(isinstance(m, Gated) for m in model.modules()):
        raise ValueError(
            "the model is gated already; sparsify the plain model, or compact it first"
        )
    if groups is None:
        own = getattr(model, "groups", None)
        if not callable(own):
            raise ValueError(
                f"{type(model).__name__} has no groups() of its own; pass groups=[Group(...), ...]"
            )
        groups = own()
    if isinstance(groups, Group):
        raise TypeError("groups must be a sequence, got a single Group; write groups=[group]")
    if isinstance(method, str):
        method = _named(method, options)
    elif not isinstance(method, Method):
        raise TypeError(
            f"method must be a Method or a name, got {method!r}; call its factory, e.g. "
            "methods.l0_arm(lam=...), or pass method='l0-arm', lam=..."
        )
    elif options:
        raise TypeError(
            f"{', '.join(sorted(options))} belong to a method given by name; "
            "set them where you build the Method"
        )
    return Gated(
        model,
        groups,
        method,
        execution=execution,
        threshold=threshold,
        sharing=sharing,
        generator=generator,
    )


def _named(name: str, options: dict[str, Any]) -> Method:
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; there are {', '.join(sorted(METHODS))}")
    try:
        return METHODS[name](**options)
    except TypeError as error:
        raise TypeError(
            f"method {name!r}: {error}; e.g. sparsify(model, method={name!r}, lam=0.1 / N)"
        ) from None
