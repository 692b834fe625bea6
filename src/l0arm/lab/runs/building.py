"""From a recipe to the objects it names: data, network, method, optimizer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from l0arm._sparsify import sparsify
from l0arm.gating import Loss, NonFiniteLoss
from l0arm.lab.data import PREPROCESS, Dataset, Preprocess
from l0arm.lab.errors import UserError, nearest
from l0arm.lab.recipes.recipe import DataSpec, MethodSpec, ModelSpec, Recipe
from l0arm.methods import METHODS, Method
from l0arm.models import MLP, LeNet5, WideResNet
from l0arm.optim import Adam

Labelled = tuple[Tensor, Tensor]  # images and labels


class Trainee(Protocol):
    """What the training loop trains: a Gated, or a Plain network."""

    training: bool

    def __call__(self, x: Tensor) -> Any: ...

    def loss(self, closure: Any) -> Loss: ...

    def parameter_groups(
        self, lr: float, gate_lr: float | None, **weights: Any
    ) -> list[dict[str, Any]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...

    def train(self, mode: bool = True) -> Any: ...


class Plain(nn.Module):
    """A dense network with the interface of a Gated one. Its loss is the data loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)

    def loss(self, closure: Callable[[], Tensor], generator: torch.Generator | None = None) -> Loss:
        """The data loss, with a penalty of 0. Raises NonFiniteLoss as a Gated does."""
        data = closure()
        if not math.isfinite(data.item()):
            raise NonFiniteLoss("data loss", data.item())
        return Loss(data, data, data.new_zeros(()))

    def parameter_groups(
        self, lr: float = 1e-3, gate_lr: float | None = None, **weights: Any
    ) -> list[dict[str, Any]]:
        """The weights as one group for an optimizer. There is no phi."""
        return [{"params": list(self.parameters()), "lr": lr, **weights}]


def prepared(data: Dataset, spec: DataSpec) -> Dataset:
    """The images that a recipe trains and tests on."""
    if spec.held_out:
        data = data.split(spec.held_out)
    count = len(data.train_images)
    if spec.limit > count:
        raise UserError(f"data.limit is {spec.limit}, but '{data.name}' has {count} images")
    if spec.limit:
        images, labels = data.train_images[: spec.limit], data.train_labels[: spec.limit]
        data = replace(data, train_images=images, train_labels=labels)
    height, width = data.train_images.shape[2:]
    if spec.shift >= min(height, width):
        what = f"images of '{data.name}' are {height} x {width}"
        raise UserError(f"data.shift is {spec.shift}, but {what}")
    return data


def preprocess_of(data: Dataset) -> Preprocess:
    """The normalisation of a data set. Images of an unknown one are scaled to [0, 1]."""
    channels = data.train_images.shape[1]
    return PREPROCESS.get(data.name, Preprocess((0.0,) * channels, (1.0,) * channels))


def without_held_out(recipe: Recipe, data: Dataset) -> tuple[Dataset, Labelled | None]:
    """Split off the training images on which the method validates, if it needs any.

    Returns:
        The data to train on, and the held-out images with their labels. The test images are never
        used for validation.
    """
    share = build_method(recipe.method, 1).held_out if recipe.gated else 0.0
    if not share:
        return data, None
    parts = data.split(max(1, round(share * len(data.train_labels))))
    rest = replace(data, train_images=parts.train_images, train_labels=parts.train_labels)
    return rest, (parts.test_images, parts.test_labels)


def build_model(spec: ModelSpec, data: Dataset) -> nn.Module:
    """The network of a recipe, for the images of a data set."""
    image = tuple(data.train_images.shape[1:])
    return network_for(spec, image, data.classes, f"'{data.name}' has")


def network_for(spec: ModelSpec, image: Sequence[int], classes: int, whose: str) -> nn.Module:
    """A network for images of a given size.

    Args:
        spec: The network of a recipe.
        image: Channels, height and width.
        classes: The number of outputs.
        whose: Where the images come from, for the message if the size does not fit.
    """
    channels, height, width = image
    if spec.name == "mlp":
        return MLP((channels * height * width, 300, 100, classes))
    fitting = {"lenet5": (1, 28, 28), "wide-resnet": (3, 32, 32)}[spec.name]
    if (channels, height, width) != fitting:
        expected, given = (" x ".join(map(str, size)) for size in (fitting, image))
        raise UserError(
            f"{spec.name} takes images of {expected}, but {whose} "
            f"{given}; choose another data.name or model.name"
        )
    if spec.name == "lenet5":
        return LeNet5(classes)
    return WideResNet(spec.depth, spec.widen, spec.dropout, classes)


def build_method(spec: MethodSpec, n: int) -> Method:
    """The method of a recipe for ``n`` training images. The paper's lambda is lam / N."""
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
    """The network of a recipe with the gates of its method, on the device of the data."""
    try:
        model = build_model(recipe.model, data)
        if recipe.model.init == "authors":
            start_as_the_authors(model)
        model = model.to(data.train_images.device)
    except ValueError as error:
        raise UserError(f"recipe '{recipe.name}': model: {error}") from None
    if not recipe.gated:
        return Plain(model)
    method = build_method(recipe.method, len(data.train_images))
    try:
        return sparsify(
            model,
            method=method,
            initial=recipe.method.initial,
            execution=recipe.training.execution,
        )
    except ValueError as error:
        raise UserError(f"recipe '{recipe.name}': {error}") from None


def start_as_the_authors(model: nn.Module) -> None:
    """Initialise as the authors' code: He's normal distribution, and biases at 0.

    They ask for fan out. Dense weights are stored there as inputs x outputs, so that of a dense
    layer this is the number of inputs.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, mode="fan_in")
            else:
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def build_optimizer(recipe: Recipe, trainee: Trainee) -> torch.optim.Optimizer:
    """Adam, AdamW, or SGD with Nesterov momentum (Sec. 5.1)."""
    spec = recipe.optimizer
    groups = trainee.parameter_groups(spec.lr, spec.gate_lr, weight_decay=spec.weight_decay)
    for group in groups:
        group["initial_lr"] = group["lr"]
    if spec.name in ("adam", "adamw"):
        return Adam(groups, decoupled_weight_decay=spec.name == "adamw")
    # A fused step that a loss scaler skips leaves momentum that was never written (torch 2.13).
    fused = spec.momentum > 0 and recipe.training.precision != "fp16"
    return torch.optim.SGD(groups, momentum=spec.momentum, nesterov=spec.momentum > 0, fused=fused)
