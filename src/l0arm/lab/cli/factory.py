"""A model by the name of what makes it: ``package.module:factory``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from l0arm.lab.runs.errors import UserError, nearest


def made_by(target: str) -> nn.Module:
    """Import the module, call the factory without arguments; a module object is taken as it is."""
    found = _found(target)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise UserError(f"'{target}' is {type(found).__name__}, not a function that makes a model")
    try:
        model = found()
    except Exception as error:  # the user's own code
        raise UserError(f"'{target}' called without arguments raised {_told(error)}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"'{target}' made {type(model).__name__}, not an nn.Module")
    return model


def _found(target: str) -> Any:
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise UserError(f"expected package.module:factory, got '{target}'")
    with _here_on_the_path():
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # the user's own code
            raise UserError(f"'{module_name}' cannot be imported: {_told(error)}") from error
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise UserError(f"'{module_name}' has no '{name}'; {nearest(name, known)}")
    return getattr(module, name)


@contextmanager
def _here_on_the_path() -> Iterator[None]:
    """Modules of the present folder can be imported, as under ``python -m``."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _told(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {text[:200]}"
