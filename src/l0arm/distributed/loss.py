"""The loss of a gated model, computed where DistributedDataParallel averages its gradients.

DDP averages the gradients of what is computed in its forward. phi gets its gradient from the
estimate, which a wrapped network does not compute. So the estimate must be computed inside DDP as
well: by a module that DDP wraps (``WholeLoss``), or by redirecting the forward of a gated model
that a trainer has wrapped already (``loss_through``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any, Literal, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from l0arm.distributed.team import Team
from l0arm.gating import Gated, Loss, NonFiniteLoss
from l0arm.gating.step import Closure
from l0arm.precision import at_least_float32

Draws = Literal["own", "shared"]


@runtime_checkable
class HasLoss(Protocol):
    """A Gated, or another module with such a ``loss``."""

    def loss(
        self, closure: Closure, generator: torch.Generator | None = None, *, backward: bool = True
    ) -> Loss: ...


class WholeLoss(nn.Module):
    """The whole loss of a gated model as a module, for DistributedDataParallel to wrap.

    It is the mean over all examples of all R processes, w_r of them in process r:
    ``sum_r w_r f_r / sum_r w_r``. DDP takes the plain mean over processes, so each loss is
    multiplied by ``R w_r / sum w``. Every setting of DDP works.

    Args:
        gated: The gated model.
        draws: "own": each process has its own u and forms the estimate from its own losses. The
            mean of unbiased estimates is unbiased, and has less variance than one draw. Seed the
            processes differently. "shared": one u for all, and every loss is the mean over
            processes; the masks are equal everywhere. (Own u with averaged losses would be biased
            by 1/R.)

    Raises:
        TypeError: The module has no ``loss``.
        ValueError: ``draws`` is neither "own" nor "shared".

    Example:
        In several processes, wrap it: ``step = DistributedDataParallel(WholeLoss(gated))``.

        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> step = WholeLoss(gated)
        >>> x, y = torch.rand(8, 6), torch.zeros(8, dtype=torch.long)
        >>> loss = step(lambda: nn.functional.cross_entropy(gated(x), y), weight=len(y))
        >>> loss.backward()
    """

    generator: torch.Generator | None = None  # of the shared draws

    def __init__(self, gated: nn.Module, draws: Draws = "own") -> None:
        super().__init__()
        if draws not in ("own", "shared"):
            raise ValueError(f"draws must be 'own' or 'shared'; got {draws!r}")
        if not isinstance(gated, HasLoss):
            raise TypeError(
                f"WholeLoss wraps a Gated, got {type(gated).__name__}; sparsify it first"
            )
        self.gated, self.draws = gated, draws

    def forward(
        self,
        closure: Closure,
        weight: float = 1.0,
        generator: torch.Generator | None = None,
        *,
        backward: bool = True,
    ) -> Loss:
        """Compute the loss of this process's examples; only its total has a graph.

        Every process must call it equally often. One without examples has weight 0.

        Args:
            closure: Computes the data loss from the gated model, as for ``gated.loss``.
            weight: How many examples this process has.
            generator: The random numbers of the draw.
            backward: False: gradients for phi alone, by forward passes, as in ``gated.loss``.

        Returns:
            The total loss, the data loss and the penalty.

        Raises:
            ValueError: The weight is negative or not finite, or all weights are 0.
            NonFiniteLoss: The loss of any process is not finite.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight must be a number of examples, 0 or more; got {weight!r}")
        team = Team.here(str(next(self.gated.parameters()).device))
        if self.draws == "own":
            return self._with_own_draws(team, closure, weight, generator, backward)
        return self._with_shared_draws(team, closure, weight, generator, backward)

    def _with_own_draws(
        self,
        team: Team,
        closure: Closure,
        weight: float,
        generator: torch.Generator | None,
        backward: bool,
    ) -> Loss:
        before = [(buffer, buffer.clone()) for buffer in self.gated.buffers()]
        failure: NonFiniteLoss | None = None
        try:
            loss = self._loss(backward)(closure, generator)
        except NonFiniteLoss as error:
            failure = error
        weights, failures = team.sum([weight, failure is not None])
        if failures:  # raise in all processes, or the others would wait for this one forever
            for buffer, old in before:
                buffer.copy_(old)
            raise failure or NonFiniteLoss("data loss of another process", math.nan)
        total = _share(team, weight, weights) * loss.data + loss.penalty
        return Loss(total, loss.data.detach(), loss.penalty.detach())

    def _with_shared_draws(
        self,
        team: Team,
        closure: Closure,
        weight: float,
        generator: torch.Generator | None,
        backward: bool,
    ) -> Loss:
        def mean_over_processes() -> Tensor | float:
            found = closure()
            if not backward and isinstance(found, Real):  # a tensor would round it to float32
                number, weights = team.sum([weight * float(found) if weight else 0.0, weight])
                _share(team, weight, weights)  # refuses weights that are all 0
                return number / weights
            value = at_least_float32(torch.as_tensor(found, device=team.device))
            sums, weights = team.sum([weight * value.item() if weight else 0.0, weight])
            local = _share(team, weight, weights) * value
            # The value is the mean over processes, the gradient that of this process.
            return local - local.detach() + sums / weights

        draws = generator or self._same_everywhere(team)
        loss = self._loss(backward)(mean_over_processes, draws)
        return Loss(loss.total, loss.data.detach(), loss.penalty.detach())

    def _loss(self, backward: bool) -> Callable[[Closure, torch.Generator | None], Loss]:
        loss = cast(HasLoss, self.gated).loss
        return loss if backward else partial(loss, backward=False)

    def _same_everywhere(self, team: Team) -> torch.Generator:
        """A generator seeded by the first process; save its state to resume bit for bit."""
        if self.generator is None:
            seed = torch.randint(2**62, (), device=team.device)
            self.generator = torch.Generator(next(self.gated.parameters()).device)
            self.generator.manual_seed(int(team.stacked(seed)[0]))
        return self.generator


