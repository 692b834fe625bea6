"""A model by the name of its factory: ``package.module:factory``."""

from __future__ import annotations

from torch import nn

from l0arm.lab.errors import UserError
from l0arm.lab.importing import imported, users_code


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
