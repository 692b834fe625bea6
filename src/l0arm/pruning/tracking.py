"""``follow_target``, where users of ``l0arm.pruning`` look for it."""

from l0arm.costs.tracking import follow_target

__all__ = ["follow_target"]
