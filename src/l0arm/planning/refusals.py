"""Layers that must not be cut, because something else computes or packs their weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

PACKED = ("quantized", "bitsandbytes", "torchao", "gptq", "awq")
REWRITERS = ("WeightNorm", "SpectralNorm", "BasePruningMethod")  # rewrite a weight before each call


def refused_tensors(model: nn.Module) -> dict[str, str]:
    """The reason for every tensor that is not cut, by each of its names."""
    found: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        reason = _reason(module)
        if reason is not None:
            told = f"'{name or type(module).__name__}' {reason}"
            for key in _tensors(module):
                found.setdefault(f"{name}.{key}" if name else key, told)
    return found


def rewritten(model: nn.Module) -> list[str]:
    """Layers whose weight a hook rewrites before each call; such a model cannot be copied."""
    return [
        name
        for name, module in model.named_modules()
        if any(_rewrites(hook) for hook in module._forward_pre_hooks.values())
    ]


def _reason(module: nn.Module) -> str | None:
    if parametrize.is_parametrized(module):
        return "is parametrized: its weight is computed, not held"
    if any(hasattr(module, key) for key in ("lora_A", "lora_B", "lora_embedding_A")):
        return "carries LoRA adapters: merge them first"
    if any(part in type(module).__module__.lower() for part in PACKED):
        return "is quantised: its weight is packed"
    if any(_packed(p) for p in module._parameters.values() if p is not None):
        return "is quantised: its weight is packed"
    if isinstance(module, nn.MultiheadAttention):
        return "is attention of a kind that cannot be replaced (bias_k, add_zero_attn, hooks)"
    return None


def _packed(tensor: Tensor) -> bool:
    return type(tensor) not in (Tensor, nn.Parameter) or not torch.is_floating_point(tensor)


def _rewrites(hook: object) -> bool:
    return any(base.__name__ in REWRITERS for base in type(hook).__mro__)


def _tensors(module: nn.Module) -> Iterator[str]:
    """Names of all tensors inside, adapters and originals too."""
    for name, _ in module.named_parameters(remove_duplicate=False):
        yield name
    for name, _ in module.named_buffers(remove_duplicate=False):
        yield name
