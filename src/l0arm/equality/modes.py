"""Measure in eval mode, and leave no trace."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
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


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients, no caches, no fused encoder layers; afterwards all as before.

    Random numbers too: what a model draws inside is not missed outside.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(in_eval(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_without_caches(model))
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _without_caches(model: nn.Module) -> Iterator[None]:
    """A cache of keys and values among the outputs would pin every head."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    asked = [c for c in configs.values() if getattr(c, "use_cache", False) is True]
    for config in asked:
        config.use_cache = False
    try:
        yield
    finally:
        for config in asked:
            config.use_cache = True
