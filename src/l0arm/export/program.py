"""The graph of a network with a batch of any size, by torch.export; written as ``.pt2``."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from l0arm.equality.example import in_eval
from l0arm.export.parity import (
    TOLERANCE,
    Exported,
    ExportError,
    Inputs,
    arguments,
    new_file,
    output_tensors,
    parity,
)
from l0arm.gating import Gated
from l0arm.gating.branches import is_cache
from l0arm.gating.engine import gated_module

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def export_program(
    model: nn.Module, example_inputs: Inputs, path: str | Path, *, force: bool = False
) -> Exported:
    """Write a plain network as ``.pt2``, which torch loads without the model's code.

    The first dimension of every input is the batch, of any size. The file is read back and
    compared with the network for batches of 1, 7 and 64 rows. One that computes something else is
    not kept.

    Args:
        model: A plain network, such as ``compact`` returns. It is exported in eval mode.
        example_inputs: A tensor, a sequence of tensors, or a mapping of names to tensors.
        path: The file to write. Its name ends in ``.pt2``.
        force: Replace a file that exists.

    Returns:
        The file, its size and its parity.

    Raises:
        ExportError: The network cannot be exported, or the file computes something else.
        FileExistsError: The file exists.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "network.pt2"
        >>> export_program(nn.Linear(3, 2), torch.rand(4, 3), path).parity.largest < 1e-6
        True
    """
    import torch.export

    path = Path(path)
    if path.suffix != ".pt2":
        raise ExportError(f"the file of an exported program ends in .pt2; got '{path.name}'")
    program = capture(model, example_inputs)
    with new_file(path, force=force) as temporary:
        with without_messages():
            content = io.BytesIO()  # torch's own writer aborts the process when a disk is full
            torch.export.save(program, content)
            temporary.write_bytes(content.getvalue())
            again = torch.export.load(temporary).module()
        found = parity(model, lambda inputs: output_tensors(again, inputs), example_inputs)
        if not found.largest <= TOLERANCE:
            raise ExportError(
                f"the exported program computes something else than {type(model).__name__}: "
                f"outputs differ by up to {found.largest:.1e} of the largest; nothing was written"
            )
    return Exported(path, path.stat().st_size, found)


def capture(model: nn.Module, example_inputs: Inputs) -> ExportedProgram:
    """The graph in eval mode; the first dimension of every input is the batch, of any size."""
    import torch.export

    _refuse_gated(model)
    args, kwargs = arguments(example_inputs)
    for tensor in (*args, *kwargs.values()):
        if not isinstance(tensor, Tensor) or tensor.dim() == 0 or len(tensor) == 0:
            raise ExportError("example inputs are tensors whose first dimension is the batch")
    batch = torch.export.Dim("batch")
    shapes: Any = {name: {0: batch} for name in kwargs} or tuple({0: batch} for _ in args)
    args = tuple(_at_least_two_rows(t) for t in args)
    kwargs = {name: _at_least_two_rows(t) for name, t in kwargs.items()}
    with in_eval(model), torch.no_grad(), without_messages():
        _refuse_cache(model, args, kwargs)
        try:
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ExportError(
                f"torch.export cannot capture {type(model).__name__} with a batch of any size: "
                f"{' '.join(str(error).split())[:400]}"
            ) from error


def _refuse_cache(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """A decoder of transformers returns the keys and values of its attention for the next token."""
    if not getattr(getattr(model, "config", None), "use_cache", False):
        return
    output: Any = ()
    with suppress(Exception):  # whatever a forward raises; the export reports it
        output = model(*args, **kwargs)
    values = output.values() if isinstance(output, Mapping) else output
    if isinstance(values, Iterable) and any(map(is_cache, values)):
        raise ExportError(
            f"{type(model).__name__} returns a cache of keys and values, which is no tensor; set "
            "model.config.use_cache = False before the export"
        )


def _at_least_two_rows(tensor: Tensor) -> Tensor:
    """torch.export takes a batch of one for a constant."""
    return tensor if len(tensor) > 1 else torch.cat([tensor, tensor])


def _refuse_gated(model: nn.Module) -> None:
    """Gates act through hooks; an exported graph would contain one draw of them."""
    if any(isinstance(module, Gated) for module in model.modules()):
        raise ExportError("the model is still gated; export what gated.compact() gives")
    if gated_module(model) is not None:
        raise ExportError("the model belongs to a Gated; export what gated.compact() gives")


@contextmanager
def without_messages() -> Iterator[None]:
    """Silence exporters: they log missing packages, and warn of their own deprecations."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
