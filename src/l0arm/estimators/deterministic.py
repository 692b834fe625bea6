"""No estimate: the gates are given, and only the weights are trained by gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from l0arm.estimators.protocol import Objective
from l0arm.gates.precision import at_least_float32


@dataclass(frozen=True)
class Deterministic:
    """f at the gates as they are (family ``Fixed``); phi gets no gradient.

    Not among ESTIMATORS: the mean of nothing is not the gradient in phi.
    """

    unbiased = False
    forwards = 1
    backwards = 1
    drops = True
    takes = "fixed"

    def __call__(
        self, f: Objective, gates: Any, generator: torch.Generator | None = None
    ) -> Tensor:
        return at_least_float32(f(gates.sample(generator)))
