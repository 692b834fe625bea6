"""Where z sits: groups, the engine that cuts theta by z, and the gated model."""

from l0arm.groups.gated import EmptyGroupWarning, Gated, Loss
from l0arm.groups.group import Group, Patch, Slice
from l0arm.groups.objective import NonFiniteLoss
from l0arm.groups.synchrony import NotSynchronised

__all__ = [
    "EmptyGroupWarning",
    "Gated",
    "Group",
    "Loss",
    "NonFiniteLoss",
    "NotSynchronised",
    "Patch",
    "Slice",
]
