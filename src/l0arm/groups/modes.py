"""Measure in eval mode, and leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_eval(*models: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is in its own mode again (a frozen BatchNorm too).

    >>> model = nn.Sequential(nn.BatchNorm1d(2).eval(), nn.Linear(2, 2))
    >>> with in_eval(model): model.training
    False
    >>> model.training, model[0].training
    (True, False)
    """
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
