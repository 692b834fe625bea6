"""Carry an optimizer through compaction: its parameters exchanged, its state cut to match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.groups import Gated
from l0arm.groups.draw import Draw
from l0arm.groups.layout import TensorCut
from l0arm.groups.slicing import theta


def prepare_transfer(
    optimizer: torch.optim.Optimizer, gated: Gated, draw: Draw
) -> Callable[[nn.Module], None]:
    """Cut all state first, so that a refusal leaves the optimizer as it was; then exchange."""
    names = {id(p): name for name, p in gated.model.named_parameters()}
    # State is cut like its parameter, but never scaled: averages of gradients are not weights.
    binary = draw.rounded()
    state = {}
    for parameter in _weights(optimizer, gated):
        if id(parameter) not in names:
            raise ValueError(
                f"the optimizer holds a parameter of shape {tuple(parameter.shape)} that is not "
                "the gated model's; compact with the optimizer that trains it"
            )
        spec = gated.layout.tensors.get(names[id(parameter)])
        state[id(parameter)] = {
            key: _cut_state(value, parameter, spec, binary, key)
            for key, value in optimizer.state.get(parameter, {}).items()
        }

    def exchange(small: nn.Module) -> None:
        parameters = dict(small.named_parameters())
        new = {id(p): parameters[names[id(p)]] for p in _weights(optimizer, gated)}
        optimizer.state.clear()
        optimizer.state.update({new[key]: value for key, value in state.items() if value})
        for group in optimizer.param_groups:  # phi's own stays, empty: a scheduler counts groups
            held = [n for n, p in enumerate(group["params"]) if p is not gated.phi]
            group["params"] = [new[id(group["params"][n])] for n in held]
            if "param_names" in group:
                group["param_names"] = [group["param_names"][n] for n in held]

    return exchange


def _weights(optimizer: torch.optim.Optimizer, gated: Gated) -> list[nn.Parameter]:
    """What the optimizer trains, but for phi."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return [p for p in held if p is not gated.phi]


def _cut_state(value: Any, parameter: Tensor, spec: TensorCut | None, draw: Draw, key: str) -> Any:
    """A tensor shaped like the parameter is cut like it; numbers and step counts stay."""
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, Tensor) and value.dim() == 0:
        return value
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"cannot cut the optimizer state '{key}' of {what} for a parameter "
            f"of shape {tuple(parameter.shape)}; make a new optimizer for the compact network"
        )
    return value.clone() if spec is None else theta(value, spec, draw).clone()
