"""f(z) of Eq. 8: the data loss of a minibatch under the gates z, as an estimator calls it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from l0arm.gates.family import Gates
from l0arm.gating.draw import Draw
from l0arm.gating.randomness import SharedRandomness
from l0arm.gating.sharing import Sharing, worth_sharing

if TYPE_CHECKING:
    from l0arm.gating.gated import Gated


class NonFiniteLoss(ValueError):
    """The data loss or the penalty is NaN or infinite; parameters and buffers are as before."""

    def __init__(self, what: str, value: float) -> None:
        super().__init__(
            f"the {what} is {value}; parameters and buffers are as before. Check the input for "
            "NaN, lower the learning rate, or clip gradients"
        )


class Objective:
    """One function of z for all evaluations of a step.

    All evaluations see the same state of the random number generators, and only the first one
    with a graph writes buffers; if any evaluation fails, they are put back.
    """

    def __init__(self, gated: Gated, closure: Callable[[], Tensor], gates: Gates) -> None:
        if not callable(closure):
            raise TypeError(
                f"loss() takes a function that computes the data loss, got {type(closure).__name__}"
                "; write gated.loss(lambda: criterion(gated(x), y))"
            )
        self._gated, self._closure = gated, closure
        self._randomness = SharedRandomness(gated.phi.device)
        self._written = False
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._with_graph = torch.is_grad_enabled()
        self._first: Draw | None = None
        several = getattr(gated.estimator, "forwards", 2) != 1  # else there is nothing to share
        sharing = gated.sharing and several and worth_sharing(gated.layout, gates.probs)
        self._sharing = Sharing() if sharing else nullcontext()

    def __call__(self, z: Tensor) -> Tensor:
        writes = not self._written and torch.is_grad_enabled() == self._with_graph
        self._written = self._written or writes
        if writes:
            self._buffers = [(b, b.clone()) for b in self._gated.model.buffers()]
        try:
            return self._under(z, writes)
        except BaseException:
            for buffer, old in self._buffers:
                buffer.copy_(old)
            raise

    def _under(self, z: Tensor, writes: bool) -> Tensor:
        with (
            self._randomness,
            self._gated.drawn(z, writes=writes, like=self._first) as draw,
            self._sharing,
        ):
            value = self._evaluate()
        if self._first is None and isinstance(self._sharing, Sharing):
            self._first = draw
            self._sharing.replay()
        number = value.item()
        if not math.isfinite(number):
            raise NonFiniteLoss("data loss", number)
        return value

    def _evaluate(self) -> Tensor:
        calls = self._gated.engine.calls
        value = self._closure()
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"the closure of loss() must return a scalar tensor, got {got}; "
                "reduce it, e.g. F.cross_entropy(gated(x), y) with its default mean"
            )
        if self._gated.engine.calls == calls:
            raise ValueError(
                "the closure of loss() did not call the gated model, so no gradient could reach "
                "phi; compute the outputs inside it: gated.loss(lambda: criterion(gated(x), y))"
            )
        if self._gated.engine.traced:
            raise RuntimeError(
                "torch.compile took the gates into its graph, which loses the gradients of gated "
                "weights (torch 2.13); compile what is inside the gated modules, `layer.forward = "
                "torch.compile(layer.forward)`, or the plain model that compact() gives"
            )
        return value.reshape(()) if value.dim() else value
