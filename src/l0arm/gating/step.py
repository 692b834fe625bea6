"""f(z) of Eq. 8: the data loss of one minibatch as a function of the gates.

An estimator evaluates f once or several times in a training step. All evaluations start from the
same random numbers: dropout layers of equal width draw the same noise, and an evaluation that is
skipped leaves the stream of random numbers as it would have been. (A layer that two draws cut to
different widths gets different noise. It is independent of z, so the estimate stays unbiased.)

What the evaluations have in common is computed once (sharing.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from l0arm.contracts import Gates
from l0arm.gating.draw import Draw
from l0arm.gating.layout import Layout
from l0arm.gating.randomness import SharedRandomness
from l0arm.gating.sharing import Sharing

if TYPE_CHECKING:
    from l0arm.gating.gated import Gated

Closure = Callable[[], "Tensor | float"]


class NonFiniteLoss(ValueError):
    """The data loss or the penalty is NaN or infinite; parameters and buffers are as before."""

    def __init__(self, what: str, value: float) -> None:
        super().__init__(
            f"the {what} is {value}; parameters and buffers are as before. Check the input for "
            "NaN, lower the learning rate, or clip gradients"
        )


class NonFiniteGates(NonFiniteLoss):
    """phi is NaN. Which units are open is not known, so there is no network to run or to cut."""

    def __init__(self, group: str, gates: int, of: int) -> None:
        ValueError.__init__(
            self,
            f"phi of group '{group}' is NaN for {gates} of {of} gates, so which units are open is "
            "not known; load an earlier checkpoint and lower gate_lr, or clip gradients",
        )


def check_phi(layout: Layout, gates: Gates) -> None:
    """Raise NonFiniteGates, with the name of the group, if a gate has no number."""
    phi, probs = gates.phi.detach(), gates.probs.detach()
    if not math.isnan((phi.sum() + probs.sum()).item()):  # infinite phi may give NaN here, too
        return
    missing = phi.isnan().view(len(probs), -1).any(1) | probs.isnan()
    for number, group in enumerate(layout.groups):
        count = int(missing[layout.span(number)].sum())
        if count:
            raise NonFiniteGates(group.name, count, group.units)


def depends(value: Tensor, parameter: Tensor) -> bool:
    """Whether a value depends on a parameter."""
    if not value.requires_grad:
        return False
    return torch.autograd.grad(value, parameter, allow_unused=True)[0] is not None


class Loss(NamedTuple):
    """What to minimise: ``total.backward()`` trains theta and phi."""

    total: Tensor
    data: Tensor
    penalty: Tensor

    def backward(self) -> None:
        """The same as ``total.backward()``."""
        self.total.backward()  # type: ignore[no-untyped-call]


class Objective:
    """The loss as a function of z, for all evaluations of one step.

    All evaluations start from the same random numbers. Only the first one with a graph writes
    buffers, and ``undo`` restores them. With ``backward=False`` none has a graph, none writes
    anything, and the loss may be a plain number.
    """

    def __init__(self, gated: Gated, closure: Closure, *, backward: bool = True) -> None:
        if not callable(closure):
            raise TypeError(
                f"loss() takes a function that computes the data loss, got {type(closure).__name__}"
                "; write gated.loss(lambda: criterion(gated(x), y))"
            )
        self._gated, self._closure, self._backward = gated, closure, backward
        self._randomness = SharedRandomness(gated.phi.device, gated.noise)
        self._written = False
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._with_graph = torch.is_grad_enabled()
        self._first: Draw | None = None
        self._losses: list[Tensor] = []  # of all evaluations
        self._sharing: Sharing | nullcontext[None] = nullcontext()

    def begin(self, gates: Gates) -> None:
        """Before the first evaluation: share what evaluations at these gates have in common."""
        gated = self._gated
        several = gated.estimator.forwards != 1  # else there is nothing to share
        # What is shared is kept. A graph keeps it anyway. Without one it would be extra memory.
        setting = gated.settings.sharing
        wanted = self._backward if setting is None else setting
        if wanted and several and gated.agreement.worth_sharing(gates, asked=setting is True):
            self._sharing = Sharing()

    def __call__(self, z: Tensor) -> Tensor:
        if not self._backward:
            return self._without_graph(z)
        writes = not self._written and torch.is_grad_enabled() == self._with_graph
        self._written = self._written or writes
        if writes:
            homes = self._gated.engine.buffers
            self._buffers = [
                (b, b.clone()) for home in homes for b in home.values() if b is not None
            ]
        return self._at(z, writes)

    def _without_graph(self, z: Tensor) -> Tensor:
        """f(z) by a forward pass that only reads the model."""
        if z.requires_grad:
            raise TypeError(
                f"{type(self._gated.estimator).__name__} differentiates the loss in the gates, "
                "which needs a backward pass; with backward=False use an estimator that needs "
                "values only, such as 'disarm', 'reinforce-loo' or 'arms'"
            )
        before = _versions(self._gated)
        with torch.no_grad():
            value = self._at(z, writes=False)
        self._gated.constancy.note(value.item(), z, stacklevel=7)
        if _versions(self._gated) != before:
            raise RuntimeError(
                "the closure of loss() changed weights of the model in place, but with "
                "backward=False it may only read them: all evaluations must see the same network"
            )
        return value

    def _at(self, z: Tensor, writes: bool) -> Tensor:
        with (
            self._randomness,
            self._gated.drawn(z, writes=writes, like=self._first) as draw,
            self._sharing,
        ):
            value = self._evaluate()
        self._losses.append(value.detach())
        if self._gated.estimator_state is not None:  # the estimator is about to remember the value
            self.check(value.new_zeros(()))
        if self._first is None:
            self._first = draw
            if isinstance(self._sharing, Sharing):
                self._sharing.replay()
        else:
            self._gated.agreement.note(self._first, draw)
        return value

    def end(self, penalty: Tensor) -> None:
        """After the last evaluation: raise if anything is not finite."""
        shared = self._sharing if isinstance(self._sharing, Sharing) else None
        self._gated.agreement.end_step(len(self._losses), shared)
        self.check(penalty)

    def check(self, penalty: Tensor) -> None:
        """Raise if the penalty or the loss of an evaluation is not finite.

        Their sum tells, so that a GPU is waited for once.
        """
        if math.isfinite(sum(self._losses, penalty).item()):
            return
        check_phi(self._gated.layout, self._gated.gates)  # it may be the reason
        for what, value in (("penalty", penalty), *(("data loss", f) for f in self._losses)):
            number = value.item()
            if not math.isfinite(number):
                raise NonFiniteLoss(what, number)

    def undo(self) -> None:
        """Give all buffers the values from before the step, and end what an interrupt left on."""
        self._randomness.stop()
        if isinstance(self._sharing, Sharing):
            self._sharing.stop()
        for buffer, old in self._buffers:
            buffer.copy_(old)

    def _evaluate(self) -> Tensor:
        calls = self._gated.engine.calls
        value = self._closure()
        if isinstance(value, Real) and not (isinstance(value, bool) or self._backward):
            value = self._gated.phi.new_tensor(float(value))
        if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
            got = type(value).__name__
            if isinstance(value, Tensor):
                got = f"{tuple(value.shape)} of {value.dtype}"
            raise ValueError(
                f"the closure of loss() must return a real scalar tensor"
                f"{'' if self._backward else ' or a number'}, got {got}; "
                "reduce it, e.g. F.cross_entropy(gated(x), y) with its default mean"
                + ("; plain numbers need backward=False" if isinstance(value, Real) else "")
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


def _versions(gated: Gated) -> list[int]:
    """Counts the changes in place of every weight (tensors of inference mode do not count)."""
    return [p._version for p in gated.model.parameters() if not p.is_inference()]
