"""Layers that must not be cut, because something else computes or packs their weights."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from l0arm.gating.layout import named_tensors

PACKED = ("quantized", "bitsandbytes", "torchao", "gptq", "awq")
NOT_REAL = "a gate opens and closes real weights"
REWRITERS = ("WeightNorm", "SpectralNorm", "BasePruningMethod")  # rewrite a weight before each call


def refused_tensors(model: nn.Module) -> dict[str, str]:
    """The reason for every tensor that is not cut, by each of its names."""
    found: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        inside = f"{name}." if name else ""
        for reason, keys in ((_reason(module), _tensors(module)), (_packing(module), _own(module))):
            if reason is not None:
                told = f"'{name or type(module).__name__}' {reason}"
                for key in keys:
                    found.setdefault(inside + key, told)
        for key, kind in _not_real(module):
            found.setdefault(inside + key, f"'{inside}{key}' {kind}: {NOT_REAL}")
    return found


def unready(model: nn.Module) -> str | None:
    """Why a model cannot be tried: it has a tensor without values, or one without a shape."""
    for name, tensor in named_tensors(model).items():
        if is_lazy(tensor):
            return (
                f"'{name}' has no shape yet (a lazy layer): run the model once on an input, then "
                "plan it"
            )
        if tensor.is_meta:
            return (
                f"'{name}' is on the meta device and has no values to try: make the model on a "
                "real device, or use to_empty(device='cpu') and load its weights"
            )
    return None


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
    if isinstance(module, nn.MultiheadAttention):
        return "is attention of a kind that cannot be replaced (bias_k, add_zero_attn, hooks)"
    return None


def _packing(module: nn.Module) -> str | None:
    """A tensor of another type packs the weight; the layer's other tensors scale and shift it."""
    held = [p for p in module._parameters.values() if p is not None]
    packed = any(type(p) not in (Tensor, nn.Parameter) for p in held)
    return "is quantised: its weight is packed" if packed else None


def _not_real(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Parameters that no gate can multiply, with their kind."""
    for key, tensor in module._parameters.items():
        if tensor is not None and not tensor.is_floating_point():
            yield key, "is complex" if tensor.is_complex() else "holds integers"


def _own(module: nn.Module) -> Iterator[str]:
    """Names of the tensors that the module itself holds."""
    yield from (key for key, tensor in module._parameters.items() if tensor is not None)
    yield from (key for key, tensor in module._buffers.items() if tensor is not None)


def _rewrites(hook: object) -> bool:
    return any(base.__name__ in REWRITERS for base in type(hook).__mro__)


def _tensors(module: nn.Module) -> Iterator[str]:
    """Names of all tensors inside, adapters and originals too."""
    for name, _ in module.named_parameters(remove_duplicate=False):
        yield name
    for name, _ in module.named_buffers(remove_duplicate=False):
        yield name
