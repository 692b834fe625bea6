"""What a network costs on average under its gates, differentiable in phi."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from l0arm.costs.expectation import expected_share
from l0arm.gating import Gated
from l0arm.gating.layout import TensorCut, named_tensors


class ExpectedCost:
    """``sum_l c_l E[open share of l]``, where c_l is what tensor l costs when all of it is there.

    The gates are independent, so this is the mean cost over draws, exactly. The price is a scale:
    one per weight for parameters, the FLOPs of its layer for FLOPs. ``made`` and ``read`` are
    prices that depend on one side only, the share of the units that a tensor makes or reads.
    """

    def __init__(
        self,
        gated: Gated,
        prices: Mapping[str, float],
        constant: float = 0.0,
        made: Mapping[str, float] | None = None,
        read: Mapping[str, float] | None = None,
    ) -> None:
        tensors = named_tensors(gated.model)
        specs = gated.layout.tensors
        self._layout = gated.layout
        priced = [(name, price, specs.get(name)) for name, price in prices.items()]
        priced += [(name, price, units_made(specs[name])) for name, price in (made or {}).items()]
        priced += [(name, price, units_read(specs[name])) for name, price in (read or {}).items()]
        self._gated = [
            (price, replace(spec, elementwise=[]), tensors[name].shape)
            for name, price, spec in priced
            if spec is not None and spec.axes
        ]
        self._fixed = constant + sum(price for _, price, spec in priced if not _cut(spec))
        self.dense = constant + sum(price for _, price, _ in priced)

    def __call__(self, pi: Tensor) -> Tensor:
        """E[cost] when the gates are open with probabilities pi."""
        if not self._gated:
            return pi.new_tensor(self._fixed)
        shares = [expected_share(self._layout, spec, shape, pi) for _, spec, shape in self._gated]
        prices = pi.new_tensor([price for price, _, _ in self._gated])
        return (prices * torch.stack(shares)).sum() + self._fixed

    @property
    def depends(self) -> bool:
        """Whether any gate takes something off it; gates of single weights do not."""
        return bool(self._gated)

    def least(self, gated: Gated) -> float:
        """The cost with as many gates of each group open as must be, one at least: the cheapest."""
        with torch.enable_grad():
            z = torch.ones(len(gated.phi), dtype=torch.float64, device=gated.phi.device)
            cost = self(z.requires_grad_())
            (price,) = torch.autograd.grad(cost, z) if cost.requires_grad else (z,)
        fewest = torch.zeros_like(price)
        for number, group in enumerate(gated.groups):
            span = gated.layout.span(number)
            cheapest = price[span].topk(max(1, group.floor), largest=False).indices
            fewest[span.start + cheapest] = 1.0
        return float(self(fewest))


def units_made(spec: TensorCut) -> TensorCut:
    """The cut along those dimensions only on which units are made, not read."""
    return _along(spec, reading=False)


def units_read(spec: TensorCut) -> TensorCut:
    """The cut along those dimensions only on which units are read."""
    return _along(spec, reading=True)


def _along(spec: TensorCut, *, reading: bool) -> TensorCut:
    axes = {d: a for d, a in spec.axes.items() if any(r.folds for r in a.reaches) == reading}
    return replace(spec, axes=axes, elementwise=[])


def _cut(spec: TensorCut | None) -> bool:
    return spec is not None and bool(spec.axes)


def parameter_prices(gated: Gated) -> dict[str, float]:
    """Every parameter costs one, each tensor once however many names it has."""
    return {name: float(p.numel()) for name, p in gated.model.named_parameters()}


def flop_prices(gated: Gated, per_module: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """The FLOPs of each module as the price of its weight, and those of modules without one."""
    names = {id(p): name for name, p in gated.model.named_parameters()}
    prices: dict[str, float] = {}
    constant = 0.0
    for module, flops in per_module.items():
        own = gated.model.get_submodule(module).parameters(recurse=False)
        weight = next((p for p in own if p.dim() >= 2), None)
        if weight is None:
            constant += flops
        else:
            prices[names[id(weight)]] = prices.get(names[id(weight)], 0.0) + flops
    return prices, constant
