"""Models and methods of the user's own, named on the command line: ``package.module:factory``.

A recipe or the folder of a run may contain such a name, but it is imported only if the user types
it: a file never decides which code runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from torch import nn

from l0arm.contracts import Estimator
from l0arm.lab.errors import UserError
from l0arm.lab.importing import imported, users_code
from l0arm.methods import METHODS, Method


def made_by(target: str) -> nn.Module:
    """Import the factory and call it without arguments. An ``nn.Module`` is returned as it is."""
    found = imported(target)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise UserError(f"'{target}' is {type(found).__name__}, not a function that makes a model")
    with users_code(f"'{target}' called without arguments raised"):
        model = found()
    if not isinstance(model, nn.Module):
        raise UserError(f"'{target}' made {type(model).__name__}, not an nn.Module")
    return model


def estimator_from_outside(target: str) -> Callable[..., Estimator]:
    """The factory of an estimator from ``package.module:factory``, tried once."""
    factory = imported(target)
    if not callable(factory):
        raise UserError(f"'{target}' is a {type(factory).__name__}, not a class or function")
    with users_code(f"'{target}' called without arguments raised"):
        made = factory()
    if not isinstance(made, Estimator):
        raise UserError(
            f"'{target}' made {type(made).__name__}, not an Estimator (l0arm.contracts.Estimator)"
        )
    return cast(Callable[..., Estimator], factory)


def use_method(name: str | None) -> list[str]:
    """Register ``package.module:factory`` as a method, and return the override that selects it."""
    if name is None:
        return []
    if ":" in name:
        METHODS[name] = _imported(name)
    return [f'method.name="{name}"']


def use_outside(name: str | None) -> None:
    """Register the method of a run again, if it comes from outside the package."""
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
    with users_code(f"'{name}' has no signature that says which options it has:"):
        inspect.signature(factory)

    @wraps(factory)
    def make(*args: Any, **options: Any) -> Method:
        with users_code(f"'{name}' raised"):
            method = factory(*args, **options)
        if not isinstance(method, Method):
            raise UserError(f"'{name}' made {type(method).__name__}, not a Method")
        return method

    return make
