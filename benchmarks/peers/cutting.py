"""Cuts by Torch-Pruning, and the search for the ratio that just fits a budget.

A cut is a function of the ratio of units to remove. It leaves the network alone and returns a copy.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

from benchmarks.peers.networks import Attention
from l0arm.costs import count_flops

SEARCH = 11  # bisections of the ratio

IMPORTANCE: dict[str, Callable[[], Any]] = {
    "l1": lambda: tp.importance.GroupMagnitudeImportance(p=1),
    "taylor": tp.importance.GroupTaylorImportance,
    "bn": tp.importance.BNScaleImportance,
    "group-norm": lambda: tp.importance.GroupMagnitudeImportance(p=2),
    "random": tp.importance.RandomImportance,
}

SCOPES: dict[str, dict[str, bool]] = {
    "global": {"global_pruning": True},  # one ranking of all units
    "uniform": {"global_pruning": False},  # the same ratio in every layer, the default there
    "isomorphic": {"global_pruning": True, "isomorphic": True},  # one for each kind of layer
    "heads": {"global_pruning": True, "prune_num_heads": True, "prune_head_dims": False},
}


def last_linear(model: nn.Module) -> nn.Module:
    """The layer whose outputs must stay: the last linear one."""
    return [m for m in model.modules() if isinstance(m, nn.Linear)][-1]


def pruner(
    model: nn.Module,
    x: Tensor,
    importance: Any,
    ratio: float,
    kind: type = tp.pruner.BasePruner,
    scope: str = "global",
) -> Any:
    """A pruner of Torch-Pruning for one of our networks. The last layer stays."""
    if isinstance(importance, tp.importance.BNScaleImportance) and not any(
        isinstance(m, nn.BatchNorm2d) for m in model.modules()
    ):
        raise ValueError("the network has no batch norm")
    heads = {
        layer: m.heads
        for m in model.modules()
        if isinstance(m, Attention)
        for layer in (m.query, m.key, m.value)
    }
    return kind(
        model,
        x,
        importance=importance,
        pruning_ratio=ratio,
        **SCOPES[scope],
        head_pruning_ratio=ratio if scope == "heads" else 0.0,
        ignored_layers=[last_linear(model)],
        num_heads=heads,
        in_channel_groups={},
        out_channel_groups={},
        unwrapped_parameters=None,
    )


def cut(
    model: nn.Module, x: Tensor, method: str, ratio: float, seed: int, scope: str = "global"
) -> nn.Module:
    """A copy of the network, with gradients, cut by Torch-Pruning."""
    small = copy.deepcopy(model)
    for mine, theirs in zip(small.parameters(), model.parameters(), strict=True):
        mine.grad = None if theirs.grad is None else theirs.grad.clone()
    small.eval()
    random.seed(seed)
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.simplefilter("ignore")
        pruner(small, x, IMPORTANCE[method](), ratio, scope=scope).step()
    small(x)  # a cut that broke the network fails here
    return small


def fit(make: Callable[[float], nn.Module], x: Tensor, limit: float) -> tuple[nn.Module, float]:
    """The largest network with at most ``limit`` operations, by bisection over the ratio.

    Args:
        make: Makes a network from the ratio of units that it lacks.
        x: Inputs to count on.
        limit: Operations allowed.

    Returns:
        The network and its ratio.

    Raises:
        ValueError: If the smallest network does not fit.
    """
    low, high = 0.0, 1.0
    best: tuple[nn.Module, float] | None = None
    for _ in range(SEARCH):
        middle = (low + high) / 2
        network = make(middle)
        if count_flops(network, x) <= limit:
            best, high = (network, middle), middle
        else:
            low = middle
    if best is None:
        raise ValueError(f"no ratio of units leaves at most {limit:.0f} operations")
    return best
