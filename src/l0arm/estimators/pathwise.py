"""Pathwise gradients: for gates that are a smooth function of noise, z is simply differentiated.

Not for Bernoulli gates, and so not among ESTIMATORS: it needs a family with ``rsample``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Estimator, Gates, Objective
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class Pathwise(Estimator):
    """f at ``gates.rsample()``; unbiased for the objective over these gates, one evaluation.

    A hard concrete gate that is exactly 0 has derivative 0 there, so closed units can be dropped.
    """

    unbiased = True
    forwards = 1
    takes = "smooth"

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        if not isinstance(gates, Gates) or not gates.smooth:
            raise TypeError(
                f"Pathwise differentiates through the draw, but {type(gates).__name__} has no "
                "rsample; use gates such as HardConcrete(), or an estimator of ESTIMATORS"
            )
        return at_least_float32(f(gates.rsample(generator)))
