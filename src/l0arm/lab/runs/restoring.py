"""Checks that the state in a checkpoint is one that a run can go on with.

The digest of a checkpoint shows damage. These checks find states that are malformed or belong to
another run, before a training step fails on them. Each raises ValueError with the reason.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from l0arm.gating import Gated

LARGEST = 2**63


def check_kinds(state: dict[str, Any], own: dict[str, Any]) -> None:
    """Compare a state with that of a new session: it must have the same kinds of values."""
    missing = own.keys() - state.keys()
    if missing:
        raise ValueError(
            f"it was written by another version of l0arm: it lacks {', '.join(sorted(missing))}"
        )
    for name in ("trainee", "optimizer", "tally"):
        if not isinstance(state[name], dict):
            raise ValueError(f"its {name} is not a dict")
    for name in ("epoch", "step", "steps", "stage"):
        if type(state[name]) is not int or not -1 <= state[name] < LARGEST:
            raise ValueError(f"its {name} is {str(state[name])[:40]}")
    _same_kinds(state["tally"], own["tally"], "tally")
    for point in state["tally"]["by_step"]:
        _same_kinds(point, [0.0, 0.0, 0.0], "tally by_step")
    _same_kinds(state.get("scaler", {}), own.get("scaler", {}), "scaler")
    rows, length = state["generator"], torch.get_rng_state().numel()
    if not isinstance(rows, Tensor) or rows.dtype != torch.uint8 or rows.dim() not in (1, 2):
        raise ValueError("its random state is not one of torch")
    if len(rows) == 0 or rows.shape[-1] < length:
        raise ValueError(f"its random state has less than {length} bytes")


def check_optimizer(
    optimizer: torch.optim.Optimizer, state: dict[str, Any], own: dict[str, Any]
) -> None:
    """Check an optimizer that has loaded ``state``, by its settings and by a step of a copy.

    Args:
        optimizer: The optimizer. It is not changed.
        state: What it has loaded.
        own: The state of the optimizer before it was loaded.
    """
    for group, loaded, before in zip(
        optimizer.param_groups, state["param_groups"], own["param_groups"], strict=True
    ):
        if loaded["params"] != before["params"]:
            raise ValueError("its optimizer has other parameters")
        settings = {key: value for key, value in before.items() if key != "params"}
        _same_kinds({key: group.get(key) for key in settings}, settings, "optimizer")
    kinds: dict[str, type] = {}
    for values in state["state"].values():
        for name, value in values.items():  # torch would take a number for a tensor
            if kinds.setdefault(name, type(value)) is not type(value):
                raise ValueError(f"its optimizer has {name} of different kinds")
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                raise ValueError(f"its optimizer has {name} of shape {list(value.shape)}")
    trial = copy.deepcopy(optimizer)
    for group in trial.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    trial.step()


def check_kept(kept: Any, trainee: object) -> None:
    """Check the gates that a run trains on with, if it has removed some."""
    if kept is None:
        return
    gates = trainee.layout.gates if isinstance(trainee, Gated) else 0
    mask = isinstance(kept, Tensor) and kept.dtype == torch.bool and kept.shape == (gates,)
    if not mask or not gates:
        raise ValueError(f"its mask of {gates} gates is malformed")


def check_progress(state: dict[str, Any], epochs: int, per_epoch: int) -> None:
    """Check that epochs and steps agree with the recipe and with each other."""
    epoch, step, steps = state["epoch"], state["step"], state["steps"]
    fits = 0 <= epoch <= epochs and 0 <= step <= per_epoch and steps == epoch * per_epoch + step
    if not fits or (epoch == epochs and step):
        raise ValueError(
            f"it is after {steps} steps, {epoch} epochs and {step} steps more, but the run has "
            f"{epochs} epochs of {per_epoch} steps"
        )
    if step and state["tally"]["images"] <= 0:
        raise ValueError(f"it has {state['tally']['images']} images after {step} steps")


def _same_kinds(found: Any, own: Any, name: str) -> None:
    """Fail where ``own`` has a number, a list of numbers or a dict, and ``found`` has not."""
    sound = True
    if isinstance(own, dict):
        sound = isinstance(found, dict) and own.keys() <= found.keys()
        for key in own if sound else ():
            _same_kinds(found[key], own[key], f"{name} {key}")
    elif isinstance(own, list | tuple):
        sound = (isinstance(found, list | tuple) and len(found) == len(own)) or own == []
        sound = sound and isinstance(found, list | tuple)
        for one, other in zip(found, own, strict=True) if sound and own else ():
            _same_kinds(one, other, name)
    elif type(own) in (int, float):
        sound = type(found) in (int, float) and abs(found) < LARGEST
    elif isinstance(own, bool):
        sound = found is None or isinstance(found, bool)
    if not sound:
        raise ValueError(f"its {name} is {str(found)[:40]}")
