"""The graph of a plain network with a batch of any size, as torch.export sees it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from l0arm.equality.example import in_eval
from l0arm.gating import Gated
from l0arm.gating.engine import gated_module

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


class ExportError(ValueError):
    """A network that cannot be exported, or whose export computes something else."""


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Example inputs as positional and named arguments of a call.

    >>> arguments({"ids": torch.zeros(1)})
    ((), {'ids': tensor([0.])})
    """
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


def captured(model: nn.Module, example_inputs: Inputs) -> ExportedProgram:
    """The graph in eval mode; the first dimension of every input is the batch, of any size."""
    refuse_gated(model)
    args, kwargs = arguments(example_inputs)
    for tensor in (*args, *kwargs.values()):
        if not isinstance(tensor, Tensor) or tensor.dim() == 0 or len(tensor) == 0:
            raise ExportError("example inputs are tensors whose first dimension is the batch")
    batch = Dim("batch")
    shapes: Any = {name: {0: batch} for name in kwargs} or tuple({0: batch} for _ in args)
    args = tuple(two_rows(t) for t in args)
    kwargs = {name: two_rows(t) for name, t in kwargs.items()}
    with in_eval(model), torch.no_grad(), quiet():
        try:
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ExportError(
                f"torch.export cannot capture {type(model).__name__} with a batch of any size: "
                f"{' '.join(str(error).split())[:400]}"
            ) from error


def two_rows(tensor: Tensor) -> Tensor:
    """A batch of one would be taken for a constant."""
    return tensor if len(tensor) > 1 else torch.cat([tensor, tensor])


def refuse_gated(model: nn.Module) -> None:
    """Gates act through hooks, which an exported graph would freeze in one draw."""
    if any(isinstance(module, Gated) for module in model.modules()):
        raise ExportError("the model is still gated; export what gated.compact() gives")
    if gated_module(model) is not None:
        raise ExportError("the model belongs to a Gated; export what gated.compact() gives")


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters tell of packages they do not find and of their own deprecations."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
