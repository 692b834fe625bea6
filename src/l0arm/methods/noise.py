"""Gaussian noise on weights, drawn where it is cheapest: on pre-activations.

Weights w ~ N(theta, sigma^2) make a layer's output Gaussian with mean x theta^T and variance
x^2 (sigma^2)^T; drawing that instead of w gives every example noise of its own (local
reparameterisation, Kingma, Salimans, Welling 2015). The user's modules are left alone: their
``forward`` is exchanged for the length of one call of the gated network, in training only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.contracts import Extra
from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors
from l0arm.gating.slicing import theta
from l0arm.methods.weights import key_of
from l0arm.models.pooled_conv import PooledConv2d, by_products, convolved, pooled, rows_of
from l0arm.precision import at_least_float32

TINY = 1e-8  # under the square root, whose slope at 0 is infinite

Layer = Callable[[nn.Module, Tensor, Tensor, Tensor | None], Tensor]


class WeightNoise(Extra):
    """log sigma^2 of every weight of every linear and convolutional layer (and of its biases)."""

    def __init__(self, gated: Gated, initial: float, *, biases: bool = False) -> None:
        super().__init__()
        _refuse_unknown(gated)
        self.layers = [
            name for name, module in gated.model.named_modules() if type(module) in LAYERS
        ]
        for name in self.layers:
            module = gated.model.get_submodule(name)
            for key, tensor in module.named_parameters(recurse=False):
                if key == "weight" or biases:
                    start = torch.full_like(at_least_float32(tensor.detach()), initial)
                    self.register_parameter(key_of(f"{name}.{key}"), nn.Parameter(start))

    def log_variances(self, gated: Gated) -> Iterator[tuple[Tensor, Tensor]]:
        """Every noisy tensor of the model with its log sigma^2 (never in half precision)."""
        for name in self.layers:
            for key, tensor in gated.model.get_submodule(name).named_parameters(recurse=False):
                log_variance = self._parameters.get(key_of(f"{name}.{key}"))
                if log_variance is not None:
                    yield tensor, log_variance

    @contextmanager
    def active(self, gated: Gated) -> Iterator[None]:
        """While this lasts, the layers of a network in training draw noisy outputs."""
        if not gated.training:
            yield
            return
        modules = {name: gated.model.get_submodule(name) for name in self.layers}
        before = {name: vars(module).get("forward") for name, module in modules.items()}
        for name, module in modules.items():
            vars(module)["forward"] = partial(self._forward, gated, name, module)
        try:
            yield
        finally:
            for name, module in modules.items():
                if before[name] is None:
                    del vars(module)["forward"]
                else:
                    vars(module)["forward"] = before[name]

    def _forward(self, gated: Gated, name: str, module: nn.Module, x: Tensor) -> Tensor:
        weight = cast(Tensor, module.weight)
        of_weight, of_bias = (
            self._variance(gated, f"{name}.{key}", weight.dtype) for key in ("weight", "bias")
        )
        assert of_weight is not None
        return LAYERS[type(module)](module, x, of_weight, of_bias)

    def _variance(self, gated: Gated, name: str, dtype: torch.dtype) -> Tensor | None:
        """sigma^2, cut and scaled by the draw in force as the tensor itself is."""
        log_variance = self._parameters.get(key_of(name))
        if log_variance is None:
            return None
        sigma = torch.exp(log_variance / 2)
        spec, draw = gated.layout.tensors.get(name), gated.engine.draw_now()
        if spec is not None and draw is not None:
            sigma = theta(sigma, spec, draw)  # z multiplies a standard deviation, not a variance
        return (sigma**2).to(dtype)


def _linear(module: nn.Module, x: Tensor, variance: Tensor, of_bias: Tensor | None) -> Tensor:
    mean = F.linear(x, module.weight, module.bias)  # type: ignore[arg-type]
    return _drawn(mean, F.linear(x**2, variance, of_bias))


def _convolution(module: nn.Module, x: Tensor, variance: Tensor, of_bias: Tensor | None) -> Tensor:
    convolve = module._conv_forward
    mean = convolve(x, module.weight, module.bias)  # type: ignore[operator]
    return _drawn(mean, convolve(x**2, variance, of_bias))  # type: ignore[operator]


def _pooled(module: nn.Module, x: Tensor, variance: Tensor, of_bias: Tensor | None) -> Tensor:
    """The noise comes before pooling and ReLU, which this layer has in it."""
    weight, bias = cast(Tensor, module.weight), cast(Tensor, module.bias)
    if not by_products(x, weight):
        return F.relu(F.max_pool2d(_convolution(module, x, variance, of_bias), 2))
    rows = rows_of(x, weight.shape[-1])
    spread = convolved(rows * rows, variance)  # autocast on GPUs makes powers float32
    if of_bias is not None:
        spread = spread + of_bias[:, None]
    return pooled(_drawn(convolved(rows, weight), spread), bias, x)


def _drawn(mean: Tensor, variance: Tensor) -> Tensor:
    deviation = torch.sqrt(at_least_float32(variance) + TINY)  # TINY is 0 in half precision
    return mean + deviation.to(mean.dtype) * torch.randn_like(mean)


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    PooledConv2d: _pooled,
}


def _refuse_unknown(gated: Gated) -> None:
    """Weights that groups count belong to layers whose noise can be drawn on their output."""
    tensors = named_tensors(gated.model)
    for name in dict.fromkeys(piece.tensor for g in gated.groups for piece in g.counts):
        module = gated.model.get_submodule(name.rpartition(".")[0])
        known = type(module) in LAYERS and getattr(module, "weight", None) is tensors[name]
        if not known:
            kinds = ", ".join(kind.__name__ for kind in LAYERS)
            raise ValueError(
                f"noise on the weight '{name}' of a {type(module).__name__} is not known; this "
                f"method treats {kinds}; leave the layer out of the groups, or use 'l0-disarm'"
            )
    for name, module in gated.model.named_modules():
        if type(module) in LAYERS and "forward" in vars(module):
            raise ValueError(
                f"'{name}' has a forward of its own (layer.forward = ..., as torch.compile or a "
                "hook of accelerate gives it), and noise cannot act through it; take it off with "
                "`del layer.forward`, or use 'l0-disarm'"
            )
