"""Errors that the command line shows as one line, with a way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """The input or the settings cannot be used. Nothing was changed (exit code 2)."""


class RunFailed(Exception):
    """A run ended before its last epoch. What was saved is still there (exit code 1)."""


class Interrupted(Exception):
    """The user stopped a run. It is saved and can be resumed (exit code 130)."""


class OutputLost(Exception):
    """The standard output cannot be written. A run is saved and ends (exit code 1)."""


def shown(value: object, limit: int = 60) -> str:
    """A value in an error message, cut to a few words.

    >>> shown("mlp"), shown("9" * 5000, 8), shown(1 << 99999)
    ("'mlp'", "'9999999...", 'a number of 30,103 digits')
    """
    try:
        text = repr(value)
    except ValueError:  # of a number that is too long to be printed
        assert isinstance(value, int)
        return f"a number of {int((value.bit_length() - 1) * 0.30103) + 1:,} digits"
    return shortened(text, limit)


def shortened(text: str, limit: int = 60) -> str:
    """A text that the user typed, cut to a few words."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the closest known names, or all of them.

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
