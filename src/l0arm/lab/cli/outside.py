"""Methods from outside the package, named on the command line and nowhere else.

A recipe or a run's folder may carry such a name, but it is only imported when the user types it: a
file never decides what code runs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from l0arm.lab.runs.errors import UserError
from l0arm.methods import METHODS, Method


def use_method(name: str | None) -> list[str]:
    """Make ``package.module:factory`` a method, and give the override that chooses it."""
    if name is None:
        return []
    if ":" in name:
        METHODS[name] = _imported(name)
    return [f'method.name="{name}"']


def use_outside(name: str | None) -> None:
    """The method of a run is its own; one from outside the package has to be named again."""
    if name is not None and ":" not in name:
        raise UserError(
            f"--method {name}: a run has its method; only one from outside the package "
            "(package.module:factory) is named again"
        )
    use_method(name)


def _imported(name: str) -> Callable[..., Method]:
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"cannot find the method '{name}': {error}") from None
    if not callable(factory):
        raise UserError(f"'{name}' is a {type(factory).__name__}, not a function that makes one")
    found: Callable[..., Method] = factory
    return found
