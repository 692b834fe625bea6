"""Names for combinations: METHODS maps a name to a factory."""

from __future__ import annotations

from collections.abc import Callable

from l0arm.methods.l0 import l0, l0_ar, l0_arm, l0_disarm
from l0arm.methods.method import Method

METHODS: dict[str, Callable[..., Method]] = {
    "l0-ar": l0_ar,
    "l0-arm": l0_arm,
    "l0-disarm": l0_disarm,
}

__all__ = ["METHODS", "Method", "l0", "l0_ar", "l0_arm", "l0_disarm"]
