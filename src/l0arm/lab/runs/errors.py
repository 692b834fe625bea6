"""Errors that a person can mend: one line that names the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something asked for cannot be done as asked; nothing was changed (exit code 2)."""


class RunFailed(Exception):
    """A run came to an end that is not its own; what was saved is still there (exit code 1)."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at what was meant: the nearest names, or all of them.

    >>> nearest("lent5", ["mlp", "lenet5"])
    "did you mean 'lenet5'?"
    >>> nearest("vgg", ["mlp", "lenet5"])
    'there are lenet5, mlp'
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    return f"there are {', '.join(known)}"
