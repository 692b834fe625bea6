"""Expected floating point operations, in training and at inference (Sec. 5.2).

The gates are independent, so the expected size of a layer is the product of the expected open
rows and columns of its weight (``costs/expectation.py``), and its expected FLOPs are that share of
its dense ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from l0arm.costs.expectation import expected_share
from l0arm.equality.modes import in_eval
from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors


@dataclass(frozen=True)
class ExpectedFlops:
    """FLOPs (2 per multiply-add) for the given input.

    ``inference`` is one forward pass under the gates, ``training`` all forward passes of a step, as
    the paper counts; ``step`` adds the backward pass at twice a forward. An estimator that cannot
    drop closed units trains at the dense cost.
    """

    dense: float
    inference: float
    training: float
    step: float


def expected_flops(gated: Gated, *inputs: Any, **kwargs: Any) -> ExpectedFlops:
    """E[FLOPs] under the gates at the present phi."""
    return FlopsMeter(gated, *inputs, **kwargs)()


class FlopsMeter:
    """Counts the dense network once; each call then gives E[FLOPs] at the phi of that moment."""

    def __init__(self, gated: Gated, *inputs: Any, **kwargs: Any) -> None:
        self._gated = gated
        self._per_module = flops_by_module(gated, *inputs, **kwargs)
        if not gated.method.estimator.forwards:  # type: ignore[attr-defined]
            raise ValueError(
                f"{type(gated.method.estimator).__name__} evaluates the loss as often as the "
                "number of gates demands; the FLOPs of a step are only defined for estimators with "
                "a fixed number of passes"
            )

    def __call__(self) -> ExpectedFlops:
        gated, estimator = self._gated, cast(Any, self._gated.method.estimator)
        with torch.no_grad():
            pi = gated.gates.open_probability
            shares = {name: _expected_share(gated, name, pi) for name in self._per_module}
        dense = float(sum(self._per_module.values()))
        forward = sum(count * shares[name] for name, count in self._per_module.items())
        each = forward if estimator.drops else dense  # some need the loss at closed units, too
        training = estimator.forwards * each
        return ExpectedFlops(dense, forward, training, training + 2 * estimator.backwards * each)


def count_flops(model: nn.Module, *inputs: Any) -> int:
    """FLOPs of one forward pass of a plain model."""
    with in_eval(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*inputs)
    return int(counter.get_total_flops())


def flops_by_module(gated: Gated, *inputs: Any, **kwargs: Any) -> dict[str, float]:
    """FLOPs of the dense network, split by the module that spends them."""
    model = gated.model
    with in_eval(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*inputs, **kwargs)
    root = type(model).__name__
    total = {
        name.removeprefix(root).removeprefix("."): float(sum(ops.values()))
        for name, ops in counter.get_flop_counts().items()
        if name != "Global"
    }
    own = dict(total)
    for name in total:  # a parent's count includes its children's
        parent = name.rpartition(".")[0]
        if name and parent in own:
            own[parent] -= total[name]
    return {name: count for name, count in own.items() if count}


def _expected_share(gated: Gated, module: str, pi: Tensor) -> float:
    """E[open share] of the module's weight; 1 for what the gates do not reach."""
    share = 1.0
    tensors = named_tensors(gated.model)  # by identity: a tied weight is cut under all its names
    cuts = {id(tensors[name]): spec for name, spec in gated.layout.tensors.items()}
    for parameter in gated.model.get_submodule(module).parameters(recurse=False):
        spec = cuts.get(id(parameter))
        if spec is not None and parameter.dim() >= 2:
            dropped = replace(spec, elementwise=[])  # a single weight saves no operation
            share *= float(expected_share(gated.layout, dropped, parameter.shape, pi))
    return share
