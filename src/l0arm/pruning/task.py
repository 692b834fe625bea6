"""The training task of a user: batches, a loss, and how many steps there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm.equality.example import Example

Criterion = Callable[[Any, Any], Tensor]  # (output, target) -> scalar
Step = Callable[[nn.Module, Any], Tensor]  # (model, batch) -> scalar
ROWS = 8  # of the first batch, as the example inputs


@dataclass(frozen=True)
class Task:
    """Batches and a loss.

    Attributes:
        batches: An iterable that can be walked again and again, such as a DataLoader.
        step: Computes the loss of a batch by calling the model.
        length: Batches in one walk.
        steps: Optimizer steps in all.
    """

    batches: Iterable[Any]
    step: Step
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
        if iter(batches) is batches:
            raise ValueError(
                f"batches is a {type(batches).__name__}, which can be walked only once; pass a "
                "DataLoader or a list"
            )
        length = len(batches) if isinstance(batches, Sized) else None
        if (epochs is None) == (steps is None):
            raise ValueError("give either epochs= or steps=, the length of the whole training")
        if length is None and steps is None:
            length = sum(1 for _ in batches)
        if length == 0 or next(iter(batches), None) is None:
            raise ValueError("batches is empty: there is nothing to train on")
        if epochs is not None:
            assert length is not None
            steps = round(epochs * length)
        assert steps is not None
        if steps < 2:
            raise ValueError(f"pruning takes at least 2 steps, to learn and to tune; got {steps}")
        return cls(batches, loss if _is_step(loss) else _Supervised(loss), length or steps, steps)

    def stream(self) -> Iterator[Any]:
        """Batches without end."""
        while True:
            yield from self.batches

    def example(self) -> Example:
        """The first rows of the first batch, as example inputs.

        Raises:
            ValueError: If the inputs cannot be told from the targets.
        """
        batch = next(iter(self.batches))
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


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on a device."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


def check_loss(value: Any) -> None:
    """Refuse a loss that cannot train the model.

    Raises:
        ValueError: If it is no finite scalar, or does not depend on the model.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss must be a scalar tensor, got {got}; reduce it, e.g. by mean()")
    if not value.requires_grad:
        raise ValueError(
            "the loss does not depend on the model: it has no graph to its parameters. Compute it "
            "from the model's output, and leave parameters trainable"
        )
    if not bool(value.isfinite()):
        raise ValueError(f"the loss of the first batch is {value.item()}; check the data")
