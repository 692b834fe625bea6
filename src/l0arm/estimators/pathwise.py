"""Pathwise gradients: draws that are a smooth function of noise are differentiated directly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Estimator, Gates, Objective
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class Pathwise(Estimator):
    """f at ``gates.rsample()``: one evaluation, and unbiased for the objective over these gates.

    For gates that are smooth, such as ``HardConcrete``. Not one of ``ESTIMATORS``, because
    Bernoulli gates have no ``rsample``. A hard concrete gate that is exactly 0 has derivative 0, so
    closed units need not be computed.

    Raises:
        TypeError: When called, the gates are not smooth.

    Example:
        >>> import torch
        >>> from l0arm.estimators import Pathwise
        >>> from l0arm.gates import HardConcrete
        >>> phi = torch.zeros(2, requires_grad=True)
        >>> loss = Pathwise()(lambda z: z.sum(), HardConcrete()(phi), torch.Generator())
        >>> loss.backward()  # phi.grad is one sample of dE[f]/dphi
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
