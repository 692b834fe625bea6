"""What every estimator offers, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from l0arm.gates import Gates

Objective = Callable[[Tensor], Tensor]  # f: a flat vector of gates z -> a scalar loss


class Estimator(Protocol):
    """How a gradient reaches phi through a binary draw.

    ``estimator(f, gates)`` returns a scalar whose *value* is f(z) at a draw z, and whose
    *gradient* with respect to ``gates.probs`` is an estimate of dE[f]/dprobs. The chain rule to
    phi is autograd's, so it is right for every g. ``gates`` may be a plain tensor of probabilities.

    Most are pure. One that remembers something from step to step (a moving baseline, tuned
    parameters) has a ``state``, a module of buffers that Gated saves and moves with the model.

    One that says what gates it ``takes`` is refused with others: "binary" (0 or 1, with a gradient
    in ``probs``), "smooth" (with an ``rsample``) or "fixed" (nothing to learn). One that does not
    say is taken at its word with any.
    """

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the estimate is the gradient."""
        ...

    @property
    def forwards(self) -> int:
        """Evaluations of f in one training step, at most; 0: depends on the number of gates."""
        ...

    @property
    def backwards(self) -> int:
        """Backward passes through f in one training step, the one to the weights included.

        0: depends on the number of gates.
        """
        ...

    @property
    def drops(self) -> bool:
        """Whether closed units need not be computed.

        False: the derivative in z is asked of closed gates too, or f at fractional gates. Such
        evaluations run masked and take the time of the dense network.
        """
        ...

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor: ...
