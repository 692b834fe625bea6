"""A guard around a broken kernel: the weight gradient of narrow, strided 1x1 convolutions.

Cutting units makes widths that few other networks have. On CPUs torch computes convolutions with
oneDNN. For a strided 1x1 convolution whose input is channels-last, oneDNN first copies the pixels
that are read into a workspace. In the weight gradient it places them as if there were 8 (AVX2) or
16 (AVX-512) input channels, while the workspace has room for the actual number. With fewer
channels it writes past the end: the process crashes, hangs, or goes on with wrong gradients.

This is https://github.com/uxlfoundation/oneDNN/issues/6035. The code is the same in all releases
from oneDNN 1.7 to 3.13, which torch 2.6 to 2.15 contain. The upstream fix has not been released.

oneDNN uses the workspace only where the stride divides the image, so that rows and columns are
left over at the end that no kernel reads. The guard crops one of them. The convolution reads the
same pixels and runs on a kernel without that workspace.
"""

from __future__ import annotations

import warnings
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

NARROW = 16  # with so many input channels, the workspace is large enough on every processor


class KernelWarning(UserWarning):
    """A layer of the user's own kind meets a broken kernel, and cannot be guarded against it."""


def guard(module: nn.Module, *, cut: bool = False) -> RemovableHandle | None:
    """Guard a module that may meet the broken kernel; any other module gets no hook.

    Args:
        module: Any module.
        cut: Whether input channels of the module are going to be dropped.

    Returns:
        The handle of the hook, or None if none is needed or the module is guarded already.

    Example:
        >>> layer = nn.Conv2d(5, 3, 1, stride=2)
        >>> guard(layer) is not None, guard(nn.Conv2d(5, 3, 3, stride=2)) is not None
        (True, False)
        >>> image = torch.rand(2, 5, 8, 8).contiguous(memory_format=torch.channels_last)
        >>> layer(image).shape
        torch.Size([2, 3, 4, 4])
    """
    if not at_risk(module) or not (cut or module.weight.shape[1] < NARROW):
        return None
    if crop_unread in module._forward_pre_hooks.values():
        return None
    return module.register_forward_pre_hook(crop_unread, with_kwargs=True)


def at_risk(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether some input could lead this module to the broken kernel."""
    return (
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and module.stride != (1, 1)
        and module.padding in ((0, 0), "valid")
        and module._parameters.get("weight") is not None  # not computed by a parametrization
    )


def affected(module: nn.Conv2d, x: Tensor) -> bool:
    """Whether backward of this call of a module at risk would use the broken kernel."""
    weight = module.weight
    return (
        weight.shape[1] < NARROW
        and weight.requires_grad
        and torch.is_grad_enabled()
        and module.groups == 1
        and x.device.type == "cpu"
        and x.dtype is not torch.float64  # torch computes these itself
        and x.shape[-2] % module.stride[0] == 0
        and x.shape[-1] % module.stride[1] == 0
        # torch.compile chooses the memory format itself: channels-last on CPUs.
        and (torch.compiler.is_compiling() or _channels_last(x) or _channels_last(weight))
    )


def crop_unread(
    module: nn.Conv2d, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A forward pre-hook: crop rows (or columns) at the end that the convolution does not read."""
    x = args[0] if args else kwargs.get("input")
    if not isinstance(x, Tensor) or x.dim() < 3 or not affected(module, x):
        return None
    if type(module).forward is not nn.Conv2d.forward:  # it may read what is cropped
        _warn(module)
        return None
    dim = -2 if module.stride[0] > 1 else -1
    cropped = x.narrow(dim, 0, x.shape[dim] - module.stride[dim] + 1)
    return ((cropped, *args[1:]), kwargs) if args else (args, {**kwargs, "input": cropped})


def _channels_last(tensor: Tensor) -> bool:
    """Whether torch takes these strides for channels-last (its own rule)."""
    if tensor.dim() != 4:
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        stride = tensor.stride(dim)
        if stride < least or (dim == 0 and least == tensor.stride(1)):
            return False
        least = stride * tensor.shape[dim]
    return tensor.stride(1) > 0


def _warn(module: nn.Conv2d) -> None:
    warnings.warn(
        f"{module}: on CPUs the weight gradient of a strided 1x1 convolution with fewer than "
        f"{NARROW} input channels may be wrong or crash in channels-last (oneDNN issue 6035). "
        f"{type(module).__name__} has a forward of its own, so this call is not guarded; keep its "
        "input and weight in torch.contiguous_format, or its input channels a multiple of "
        f"{NARROW} (round_to={NARROW})",
        KernelWarning,
        stacklevel=2,
    )
