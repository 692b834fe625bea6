"""How phi gets a gradient: one file per estimator, all behind one protocol."""

from __future__ import annotations

from collections.abc import Callable

from l0arm.estimators.ar import AR
from l0arm.estimators.arm import ARM
from l0arm.estimators.disarm import DisARM
from l0arm.estimators.exact import Exact
from l0arm.estimators.protocol import Estimator

ESTIMATORS: dict[str, Callable[..., Estimator]] = {
    "ar": AR,
    "arm": ARM,
    "disarm": DisARM,
    "exact": Exact,
}

__all__ = ["AR", "ARM", "ESTIMATORS", "DisARM", "Estimator", "Exact"]
