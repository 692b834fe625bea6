"""ONNX: a network written as a file, run with onnxruntime, and compared before it appears."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.export.parity import (
    TOLERANCE,
    Exported,
    ExportError,
    Inputs,
    arguments,
    new_file,
    parity,
)
from l0arm.export.program import capture, without_messages


class OnnxNetwork:
    """An ONNX file as a network: runs on the CPU with onnxruntime, takes and returns tensors.

    Args:
        path: The file.
        threads: How many threads an operator may use.

    Raises:
        ImportError: onnxruntime is not installed.

    Example:
        >>> import tempfile
        >>> from l0arm.export import export_onnx
        >>> path = Path(tempfile.mkdtemp()) / "network.onnx"
        >>> exported = export_onnx(nn.Linear(3, 2), torch.rand(4, 3), path)
        >>> exported.parity.largest < 1e-5
        True
        >>> [output.shape for output in OnnxNetwork(path)(torch.rand(5, 3))]
        [torch.Size([5, 2])]
    """

    def __init__(self, path: str | Path, threads: int = 1) -> None:
        runtime = _required("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        self._session = runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.names = [each.name for each in self._session.get_inputs()]

    def __call__(self, inputs: Inputs) -> Sequence[Tensor]:
        """All outputs; inputs are given in order, or by name."""
        args, kwargs = arguments(inputs)
        values = kwargs or dict(zip(self.names, args, strict=True))
        feed = {name: values[name].detach().cpu().numpy() for name in self.names}
        return [torch.from_numpy(output) for output in self._session.run(None, feed)]


def export_onnx(
    model: nn.Module,
    example_inputs: Inputs,
    path: str | Path,
    *,
    quantise: bool = False,
    force: bool = False,
) -> Exported:
    """Write a plain network as ONNX with a batch of any size.

    The file is run with onnxruntime and compared with the network for batches of 1, 7 and 64 rows.
    One that computes something else is not kept.

    Args:
        model: A plain network, such as ``compact`` returns. It is exported in eval mode.
        example_inputs: A tensor, a sequence of tensors, or a mapping of names to tensors. The first
            dimension of each is the batch.
        path: The file to write.
        quantise: Also write ``NAME.int8.onnx``, with 8-bit weights and activations quantised on the
            fly. Its parity is reported, but no file is refused for it.
        force: Replace files that exist.

    Returns:
        The file, its size and its parity.

    Raises:
        ExportError: The network cannot be exported, or the file computes something else.
        FileExistsError: The file exists.
        ImportError: A package of the extra ``export`` is missing.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "network.onnx"
        >>> exported = export_onnx(nn.Linear(3, 2), torch.rand(4, 3), path)
        >>> exported.path == path, exported.parity.largest < 1e-5
        (True, True)
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        _required(package)
    path = Path(path)
    program = capture(model, example_inputs)
    with new_file(path, force=force) as temporary:
        with without_messages(), torch.no_grad():
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
    """The same network with 8-bit weights."""
    onnx = _required("onnx")
    quantization = _required("onnxruntime.quantization").quantization
    target = path.with_suffix(".int8.onnx")
    graph = onnx.load(path)
    del graph.graph.value_info[
        :
    ]  # the quantiser changes the layout of weights, so shapes are wrong
    with new_file(target, force=force) as temporary:
        with without_messages():
            # Unsigned: onnxruntime has no signed 8-bit convolution on the CPU.
            kind = quantization.QuantType.QUInt8
            quantization.quantize_dynamic(graph, temporary, weight_type=kind)
        found = parity(model, OnnxNetwork(temporary), example_inputs)
    return Exported(target, target.stat().st_size, found)


def _required(package: str) -> Any:
    """A package of the extra, or an error that names the extra."""
    try:
        return __import__(package)
    except ImportError:
        raise ImportError(f"export needs {package}: pip install 'l0arm[export]'") from None
