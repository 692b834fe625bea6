"""Carry an optimizer through compaction: replace its parameters, cut its state to match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.gating import Gated
from l0arm.gating.draw import Draw
from l0arm.gating.layout import TensorCut
from l0arm.gating.slicing import theta


class Transfer:
    """Cuts the state when it is created, and replaces the parameters when it is called.

    So an optimizer whose state cannot be cut is refused before anything is changed.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, gated: Gated, draw: Draw) -> None:
        _check_kind(optimizer)
        self._optimizer, self._gated = optimizer, gated
        self._names = {id(p): name for name, p in gated.model.named_parameters()}
        # State is cut like its parameter but not scaled: averages of gradients are not weights.
        binary = draw.rounded()
        self._state = {
            id(p): {
                key: cut_state(value, p, gated.layout.tensors.get(self._name(p)), binary, key)
                for key, value in optimizer.state.get(p, {}).items()
            }
            for p in _weights(optimizer, gated)
        }
        gates = binary.z.bool()
        self._state[id(gated.phi)] = {
            key: value[gates] if is_shaped(value, gated.phi, key) else value
            for key, value in optimizer.state.get(gated.phi, {}).items()
        }

    def __call__(self, small: Mapping[str, nn.Parameter], phi: nn.Parameter | None) -> None:
        """Replace the parameters by those of the small model, and phi by the new one, if any.

        The parameters of the small model have the names of the gated one's.
        """
        optimizer = self._optimizer
        names = {id(p): self._name(p) for p in _weights(optimizer, self._gated)}
        new = {key: small[name] for key, name in names.items() if name in small}  # not cut branches
        if phi is not None:
            new[id(self._gated.phi)] = phi
        optimizer.state.clear()
        optimizer.state.update({new[k]: s for k, s in self._state.items() if s and k in new})
        for group in optimizer.param_groups:
            held = [n for n, p in enumerate(group["params"]) if id(p) in new]
            group["params"] = [new[id(group["params"][n])] for n in held]
            if "param_names" in group:
                group["param_names"] = [group["param_names"][n] for n in held]
        # The group that held phi is removed, unless a scheduler marked it: those count groups.
        groups = optimizer.param_groups
        groups[:] = [group for group in groups if group["params"] or "initial_lr" in group]

    def _name(self, parameter: nn.Parameter) -> str:
        if id(parameter) not in self._names:
            raise ValueError(
                f"the optimizer holds a parameter of shape {tuple(parameter.shape)} that is not "
                "the gated model's; compact with the optimizer that trains it"
            )
        return self._names[id(parameter)]


def _weights(optimizer: torch.optim.Optimizer, gated: Gated) -> list[nn.Parameter]:
    """The parameters of the optimizer, without phi and the method's own."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    of_gates = {id(gated.phi), *(id(p) for p in gated.extras.parameters())}
    return [p for p in held if id(p) not in of_gates]


def _check_kind(optimizer: object) -> None:
    """Accept anything with parameters and their state, such as a trainer's wrapper."""
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}; pass the "
            "optimizer itself: a scheduler of it goes on by itself"
        )


def cut_state(value: Any, parameter: Tensor, spec: TensorCut | None, draw: Draw, key: str) -> Any:
    """Cut a tensor of the parameter's shape like the parameter; numbers stay as they are."""
    if not is_shaped(value, parameter, key):
        return value
    return value.clone() if spec is None else theta(value, replace(spec, rms=None), draw).clone()


def is_shaped(value: Any, parameter: Tensor, key: str) -> bool:
    """Whether state has the shape of its parameter. If not, it is a number, or refused."""
    if value is None or isinstance(value, int | float | str):
        return False
    if isinstance(value, Tensor) and value.dim() == 0:
        return False
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"cannot cut the optimizer state '{key}' of {what} for a parameter "
            f"of shape {tuple(parameter.shape)}; make a new optimizer for the compact network"
        )
    return True
