"""The contracts of the library: gates, estimators, penalties, stages and methods.

A method of sparsification is a gate family, an estimator and penalties (:class:`Method`). Whoever
adds one of them implements a class of this file. Every optional part has a default here, so code
that uses a contract never has to ask whether a part exists.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from l0arm.precision import Precise

if TYPE_CHECKING:
    from l0arm.gating.gated import Gated

Objective = Callable[[Tensor], Tensor]  # f: a flat vector of gates z -> a scalar loss
Takes = Literal["binary", "smooth", "fixed", "any"]


@dataclass(frozen=True)
class Gates(ABC):
    """All gates of a network at one value of phi.

    Attributes:
        phi: The trained parameters, one row per gate.
        smooth: Whether draws are differentiable in phi (see ``rsample``). Binary gates are not.
    """

    phi: Tensor
    smooth: ClassVar[bool] = False

    @property
    @abstractmethod
    def probs(self) -> Tensor:
        """pi = g(phi) with its graph. Estimators attach their gradient to it."""

    @property
    @abstractmethod
    def open_probability(self) -> Tensor:
        """P(z != 0). Penalties charge for it."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of z, without a graph."""

    @abstractmethod
    def deterministic(self, tau: Tensor | float) -> Tensor:
        """z-bar: the gates at test time, thresholded at tau (Eq. 14)."""

    @abstractmethod
    def kept_value(self) -> Tensor:
        """The value that each gate has in z-bar if it is kept, whatever the threshold."""

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of z with a graph to phi. Only smooth gates have it."""
        raise TypeError(
            f"{type(self).__name__} has no rsample: its draws are not differentiable in phi"
        )


class GateFamily(ABC):
    """A distribution of gates: turns phi into gates, and keep probabilities into an initial phi."""

    @abstractmethod
    def __call__(self, phi: Tensor, /) -> Gates:
        """The gates at phi."""

    @abstractmethod
    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """An initial phi for gates that should be open with probability ``mean``."""

    def within(self, group_of: Tensor) -> GateFamily:
        """The family for a network whose gate i belongs to group ``group_of[i]``.

        Families whose gates share parameters within a group override it.
        """
        return self


class Estimator(ABC):
    """How a gradient reaches phi through a binary draw.

    ``estimator(f, gates)`` returns a scalar. Its *value* is f(z) at a draw z. Its *gradient* with
    respect to ``gates.probs`` is an estimate of dE[f]/dprobs; autograd applies the chain rule to
    phi, so it is right for every gate function g.

    Attributes:
        takes: The gates it can train: ``"binary"`` (0 or 1, with a gradient in ``probs``),
            ``"smooth"`` (with ``rsample``), ``"fixed"`` (nothing to learn) or ``"any"``.
        state: Buffers that it keeps from step to step (a moving baseline, tuned parameters).
            ``Gated`` saves them and moves them with the model. None: it keeps nothing.
    """

    takes: Takes = "any"
    state: nn.Module | None = None

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the estimate is the gradient."""
        return False

    @property
    def forwards(self) -> int:
        """Evaluations of f in one training step, at most. 0: depends on the number of gates."""
        return 2

    @property
    def backwards(self) -> int:
        """Backward passes through f in one step, including the one to the weights.

        0: depends on the number of gates.
        """
        return 1

    @property
    def drops(self) -> bool:
        """Whether closed units need not be computed.

        False: f is differentiated in closed gates too, or evaluated at fractional gates. Such
        evaluations are masked and take the time of the dense network.
        """
        return True

    @abstractmethod
    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Evaluate f at one or more draws.

        Args:
            f: The loss as a function of a flat vector of gates.
            gates: The gates, or a plain tensor of probabilities.
            generator: The source of random numbers. None: the global one.

        Returns:
            f(z) with the estimate of the gradient attached.
        """


class Extra(Precise):
    """A module that a method needs beside phi: trained, moved and saved with the gated network.

    Its tensors never fall below float32.
    """

    def active(self, gated: Gated) -> AbstractContextManager[None]:
        """A context around every forward pass of the model."""
        return nullcontext()


Penalty = Callable[["Gated", Gates], Tensor]  # what being open costs, a scalar
Validate = Callable[[], float]  # accuracy in percent on held-out training images, under z-bar
Enter = Callable[["Gated", "Validate | None"], None]
AfterStep = Callable[["Gated", torch.optim.Optimizer], None]
MakeExtras = Callable[["Gated"], Mapping[str, Extra]]
Check = Callable[["Gated"], None]
Schedule = Callable[[float], float]  # progress within a stage, 0 to 1 -> a factor


def constant(progress: float) -> float:
    """The schedule that is 1 throughout."""
    return 1.0


@dataclass(frozen=True)
class Stage:
    """One part of a training, such as pretraining, pruning or fine-tuning.

    Each stage but the first starts with fresh optimizer state. Whatever ``enter`` changes must be
    part of the state of the gated network: a resumed run does not enter a stage again.

    Attributes:
        name: Its name in messages and records.
        share: Its part of the epochs, relative to the other stages.
        enter: Called once when the stage begins.
        lr: Factor of the learning rate of the weights.
        gate_lr: Factor of the learning rate of phi.
        anneal: Schedule that multiplies both learning rates.
        penalty: Schedule of the weight of the penalties.
    """

    name: str
    share: float = 1.0
    enter: Enter | None = None
    lr: float = 1.0
    gate_lr: float = 1.0
    anneal: Schedule = constant
    penalty: Schedule = constant

    def __post_init__(self) -> None:
        if not (isinstance(self.share, Real) and 0 < self.share < math.inf):
            raise ValueError(
                f"the share of stage '{self.name}' must be a finite number > 0, got "
                f"{self.share!r}; leave out a stage that takes no time"
            )
        for name, rate in (("lr", self.lr), ("gate_lr", self.gate_lr)):
            if not (isinstance(rate, Real) and 0 <= rate < math.inf):
                raise ValueError(
                    f"stage '{self.name}' multiplies learning rates by {name}, a finite number >= 0"
                    f"; got {rate!r}"
                )


TRAIN = (Stage("train"),)


@dataclass(frozen=True)
class Method:
    """A method of sparsification: one row of Tables 2 and 3.

    Attributes:
        name: Its name in messages, records and tables.
        gate: What z is.
        estimator: How phi gets a gradient.
        penalties: What being open costs. Their sum is added to the data loss.
        stages: The parts of a training.
        after_step: Called after every optimizer step (a clamp, a proximal step, a mask).
        extras: Makes the modules that the method needs beside phi, by name.
        held_out: Share of the training images that ``Stage.enter`` may validate on.
        check: Raises if the method's options do not fit a network, before it is trained.

    Example:
        >>> from l0arm.estimators import DisARM
        >>> from l0arm.gates import Bernoulli
        >>> from l0arm.penalties import L0
        >>> Method("mine", Bernoulli(), DisARM(), (L0(1e-4),)).stages[0].name
        'train'
    """

    name: str
    gate: GateFamily
    estimator: Estimator
    penalties: tuple[Penalty, ...] = ()
    stages: tuple[Stage, ...] = TRAIN
    after_step: AfterStep | None = None
    extras: MakeExtras | None = None
    held_out: float = 0.0
    check: Check | None = None

    def __post_init__(self) -> None:
        for what, part, kind in (
            ("gate", self.gate, GateFamily),
            ("estimator", self.estimator, Estimator),
        ):
            if not isinstance(part, kind):
                raise TypeError(
                    f"the {what} of method '{self.name}' must be a {kind.__name__} "
                    f"(subclass l0arm.contracts.{kind.__name__}), got {part!r}"
                )
        if not (isinstance(self.held_out, Real) and 0.0 <= self.held_out < 1.0):
            raise ValueError(
                f"held_out is a share of the training images, from 0 up to 1; got {self.held_out!r}"
            )
        if not self.stages:
            raise ValueError(
                f"method '{self.name}' has no stages; leave them out for plain training"
            )
