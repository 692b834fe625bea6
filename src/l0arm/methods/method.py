"""A method is a name for (gate family, estimator, penalties): one row of Tables 2 and 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from l0arm.estimators import Estimator
from l0arm.gates import GateFamily, Gates
from l0arm.groups import Gated

Penalty = Callable[[Gated, Gates], Tensor]


@dataclass(frozen=True)
class Method:
    """What z is, how phi gets a gradient, and what being open costs."""

    name: str
    gate: GateFamily
    estimator: Estimator
    penalties: tuple[Penalty, ...] = ()
