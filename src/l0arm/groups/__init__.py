"""Where z sits: groups, the engine that cuts theta by z, and the gated model."""

from l0arm.groups.gated import EmptyGroupWarning, Gated, Loss
from l0arm.groups.group import Group, Patch, Slice

__all__ = ["EmptyGroupWarning", "Gated", "Group", "Loss", "Patch", "Slice"]
