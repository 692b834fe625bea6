"""Where z sits: groups, the engine that cuts theta by z, and the gated model."""

from l0arm.gating.constancy import ConstantObjective
from l0arm.gating.gated import EmptyGroupWarning, Gated
from l0arm.gating.group import (
    Borrow,
    Branch,
    Dot,
    Group,
    Norm,
    Patch,
    Pick,
    Resize,
    Route,
    Slice,
    Widen,
)
from l0arm.gating.step import Loss, NonFiniteLoss
from l0arm.gating.synchrony import NotSynchronised

__all__ = [
    "Borrow",
    "Branch",
    "ConstantObjective",
    "Dot",
    "EmptyGroupWarning",
    "Gated",
    "Group",
    "Loss",
    "NonFiniteLoss",
    "Norm",
    "NotSynchronised",
    "Patch",
    "Pick",
    "Resize",
    "Route",
    "Slice",
    "Widen",
]
