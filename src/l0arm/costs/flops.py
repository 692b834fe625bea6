"""Floating point operations: counted on a dense network, expected under the gates (Sec. 5.2).

Gates are independent, so the expected FLOPs of a layer are its dense FLOPs times the expected open
share of its weight (``expectation.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from l0arm.costs.expectation import ExpectedCost, expected_share
from l0arm.equality.example import Example, in_eval
from l0arm.gating import Gated
from l0arm.gating.layout import Axis, Layout, TensorCut, named_tensors


def count_flops(model: nn.Module, *inputs: Any) -> int:
    """Count the FLOPs of one forward pass of a plain model, 2 per multiply-add.

    Args:
        model: Any module. It runs once, in eval mode.
        inputs: Its inputs; a batch counts with all its examples.

    Returns:
        The number of floating point operations.

    Example:
        >>> count_flops(nn.Linear(4, 3), torch.zeros(1, 4))
        24
    """
    with in_eval(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*inputs)
    return int(counter.get_total_flops())


@dataclass(frozen=True)
class ExpectedFlops:
    """FLOPs of a gated network, 2 per multiply-add, for the inputs they were counted on.

    An estimator that cannot drop closed units trains at the dense cost.

    Attributes:
        dense: One forward pass with all gates open.
        inference: One forward pass under the gates.
        training: All forward passes of a training step, as the paper counts.
        step: The same with the backward passes, each at twice a forward pass.
    """

    dense: float
    inference: float
    training: float
    step: float


def expected_flops(gated: Gated, *inputs: Any, **kwargs: Any) -> ExpectedFlops:
    """Compute E[FLOPs] under the gates at the current phi.

    Args:
        gated: The gated network.
        inputs: Inputs of the model to count on. Without any, the example inputs that ``sparsify``
            was given are used.
        kwargs: Inputs of the model by name.

    Returns:
        The dense FLOPs and the expected ones, at inference and in training.

    Raises:
        ValueError: There are no inputs, or the estimator has no fixed number of passes per step.

    Example:
        >>> import l0arm
        >>> model = l0arm.models.MLP((6, 4, 2))
        >>> gated = l0arm.sparsify(model, lam=0.0, example_inputs=torch.zeros(1, 6))
        >>> expected_flops(gated).dense
        64.0
    """
    return FlopsMeter(gated, *inputs, **kwargs)()


class FlopsMeter:
    """Counts the dense network once; each call then gives E[FLOPs] at the phi of that moment.

    Args:
        gated: The gated network.
        inputs: Inputs of the model to count on, as in :func:`expected_flops`.
        kwargs: Inputs of the model by name.

    Raises:
        ValueError: There are no inputs, or the estimator has no fixed number of passes per step.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> meter = FlopsMeter(gated, torch.zeros(1, 6))
        >>> before = meter().inference
        >>> _ = gated.phi.data.fill_(-1.0)
        >>> meter().inference < before
        True
    """

    def __init__(self, gated: Gated, *inputs: Any, **kwargs: Any) -> None:
        self._gated = gated
        if inputs or kwargs:
            self._per_module = _flops_by_module(gated, Example(inputs, kwargs))
        elif gated.example is not None:
            self._per_module = _flops_by_module(gated, _on_its_device(gated, gated.example))
        else:
            raise ValueError(
                "FLOPs need inputs to count on, and the model has no example; pass them, "
                "expected_flops(gated, x), or give example_inputs=(x,) to sparsify"
            )
        if not gated.method.estimator.forwards:
            raise ValueError(
                f"{type(gated.method.estimator).__name__} evaluates the loss as often as the "
                "number of gates demands; the FLOPs of a step are only defined for estimators with "
                "a fixed number of passes"
            )

    def __call__(self) -> ExpectedFlops:
        """E[FLOPs] at the current phi."""
        gated, estimator = self._gated, self._gated.method.estimator
        shares = _expected_shares(gated, list(self._per_module))
        dense = float(sum(self._per_module.values()))
        forward = sum(count * shares[name] for name, count in self._per_module.items())
        each = forward if estimator.drops else dense  # some need the loss at closed units, too
        training = estimator.forwards * each
        return ExpectedFlops(dense, forward, training, training + 2 * estimator.backwards * each)


def flop_cost(gated: Gated, example: Example) -> ExpectedCost:
    """E[FLOPs] of one forward pass: the FLOPs of each module are the price of its weight."""
    names = {id(p): name for name, p in gated.model.named_parameters()}
    prices: dict[str, float] = {}
    constant = 0.0
    for module, flops in _flops_by_module(gated, _on_its_device(gated, example)).items():
        own = gated.model.get_submodule(module).parameters(recurse=False)
        weight = next((p for p in own if p.dim() >= 2), None)
        if weight is None:
            constant += flops
        else:
            prices[names[id(weight)]] = prices.get(names[id(weight)], 0.0) + flops
    cuts = {name: _of_tokens(gated.layout, cut) for name, cut in gated.layout.tensors.items()}
    return ExpectedCost(gated, prices, constant, cuts=cuts)


def _on_its_device(gated: Gated, example: Example) -> Example:
    """The stored example where the model is now: the model may have moved since."""
    return example.map(lambda tensor: tensor.to(gated.phi.device))


def _flops_by_module(gated: Gated, call: Example) -> dict[str, float]:
    """FLOPs of the dense network, split by the module that spends them."""
    model = gated.model
    with in_eval(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*call.args, **call.kwargs)
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


def _of_tokens(layout: Layout, cut: TensorCut) -> TensorCut:
    """The cut without experts: a token runs through as many of them as are chosen, not as exist."""

    def is_expert(axis: Axis) -> bool:
        return any(reach.reads and layout.groups[reach.group].routes for reach in axis.reaches)

    return replace(cut, axes={d: axis for d, axis in cut.axes.items() if not is_expert(axis)})


def _expected_shares(gated: Gated, modules: list[str]) -> dict[str, float]:
    """E[open share] of each module's weights; 1 where no gate acts."""
    tensors = named_tensors(gated.model)  # by identity: a tied weight is cut under all its names
    cuts = {id(tensors[name]): cut for name, cut in gated.layout.tensors.items()}
    shares = dict.fromkeys(modules, 1.0)
    with torch.no_grad():
        pi = gated.gates.open_probability
        for module in modules:
            for parameter in gated.model.get_submodule(module).parameters(recurse=False):
                cut = cuts.get(id(parameter))
                if cut is not None and parameter.dim() >= 2:
                    # A single weight saves no operation.
                    dropped = replace(_of_tokens(gated.layout, cut), elementwise=[])
                    share = expected_share(gated.layout, dropped, parameter.shape, pi)
                    shares[module] *= float(share)
    return shares
