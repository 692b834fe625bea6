"""The training task of a user: batches, a loss, and how many steps there are."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm.distributed import Team
from l0arm.equality.example import Example
from l0arm.pruning.stream import preserved_randomness

Criterion = Callable[[Any, Any], Tensor]  # (output, target) -> scalar
Step = Callable[[nn.Module, Any], Tensor]  # (model, batch) -> scalar
ROWS = 8  # of the first batch, as the example inputs
MISSING = object()


@dataclass(frozen=True)
class Task:
    """Batches and a loss.

    Attributes:
        batches: An iterable that can be walked again and again, such as a DataLoader.
        step: Computes the loss of a batch by calling the model.
        first: The first batch, for checks. No random numbers were used for it.
        length: Batches in one walk. If it is unknown: the number of steps.
        steps: Optimizer steps in all.
    """

    batches: Iterable[Any]
    step: Step
    first: Any
    length: int
    steps: int

    @classmethod
    def of(
        cls,
        batches: Iterable[Any],
        loss: Criterion | Step,
        epochs: float | None,
        steps: int | None,
    ) -> Task:
        """From what a user passes to ``prune``.

        Raises:
            ValueError: If there are no batches, they cannot be walked twice, or the length of the
                training is not given.
            TypeError: If the loss is no function.
        """
        if not callable(loss):
            raise TypeError(
                f"loss must be a function of (output, target), such as F.cross_entropy, or "
                f"step(model, batch); got {type(loss).__name__}"
            )
        if (epochs is None) == (steps is None):
            raise ValueError("give either epochs= or steps=, the length of the whole training")
        with preserved_randomness(batches):
            first, length = _explored(batches, counted=epochs is not None)
        if epochs is not None:
            total = epochs * (length or 0)
            steps = round(total) if math.isfinite(total) else 0
            steps = int(Team.here().stacked(torch.tensor(steps)).min())  # the same everywhere
        if not isinstance(steps, int) or steps < 2:
            of = "" if epochs is None else f" ({epochs} epochs of {length} batches)"
            raise ValueError(
                f"pruning takes at least 2 steps, one to learn and one to tune; got {steps}{of}"
            )
        step = loss if _is_step(loss) else _Supervised(loss)
        return cls(batches, step, first, length or steps, steps)

    def example(self) -> Example:
        """The first rows of the first batch, as example inputs.

        Raises:
            ValueError: If the inputs cannot be told from the targets.
        """
        batch = self.first
        if not isinstance(batch, tuple | list) or not isinstance(batch[0], Tensor):
            kind = "mapping" if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(
                f"a batch is a {kind}, not (x, y) with a tensor x, so the inputs of the model are "
                "not known; pass example_inputs=(x,) or example_kwargs={...}"
            )
        example = Example.of(batch[0][:ROWS])
        assert example is not None
        return example


@dataclass(frozen=True)
class _Supervised:
    """A loss of outputs and targets, as a step on batches (x, y)."""

    criterion: Criterion

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(
                f"a batch must be a pair (x, y) for a loss of (output, target); got "
                f"{type(batch).__name__}. Pass step(model, batch) instead of a loss"
            )
        return self.criterion(model(batch[0]), batch[1])


def _is_step(function: Callable[..., Tensor]) -> bool:
    """Whether the first parameter is named ``model``."""
    try:
        return next(iter(inspect.signature(function).parameters), "") == "model"
    except (TypeError, ValueError):  # builtins have no signature
        return False


def _explored(batches: Iterable[Any], *, counted: bool) -> tuple[Any, int | None]:
    """The first batch, and the number of batches if it is known, or has to be counted."""
    try:
        walk = iter(batches)
    except TypeError:
        raise TypeError(
            f"batches must be an iterable, such as a DataLoader or a list; got "
            f"{type(batches).__name__}"
        ) from None
    if walk is batches:
        raise ValueError(
            f"batches is a {type(batches).__name__}, which can be walked only once; pass a "
            "DataLoader or a list"
        )
    first = next(walk, MISSING)
    if first is MISSING:
        raise ValueError("batches is empty: there is nothing to train on")
    try:
        return first, len(batches) if isinstance(batches, Sized) else _count(walk, counted)
    except TypeError:  # a DataLoader has no length if its data set has none
        return first, _count(walk, counted)


def _count(walk: Iterator[Any], counted: bool) -> int | None:
    return 1 + sum(1 for _ in walk) if counted else None


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on a device."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


def check_loss(
    model: nn.Module, task: Task, device: torch.device, *, backward: bool = True
) -> None:
    """Refuse a loss that cannot train the model.

    Args:
        model: A copy of the model: its buffers are written.
        task: The batches and the loss.
        device: Where the model is.
        backward: Whether the loss is differentiated. If not, it may be any number.

    Raises:
        ValueError: If it is no finite scalar, or does not depend on the model.
    """
    batch = to_device(task.first, device)
    if not backward:
        with torch.no_grad():
            number = task.step(model.eval(), batch)
        single = number.numel() == 1 if isinstance(number, Tensor) else isinstance(number, Real)
        if not single or not math.isfinite(float(number)):
            raise ValueError(f"the loss of the first batch must be a finite number, got {number!r}")
        return
    value = task.step(model.train(), batch)
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss must be a scalar tensor, got {got}; reduce it, e.g. by mean()")
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError(
            "the model has no parameter that requires a gradient: nothing can train. "
            "train='gates' leaves its weights as they are and learns which units to keep"
        )
    slopes: tuple[Tensor | None, ...] = (None,)
    if value.requires_grad:
        slopes = torch.autograd.grad(value.sum(), trained, allow_unused=True)
    if all(slope is None for slope in slopes):
        raise ValueError(
            "the loss does not depend on the model: it has no graph to its parameters. Compute it "
            "from the model's output, without detach() or no_grad()"
        )
    if not bool(value.isfinite()):
        raise ValueError(f"the loss of the first batch is {value.item()}; check the data")
