"""``.pt2``: the graph of torch.export, for torch itself and what is built on it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from l0arm.export.capture import ExportError, Inputs, captured, quiet
from l0arm.export.parity import Exported, parity, tensors_of
from l0arm.export.writing import new_file

TOLERANCE = 1e-4


def export_program(
    model: nn.Module, example_inputs: Inputs, path: str | Path, *, force: bool = False
) -> Exported:
    """Write a plain network as ``.pt2`` with a batch of any size, read it back and compare."""
    path = Path(path)
    if path.suffix != ".pt2":
        raise ExportError(f"the file of an exported program ends in .pt2; got '{path.name}'")
    program = captured(model, example_inputs)
    with new_file(path, force=force) as temporary:
        with quiet():
            torch.export.save(program, temporary)
            again = torch.export.load(temporary).module()
        found = parity(model, lambda inputs: tensors_of(again, inputs), example_inputs)
        if not found.largest <= TOLERANCE:
            raise ExportError(
                f"the exported program computes something else than {type(model).__name__}: "
                f"outputs differ by up to {found.largest:.1e} of the largest; nothing was written"
            )
    return Exported(path, path.stat().st_size, found)
