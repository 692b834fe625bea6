"""Sizes on the command line, compared with what the machine has before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from l0arm.lab.errors import UserError, shortened

CONTAINER = Path("/sys/fs/cgroup/memory.max")  # bytes, or "max"
LARGEST_SIZE = 2**31 - 1  # of one dimension
MOST_THREADS = 1024


def memory() -> int | None:
    """The bytes of memory that this process can have, or None where that is not known."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
    try:
        return min(found, int(CONTAINER.read_text()))
    except (OSError, ValueError):
        return found


def whole_numbers(text: str) -> list[int]:
    """Numbers of at least 1 with commas between them, or nothing if the text is something else.

    >>> whole_numbers("1,3,32"), whole_numbers("1,,2"), whole_numbers("9" * 5000)
    ([1, 3, 32], [], [])
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 30 for part in parts):
        return []
    numbers = [int(part) for part in parts]
    return numbers if min(numbers) > 0 else []


def check_size(option: str, text: object, shape: Sequence[int], bytes_each: int = 4) -> None:
    """Refuse a tensor that does not fit into memory, and name the option that asked for it."""
    have, total = memory(), math.prod(shape) * bytes_each
    if max(shape, default=0) > LARGEST_SIZE or (have is not None and total > have):
        room = "" if have is None else f", and this machine has {have / 1e9:,.1f} GB"
        raise UserError(
            f"{option} {shortened(str(text))}: that is {total / 1e9:,.1f} GB{room}; choose a "
            "smaller one"
        )
