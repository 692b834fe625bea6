"""Gaussian noise on weights, drawn on pre-activations.

Weights w ~ N(theta, sigma^2) make a layer's output Gaussian with mean x theta^T and variance
x^2 (sigma^2)^T. Drawing the output instead of w is cheap and gives every example its own noise
(Kingma, Salimans, Welling, "Variational Dropout and the Local Reparameterization Trick", 2015). The
user's modules do not change: their ``forward`` is replaced during one call of the gated network, in
training mode only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.contracts import Extra
from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors
from l0arm.gating.slicing import theta
from l0arm.methods.weights import counted_weights, key_of
from l0arm.models.pooled_conv import PooledConv2d, by_products, convolved, pooled, rows_of
from l0arm.precision import at_least_float32

TINY = 1e-8  # added under the square root, whose slope at 0 is infinite
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, PooledConv2d)
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d  # PooledConv2d is a Conv2d
NoisyLayer = nn.Linear | Convolution


class WeightNoise(Extra):
    """log sigma^2 of every weight of every linear and convolutional layer (and of its biases)."""

    def __init__(self, gated: Gated, initial: float, *, biases: bool = False) -> None:
        super().__init__()
        _check_layers(gated)
        self.layers = [name for name, module in gated.model.named_modules() if is_noisy(module)]
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
        """The layers of a network in training mode draw noisy outputs inside this context."""
        modules = {name: gated.model.get_submodule(name) for name in self.layers}
        for module in modules.values():
            forward = vars(module).get("forward")
            if isinstance(forward, partial) and forward.func == self._forward:
                del vars(module)["forward"]  # an interrupt left it
        if not gated.training:
            yield
            return
        before = {name: vars(module).get("forward") for name, module in modules.items()}
        try:
            for name, module in modules.items():
                vars(module)["forward"] = partial(self._forward, gated, name, module)
            yield
        finally:
            for name, module in modules.items():
                if before[name] is None:
                    vars(module).pop("forward", None)
                else:
                    vars(module)["forward"] = before[name]

    def _forward(self, gated: Gated, name: str, layer: nn.Module, x: Tensor) -> Tensor:
        assert is_noisy(layer)
        of_weight, of_bias = (
            self._variance(gated, f"{name}.{key}", layer.weight.dtype) for key in ("weight", "bias")
        )
        assert of_weight is not None
        return noisy_output(layer, x, of_weight, of_bias)

    def _variance(self, gated: Gated, name: str, dtype: torch.dtype) -> Tensor | None:
        """sigma^2, cut and scaled by the current draw like the tensor itself."""
        log_variance = self._parameters.get(key_of(name))
        if log_variance is None:
            return None
        sigma = torch.exp(log_variance / 2)
        spec, draw = gated.layout.tensors.get(name), gated.engine.draw_now()
        if spec is not None and draw is not None:
            sigma = theta(sigma, spec, draw)  # z multiplies a standard deviation, not a variance
        return (sigma**2).to(dtype)


def is_noisy(module: nn.Module) -> TypeGuard[NoisyLayer]:
    """Whether noise on this layer's weights can be drawn on its output. Subclasses may differ."""
    return type(module) in LAYERS


def noisy_output(layer: NoisyLayer, x: Tensor, variance: Tensor, of_bias: Tensor | None) -> Tensor:
    """The output of a layer with noise of these variances on its weight and bias."""
    if isinstance(layer, nn.Linear):
        mean = F.linear(x, layer.weight, layer.bias)
        return _drawn(mean, F.linear(x**2, variance, of_bias))
    if not isinstance(layer, PooledConv2d):
        return _convolution(layer, x, variance, of_bias)
    # This layer includes pooling and ReLU. The noise comes before both.
    if not by_products(x, layer.weight):
        return F.relu(F.max_pool2d(_convolution(layer, x, variance, of_bias), 2))
    rows = rows_of(x, layer.weight.shape[-1])
    spread = convolved(rows * rows, variance)  # not rows**2: autocast makes powers float32 on GPUs
    if of_bias is not None:
        spread = spread + of_bias[:, None]
    assert layer.bias is not None
    return pooled(_drawn(convolved(rows, layer.weight), spread), layer.bias, x)


def _convolution(layer: Convolution, x: Tensor, variance: Tensor, of_bias: Tensor | None) -> Tensor:
    mean = layer._conv_forward(x, layer.weight, layer.bias)
    return _drawn(mean, layer._conv_forward(x**2, variance, of_bias))


def _drawn(mean: Tensor, variance: Tensor) -> Tensor:
    deviation = torch.sqrt(at_least_float32(variance) + TINY)  # TINY is 0 in half precision
    return mean + deviation.to(mean.dtype) * torch.randn_like(mean)


def _check_layers(gated: Gated) -> None:
    """Refuse weights that groups count in layers without support for noise."""
    tensors = named_tensors(gated.model)
    for name in counted_weights(gated):
        module = gated.model.get_submodule(name.rpartition(".")[0])
        if not (is_noisy(module) and module.weight is tensors[name]):
            kinds = ", ".join(kind.__name__ for kind in LAYERS)
            raise ValueError(
                f"noise on the weight '{name}' of a {type(module).__name__} is not supported; "
                f"this method supports {kinds}; leave the layer out of the groups, or use "
                "'l0-disarm'"
            )
    for name, module in gated.model.named_modules():
        if is_noisy(module) and "forward" in vars(module):
            raise ValueError(
                f"'{name}' has a forward of its own (layer.forward = ..., as torch.compile or a "
                "hook of accelerate gives it), and noise cannot act through it; take it off with "
                "`del layer.forward`, or use 'l0-disarm'"
            )
