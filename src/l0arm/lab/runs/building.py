"""From a recipe to the things it names: network, method, optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from l0arm._sparsify import sparsify
from l0arm.gating import Loss
from l0arm.lab.data import Dataset
from l0arm.lab.recipes.recipe import MethodSpec, ModelSpec, Recipe
from l0arm.lab.runs.errors import UserError, nearest
from l0arm.lab.runs.plain import Plain
from l0arm.methods import METHODS, Method
from l0arm.models import MLP, LeNet5, WideResNet


class Trainee(Protocol):
    """What the loop trains: a Gated, or a plain network."""

    training: bool

    def __call__(self, x: Tensor) -> Any: ...

    def loss(self, closure: Any) -> Loss: ...

    def parameter_groups(
        self, lr: float, gate_lr: float | None, **weights: Any
    ) -> list[dict[str, Any]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...

    def train(self, mode: bool = True) -> Any: ...


def build_model(spec: ModelSpec, data: Dataset) -> nn.Module:
    """The network of a recipe, for the images it will see."""
    image = tuple(data.train_images.shape[1:])
    return network_for(spec, image, data.classes, f"'{data.name}' has")


def network_for(spec: ModelSpec, image: Sequence[int], classes: int, whose: str) -> nn.Module:
    """A network for images of a size (channels, height, width)."""
    channels, height, width = image
    if spec.name == "mlp":
        return MLP((channels * height * width, 300, 100, classes))
    fitting = {"lenet5": (1, 28, 28), "wide-resnet": (3, 32, 32)}[spec.name]
    if (channels, height, width) != fitting:
        raise UserError(
            f"{spec.name} takes images of {_size(*fitting)}, but {whose} "
            f"{_size(channels, height, width)}; choose another data.name or model.name"
        )
    if spec.name == "lenet5":
        return LeNet5(classes)
    return WideResNet(spec.depth, spec.widen, spec.dropout, classes)


def _size(channels: int, height: int, width: int) -> str:
    return f"{channels} x {height} x {width}"


def build_method(spec: MethodSpec, n: int) -> Method:
    """The method of a recipe for ``n`` training images: the paper's lambda is lam / N."""
    if spec.name not in METHODS:
        hint = nearest(spec.name, [*METHODS, "dense"])
        if ":" in spec.name:
            hint = f"it comes from outside the package: name it with --method {spec.name}"
        raise UserError(f"no method '{spec.name}'; {hint}")
    factory = METHODS[spec.name]
    parameters = inspect.signature(factory).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())  # it checks them itself
    accepted = set(parameters) - {"lam"}
    for option in spec.options:
        if option not in accepted and not takes_any:
            raise UserError(
                f"method '{spec.name}' has no option '{option}'; {nearest(option, accepted)}"
            )
    lam = [value / n for value in spec.lam] if isinstance(spec.lam, list) else spec.lam / n
    if "lam" not in parameters and lam:
        raise UserError(f"method '{spec.name}' has no strength; remove method.lam")
    try:
        return factory(*([lam] if "lam" in parameters else []), **spec.options)
    except (TypeError, ValueError) as error:
        raise UserError(f"method '{spec.name}': {error}") from None


def build_trainee(recipe: Recipe, data: Dataset) -> Trainee:
    """The network under its method."""
    try:
        model = build_model(recipe.model, data).to(data.train_images.device)
    except ValueError as error:
        raise UserError(f"recipe '{recipe.name}': model: {error}") from None
    if not recipe.gated:
        return Plain(model)
    method = build_method(recipe.method, len(data.train_images))
    try:
        return sparsify(model, method=method, execution=recipe.training.execution)
    except ValueError as error:
        raise UserError(f"recipe '{recipe.name}': {error}") from None


def build_optimizer(recipe: Recipe, trainee: Trainee) -> torch.optim.Optimizer:
    """Adam, or SGD with Nesterov momentum (Sec. 5.1); AdamW for decay beside Adam's steps."""
    spec = recipe.optimizer
    groups = trainee.parameter_groups(spec.lr, spec.gate_lr, weight_decay=spec.weight_decay)
    for group in groups:
        group["initial_lr"] = group["lr"]
    if spec.name in ("adam", "adamw"):
        kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
        return kind(groups, fused=True)
    # A fused step that a loss scaler skips leaves momentum that was never written (torch 2.13).
    fused = spec.momentum > 0 and recipe.training.precision != "fp16"
    return torch.optim.SGD(groups, momentum=spec.momentum, nesterov=spec.momentum > 0, fused=fused)
