"""An exported file and its parity: whether it computes what the network does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from l0arm.equality.difference import relative_difference
from l0arm.equality.example import in_eval
from l0arm.files import replacing

BATCHES = (1, 7, 64)
TOLERANCE = 1e-4  # relative to the largest output: sums in another order, no more
Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
Call = Callable[[Inputs], Sequence[Tensor]]


class ExportError(ValueError):
    """A network cannot be exported, or its export computes something else.

    Example:
        >>> from l0arm.export import export_program
        >>> try:
        ...     export_program(nn.Linear(3, 2), torch.rand(2, 3), "network.onnx")
        ... except ExportError as error:
        ...     print(error)
        the file of an exported program ends in .pt2; got 'network.onnx'
    """


@dataclass(frozen=True)
class Parity:
    """How far an exported network is from the original.

    Args:
        differences: By batch size, the largest difference relative to max|y|.
        agreement: The share of rows in which the same entry of the output is the largest.

    Example:
        >>> Parity({1: 1e-7, 7: 3e-7, 64: 2e-7}, agreement=1.0).largest
        3e-07
    """

    differences: Mapping[int, float]
    agreement: float

    @property
    def largest(self) -> float:
        """The largest difference of all batches. It is never NaN: NaN outputs differ by inf."""
        return max(self.differences.values())


@dataclass(frozen=True)
class Exported:
    """A file that was exported.

    Args:
        path: Where it is.
        bytes: Its size.
        parity: How far it is from the network it was made from.
        quantised: The same network with 8-bit weights, if that was asked for.

    Example:
        >>> Exported(Path("network.pt2"), 12_000, Parity({1: 0.0}, 1.0)).parity.largest
        0.0
    """

    path: Path
    bytes: int
    parity: Parity
    quantised: Exported | None = None


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


def parity(model: nn.Module, call: Call, example_inputs: Inputs) -> Parity:
    """Compare a model with its export on rows like the example's, in batches of 1, 7 and 64."""
    random = torch.Generator().manual_seed(0)
    differences, same, rows = {}, 0, 0
    for batch in BATCHES:
        inputs = _batch_like(example_inputs, batch, random)
        with in_eval(model):
            expected = output_tensors(model, inputs)
        actual = call(inputs)
        differences[batch] = math.inf
        if len(expected) == len(actual):
            pairs = zip(actual, expected, strict=True)
            differences[batch] = max((relative_difference(a, y) for a, y in pairs), default=0.0)
        agreeing, compared = _agreement(expected, actual)
        same, rows = same + agreeing, rows + compared
    return Parity(differences, same / rows if rows else 1.0)


def output_tensors(call: Callable[..., Any], inputs: Inputs) -> list[Tensor]:
    """All tensors that a call returns, in order."""
    args, kwargs = tree_map_only(Tensor, torch.clone, arguments(inputs))  # it may write into them
    with torch.no_grad():
        return [leaf for leaf in tree_leaves(call(*args, **kwargs)) if isinstance(leaf, Tensor)]


def _batch_like(example: Inputs, batch: int, random: torch.Generator) -> Inputs:
    """Rows of the example, repeated; rows of floats are scaled, each by a factor of its own."""

    def rows(tensor: Tensor) -> Tensor:
        taken = tensor[torch.arange(batch) % len(tensor)]
        if not taken.is_floating_point():
            return taken
        factors = 0.5 + torch.rand(batch, *[1] * (taken.dim() - 1), generator=random)
        return taken * factors.to(taken)

    args, kwargs = arguments(example)
    return {name: rows(t) for name, t in kwargs.items()} if kwargs else [rows(t) for t in args]


def _agreement(expected: Sequence[Tensor], actual: Sequence[Tensor]) -> tuple[int, int]:
    """Rows with the same largest entry, and all rows, of the first output that has several."""
    for y, got in zip(expected, actual, strict=False):
        if y.dim() >= 2 and y.shape == got.shape and y.flatten(1).shape[1] > 1:
            largest = [t.flatten(1).to(torch.float64).argmax(1) for t in (y, got)]
            return int((largest[0] == largest[1]).sum()), len(y)
    return 0, 0


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """A temporary path to write to; the file is moved to ``path`` if nothing fails inside."""
    if path.exists() and not (force and path.is_file()):
        raise FileExistsError(
            f"{path} exists; choose another name, or let it be replaced: force=True, or --force "
            "on the command line"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        yield temporary
