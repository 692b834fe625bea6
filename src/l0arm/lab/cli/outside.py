"""Methods from outside the package, named on the command line and nowhere else.

A recipe or a run's folder may carry such a name, but it is only imported when the user types it: a
file never decides what code runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from l0arm.lab.errors import UserError
from l0arm.lab.importing import imported, users_code
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
    """The factory of a method. What it raises or returns by mistake becomes a UserError."""
    try:
        factory = imported(name)
    except UserError as error:
        raise UserError(f"cannot find the method '{name}': {error}") from error.__cause__
    if not callable(factory):
        raise UserError(f"'{name}' is a {type(factory).__name__}, not a function that makes one")

    @wraps(factory)  # its signature says which options it has
    def make(*args: Any, **options: Any) -> Method:
        with users_code(f"'{name}' raised"):
            method = factory(*args, **options)
        if not isinstance(method, Method):
            raise UserError(f"'{name}' made {type(method).__name__}, not a Method")
        return method

    return make
