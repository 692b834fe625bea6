"""ONNX: written, run with onnxruntime, and compared before the file appears."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from l0arm.export.capture import ExportError, Inputs, captured, quiet
from l0arm.export.parity import Exported, parity
from l0arm.export.runtime import OnnxNetwork, required
from l0arm.export.writing import new_file

TOLERANCE = 1e-4  # of the largest output: sums in another order, no more


def export_onnx(
    model: nn.Module,
    example_inputs: Inputs,
    path: str | Path,
    *,
    quantise: bool = False,
    force: bool = False,
) -> Exported:
    """Write a plain network as ONNX with a batch of any size, checked against onnxruntime.

    Outputs are compared for batches of 1, 7 and 64 rows like the example's; a file that computes
    something else is not kept. ``quantise`` also writes ``NAME.int8.onnx``, weights in 8 bits and
    activations quantised on the fly; its parity is reported, not judged.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        required(package)
    path = Path(path)
    program = captured(model, example_inputs)
    with new_file(path, force=force) as temporary:
        with quiet(), torch.no_grad():
            written = torch.onnx.export(program, dynamo=True, verbose=False)
        assert written is not None
        written.save(temporary)
        found = parity(model, OnnxNetwork(temporary), example_inputs)
        if not found.largest <= TOLERANCE:
            raise ExportError(
                f"onnxruntime computes something else than {type(model).__name__}: outputs differ "
                f"by up to {found.largest:.1e} of the largest; nothing was written"
            )
    small = _quantised(model, example_inputs, path, force) if quantise else None
    return Exported(path, path.stat().st_size, found, small)


def _quantised(model: nn.Module, example_inputs: Inputs, path: Path, force: bool) -> Exported:
    """The same network with weights in 8 bits."""
    onnx = required("onnx")
    quantisation = required("onnxruntime.quantization").quantization
    target = path.with_suffix(".int8.onnx")
    graph = onnx.load(path)
    del graph.graph.value_info[:]  # the shapes of weights that the quantiser lays out anew
    with new_file(target, force=force) as temporary:
        with quiet():
            # Unsigned: onnxruntime has no signed 8-bit convolution on the CPU.
            kind = quantisation.QuantType.QUInt8
            quantisation.quantize_dynamic(graph, temporary, weight_type=kind)
        found = parity(model, OnnxNetwork(temporary), example_inputs)
    return Exported(target, target.stat().st_size, found)
