"""The forms of a network that ``l0arm bench RUN|FOLDER`` puts side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from l0arm.costs import count_flops
from l0arm.export import Exported, OnnxNetwork, export_onnx
from l0arm.lab.bench.deployed import Form
from l0arm.lab.runs.deployment import Deployment
from l0arm.lab.runs.sweeping import parameter_count


def forms_of(found: Deployment, folder: Path) -> dict[str, Form]:
    """Dense and compact in torch, ONNX and its 8-bit form; files go to ``folder``."""
    done = export_onnx(found.compact, found.example, folder / "model.onnx", quantise=True)
    assert done.quantised is not None
    small = _in_torch(found.compact, found, found.accuracy(found.compact))
    return {
        "dense": _in_torch(found.dense, found, None),
        "compact": small,
        "onnx": _in_onnx(done, small, found),
        "int8": _in_onnx(done.quantised, small, found),
    }


def _in_torch(model: nn.Module, found: Deployment, accuracy: float | None) -> Form:
    tensors = [*model.parameters(), *model.buffers()]
    return Form(
        make=partial(torch_call, model),
        parameters=parameter_count(model),
        macs=count_flops(model, found.example[:1]) // 2,
        bytes=sum(t.numel() * t.element_size() for t in tensors),
        accuracy=accuracy,
    )


def _in_onnx(done: Exported, small: Form, found: Deployment) -> Form:
    network = OnnxNetwork(done.path)
    return Form(
        make=partial(onnx_call, done.path),
        parameters=small.parameters,
        macs=small.macs,
        bytes=done.bytes,
        accuracy=found.accuracy(lambda x: network(x)[0]),
    )


def torch_call(model: nn.Module, threads: int) -> Callable[[Tensor], object]:
    """The model as a call without gradients; torch's threads are set outside."""
    torch.set_num_threads(threads)

    def call(x: Tensor) -> object:
        with torch.inference_mode():
            return model(x)

    return call


def onnx_call(path: Path, threads: int) -> Callable[[Tensor], object]:
    """A file as a call."""
    return OnnxNetwork(path, threads)
