"""From trained gates to a small plain network, in memory and on disk."""

from l0arm.compaction.compact import compact
from l0arm.compaction.saved import inspect_saved, load, save
from l0arm.compaction.selection import InputSelection
from l0arm.compaction.shrink import shrink
from l0arm.compaction.weights_file import SavedError

__all__ = ["InputSelection", "SavedError", "compact", "inspect_saved", "load", "save", "shrink"]
