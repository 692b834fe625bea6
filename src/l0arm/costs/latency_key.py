"""What measured times depend on, as one digest: the machine, the network, its gates, the inputs."""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm.equality.example import Example
from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors


def latency_key(gated: Gated, example: Example) -> str:
    """SHA-256 of all that the times depend on; anything else would be measured anew."""
    facts = {
        "machine": _machine(gated.phi.device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "modules": repr(gated.model),  # with strides and paddings
        "code": sorted({_code(type(module)) for module in gated.model.modules()}),
        "tensors": {name: _form(t) for name, t in named_tensors(gated.model).items()},
        # where a gate starts has no part in it
        "groups": [repr(replace(group, initial=0.5)) for group in gated.groups],
        "inputs": [_form(leaf) for leaf in pytree.tree_leaves((example.args, example.kwargs))],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _machine(device: torch.device) -> list[str]:
    """The processor; on another device, that too."""
    names = [platform.machine(), _processor(), torch.backends.cpu.get_cpu_capability()]
    if device.type == "cpu":
        return names
    name = getattr(torch.get_device_module(device), "get_device_name", str)
    return [*names, device.type, name(device)]


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _form(value: Any) -> str:
    """A tensor without its values, but with how it lies in memory; the kind of anything else."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    strides = value.stride() if value.layout == torch.strided else value.layout
    return f"{tuple(value.shape)} {strides} {value.dtype}"


def _code(kind: type[nn.Module]) -> str:
    """The class of a module and what its forward does, so that an edited one is told apart."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    code = getattr(kind.forward, "__code__", None)
    if code is None:
        return name
    plain = [c for c in code.co_consts if isinstance(c, str | int | float | None)]
    return f"{name} {code.co_code.hex()} {code.co_names} {plain}"
