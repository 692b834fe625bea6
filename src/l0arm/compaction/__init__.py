"""From trained gates to a small plain network."""

from l0arm.compaction.compact import compact
from l0arm.compaction.selection import InputSelection
from l0arm.compaction.shrink import shrink

__all__ = ["InputSelection", "compact", "shrink"]
