"""An ONNX file as a network to call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from l0arm.export.capture import Inputs, arguments


class OnnxNetwork:
    """Runs a file with onnxruntime on the CPU; takes and gives tensors."""

    def __init__(self, path: str | Path, threads: int = 1) -> None:
        runtime = required("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        self._session = runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.names = [each.name for each in self._session.get_inputs()]

    def __call__(self, inputs: Inputs) -> Sequence[Tensor]:
        """All outputs; the inputs in order, or by name."""
        args, kwargs = arguments(inputs)
        values = kwargs or dict(zip(self.names, args, strict=True))
        fed = {name: values[name].detach().cpu().numpy() for name in self.names}
        return [torch.from_numpy(output) for output in self._session.run(None, fed)]


def required(package: str) -> Any:
    """A package of the extra, or an error that names it."""
    try:
        return __import__(package)
    except ImportError:
        raise ImportError(f"export needs {package}: pip install 'l0arm[export]'") from None