def _share(team: Team, weight: float, weights: float) -> float:
    """The factor that turns DDP's plain mean over processes into the mean over examples."""
    if weights <= 0:
        raise ValueError("the weights of all processes are 0: there is no example to learn from")
    return team.size * weight / weights


def loss_through(wrapper: nn.Module, gated: Gated, closure: Closure) -> Loss:
    """Compute ``gated.loss(closure)`` inside the forward of ``wrapper``.

    Trainers wrap the model they are given in DDP and call the wrapper. For one call, the forward of
    the gated model is replaced by its whole loss. Only the total has a graph.

    Args:
        wrapper: The wrapped model, or the gated model itself.
        gated: The gated model inside.
        closure: Computes the data loss. It calls ``gated``, not the wrapper.

    Returns:
        The total loss, the data loss and the penalty.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> x = torch.rand(8, 6)
        >>> loss_through(gated, gated, lambda: gated(x).square().mean()).backward()
    """
    forward = vars(gated).get("forward")  # a trainer may have set one, such as with autocast

    def restore() -> None:
        if forward is None:
            vars(gated).pop("forward", None)
        else:
            vars(gated)["forward"] = forward

    def instead(*args: Any, **kwargs: Any) -> Loss:
        restore()
        loss = gated.loss(closure)
        return Loss(loss.total, loss.data.detach(), loss.penalty.detach())

    gated.forward = instead  # type: ignore[method-assign]
    try:
        loss: Loss = wrapper()
        return loss
    finally:
        restore()


def unwrapped(model: nn.Module) -> Gated:
    """Return the gated model inside wrappers that keep it as ``module``.

    Raises:
        TypeError: There is no gated model inside.
    """
    inner: Any = model
    while not isinstance(inner, Gated):
        if not isinstance(inner, nn.Module) or not hasattr(inner, "module"):
            raise TypeError(
                f"expected a Gated, bare or wrapped, got {type(model).__name__}; give the trainer "
                "sparsify(model, ...)"
            )
        inner = inner.module
    return inner
