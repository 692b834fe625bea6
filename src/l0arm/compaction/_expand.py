"""The way back from compaction: the weights of a small network in the dense shape."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l0arm.compaction.provenance import set_provenance
from l0arm.gating import Gated
from l0arm.gating.cutting import permanent_draw, plain_copy
from l0arm.gating.draw import Draw
from l0arm.gating.layout import Layout, TensorCut, named_tensors
from l0arm.gating.norms import shrunk_weight


def expand(small: nn.Module, gated: Gated, *, round_to: int | None = None) -> nn.Module:
    """Return a dense network that computes what a small one computes.

    This is the way back from ``compact``, also after further training of the small network.
    Weights that were cut are zero, and z-bar stays folded into the weights that read a unit. Rows
    of buffers that were cut are those of ``gated``. Both arguments are left as they are.

    Args:
        small: The small network.
        gated: The gated model that ``small`` was compacted from, with phi unchanged since.
        round_to: The same as in ``compact``.

    Returns:
        The dense network, in the modes of the small one.

    Raises:
        ValueError: A tensor of ``small`` does not have the shape that the gates leave, or experts
            were cut: no weights give a router the score of one that is never chosen.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0, initial=0.9)
        >>> [tuple(p.shape) for p in expand(gated.compact(), gated).parameters()]
        [(5, 6), (5,), (3, 5), (3,)]
    """
    draw = permanent_draw(gated, gated.deterministic(round_to))
    for number, group in enumerate(gated.groups):
        if group.routes and not draw.full[number]:
            raise ValueError(
                f"experts of '{group.name}' were cut, and no weights give a dense router the score "
                "of an expert that is never chosen; go on with the small network"
            )
    dense = plain_copy(gated, share_hooks=True)
    names = _Names(gated.layout, draw)
    there, cuts = named_tensors(small), gated.layout.tensors
    new: dict[int, Tensor] = {}  # by identity, under the first name: a tied weight stays tied
    for name, tensor in named_tensors(dense).items():
        if id(tensor) not in new:
            new[id(tensor)] = _placed(name, tensor, there.get(names(name)), cuts.get(name), draw)
    modules = dict(small.named_modules(remove_duplicate=False))
    for name, module in dense.named_modules():
        if names(name) in modules:  # those of closed branches are gone
            module.training = modules[names(name)].training
        for home in (module._parameters, module._buffers):
            for key, old in home.items():
                if old is not None:
                    home[key] = new[id(old)]
    return set_provenance(dense, None)


class _Names:
    """Maps names of the dense network to the small one, where InputSelection wraps modules."""

    def __init__(self, layout: Layout, draw: Draw) -> None:
        wrapped = [
            n for n, (_, axis) in layout.selections.items() if draw.kept(axis).local is not None
        ]
        self._wrapped = sorted(wrapped, key=len, reverse=True)  # innermost first

    def __call__(self, name: str) -> str:
        for outer in self._wrapped:
            if not outer:
                name = f"module.{name}" if name else "module"
            elif name == outer or name.startswith(f"{outer}."):
                name = f"{outer}.module{name[len(outer) :]}"
        return name


def _placed(
    name: str, dense: Tensor, small: Tensor | None, spec: TensorCut | None, draw: Draw
) -> Tensor:
    """The small tensor at the positions it was cut from. One of a closed branch is zero."""
    if small is None and draw.is_absent(name):
        if not isinstance(dense, nn.Parameter):
            return dense.clone()
        return nn.Parameter(torch.zeros_like(dense), dense.requires_grad)
    axes = {} if spec is None else spec.axes
    kept = [draw.kept(axes[dim]).index if dim in axes else None for dim in range(dense.dim())]
    shape = tuple(dense.shape[d] if k is None else len(k) for d, k in enumerate(kept))
    if small is None or small.shape != shape:
        got = "is not there" if small is None else f"has shape {tuple(small.shape)}"
        raise ValueError(
            f"'{name}' of the small network {got}, where the gates leave {shape}; expand with the "
            "gated network it was compacted from, its phi unchanged, and the same round_to"
        )
    with torch.no_grad():
        is_parameter = isinstance(dense, nn.Parameter)
        new = torch.zeros_like(dense) if is_parameter else dense.clone()
        new = new.to(small.device, small.dtype)
        if spec is not None and spec.rms is not None:
            small = shrunk_weight(small, spec.rms, len(dense))
        new[grid_of(kept, dense.shape, small.device)] = small
    return nn.Parameter(new, small.requires_grad) if is_parameter else new


def grid_of(
    kept: list[Tensor | None], shape: torch.Size, device: torch.device
) -> tuple[Tensor, ...]:
    """The kept positions of every dimension, shaped to broadcast against each other."""
    full = [torch.arange(shape[d]) if k is None else k for d, k in enumerate(kept)]
    return tuple(
        k.to(device).view([-1 if d == dim else 1 for d in range(len(full))])
        for dim, k in enumerate(full)
    )
