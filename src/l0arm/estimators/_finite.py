"""Whether an option of an estimator is a number at all."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard


def finite(value: object) -> TypeGuard[float]:
    """A number, and neither infinite nor NaN.

    >>> [finite(value) for value in (0.5, 2, float("nan"), "0.5", None)]
    [True, True, False, False, False]
    """
    return isinstance(value, Real) and math.isfinite(value)
