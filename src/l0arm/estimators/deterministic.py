"""No estimate: the gates are given, and only the weights are trained by gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Estimator, Gates, Objective
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class Deterministic(Estimator):
    """f at the gates as they are, for gates of the family ``Fixed``. phi gets no gradient.

    Not one of ``ESTIMATORS``, because it estimates no gradient in phi.

    Example:
        >>> import torch
        >>> from l0arm.estimators import Deterministic
        >>> from l0arm.gates import Fixed
        >>> gates = Fixed()(torch.tensor([1.0, 0.0, 1.0]))
        >>> Deterministic()(lambda z: z.sum(), gates)
        tensor(2.)
    """

    unbiased = False
    forwards = 1
    takes = "fixed"

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        if not isinstance(gates, Gates):
            raise TypeError("Deterministic needs gates that know their own draw, e.g. Fixed()(phi)")
        return at_least_float32(f(gates.sample(generator)))
