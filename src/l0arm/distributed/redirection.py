"""A loss computed inside a wrapper that was put around the gated model itself.

Trainers wrap the model they are given in DDP and call the wrapper. Only what happens inside its
forward is averaged, so for one call the model's forward is exchanged for its whole loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from l0arm.gating import Gated, Loss


def loss_through(wrapper: nn.Module, gated: Gated, closure: Callable[[], Tensor]) -> Loss:
    """``gated.loss(closure)`` inside the forward of ``wrapper``; the total alone has a graph.

    ``wrapper`` may be the gated model itself. The closure calls ``gated``, not the wrapper.
    """
    forward = vars(gated).get("forward")  # a trainer's own, such as one with autocast

    def instead(*args: Any, **kwargs: Any) -> Loss:
        _put_back(gated, forward)
        loss = gated.loss(closure)
        return Loss(loss.total, loss.data.detach(), loss.penalty.detach())

    gated.forward = instead  # type: ignore[method-assign]
    try:
        loss: Loss = wrapper()
        return loss
    finally:
        _put_back(gated, forward)


def _put_back(gated: Gated, forward: Any) -> None:
    if forward is None:
        vars(gated).pop("forward", None)
    else:
        vars(gated)["forward"] = forward


def unwrapped(model: nn.Module) -> Gated:
    """The gated model inside wrappers that keep it as ``module``."""
    inner: Any = model
    while not isinstance(inner, Gated):
        if not isinstance(inner, nn.Module) or not hasattr(inner, "module"):
            raise TypeError(
                f"expected a Gated, bare or wrapped, got {type(model).__name__}; give the trainer "
                "sparsify(model, ...)"
            )
        inner = inner.module
    return inner
