"""Compaction during training: units that are closed for good are removed, the others train on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from l0arm.compaction.optimizer import Transfer
from l0arm.gating import Gated, Group, Patch, Slice
from l0arm.gating.cutting import InputSelection, cut_copy, select_inputs
from l0arm.gating.draw import Draw
from l0arm.gating.layout import TensorCut, named_tensors, units_of
from l0arm.gating.mask import close_dead_units


def shrink(
    gated: Gated, *, bound: float = 1e-3, optimizer: torch.optim.Optimizer | None = None
) -> Gated:
    """Return a smaller Gated without the units that are closed almost surely.

    Weights, buffers, phi and the optimizer's state are carried over. Under any draw, the result
    computes what ``gated`` computed with the removed gates closed. Every group keeps at least one
    unit, and as many as its floor. Where inputs are gathered (``select``) that no group makes, such
    as pixels, an ``InputSelection`` before their reader leaves the removed ones out. Where another
    group makes them, they stay gated. Penalties count the weights of the result, so lambda |g|
    falls with it (not with ``Course(shrink=True)``). Call it between epochs; do not use the
    old Gated afterwards.

    Args:
        gated: The gated model.
        bound: Units that are open with a smaller probability are removed.
        optimizer: The optimizer that trains ``gated``. Afterwards it trains the result.

    Returns:
        The smaller gated model, or ``gated`` itself if no unit can be removed.

    Raises:
        ValueError: ``bound`` is no probability, or the model has a budget or extras that cannot be
            cut.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0, initial=0.9)
        >>> gated.phi.data[6:8] = -9.0
        >>> [group.units for group in shrink(gated).groups]
        [6, 3]
    """
    if not 0.0 < bound < 1.0:
        raise ValueError(f"bound is a probability strictly between 0 and 1; got {bound!r}")
    keep = staying(gated, bound)
    if bool(keep.all()):
        return gated
    draw = Draw(gated.layout, keep.to(gated.phi.dtype), writes=False)
    transfer = None if optimizer is None else Transfer(optimizer, gated, draw)
    smaller, tensors = cut_to(gated, draw)
    if transfer is not None:
        kept = {name: t for name, t in tensors.items() if isinstance(t, nn.Parameter)}
        transfer(kept, smaller.phi)
    return smaller


def cut_to(gated: Gated, draw: Draw) -> tuple[Gated, dict[str, Tensor]]:
    """A smaller Gated of the gates that are open in a draw, and its tensors by their old names."""
    keep = draw.z.bool()
    small = cut_copy(gated, draw)
    tensors = named_tensors(small)
    small, names = _select_for_good(small, gated, draw)
    smaller = Gated(
        small,
        [_shrunk(gated, number, keep, draw, names) for number in range(len(gated.groups))],
        gated.method,
        settings=gated.settings,
        generator=torch.Generator(),  # its phi is replaced: the global generator stays as it is
    ).train(gated.training)
    smaller.phi.data = gated.phi.detach()[keep].clone()
    smaller.estimator, smaller.estimator_state = gated.estimator, gated.estimator_state
    return smaller, tensors


def _select_for_good(
    small: nn.Module, gated: Gated, draw: Draw
) -> tuple[nn.Module, dict[str, str]]:
    """Leave removed inputs out before their readers, and map old names to new ones.

    A reader that has a selection already keeps one.
    """
    before = {**named_tensors(small), **dict(small.named_modules())}
    small = select_inputs(small, gated.layout, draw)
    for outer in list(small.modules()):
        if isinstance(outer, InputSelection) and isinstance(outer.module, InputSelection):
            outer.index, outer.module = outer.index[outer.module.index], outer.module.module
    after = (*named_tensors(small).items(), *small.named_modules())
    now = {id(thing): name for name, thing in after}
    return small, {name: now[id(thing)] for name, thing in before.items() if id(thing) in now}


def staying(gated: Gated, bound: float, also: Tensor | None = None) -> Tensor:
    """The gates to keep: those above the bound, one per group, and inputs nobody can drop.

    Args:
        gated: The gated model.
        bound: Gates that are open with a smaller probability go.
        also: A mask of gates to keep whatever their probability.

    Returns:
        A mask. Units that have no path to the output without the others are not in it.

    Raises:
        ValueError: The model has a budget or extras that cannot be cut.
    """
    if gated.budget is not None:
        raise ValueError(
            "shrink cannot carry a budget over, which counts in shares of the network it was set "
            "for; train to the end, or give the smaller network a budget of its own"
        )
    if gated.extras:
        raise ValueError(
            f"the method's {' and '.join(gated.extras)} belong to the network at its full size, "
            "and shrink cannot cut them; train on as it is, and compact at the end"
        )
    with torch.no_grad():
        probability = gated.gates.open_probability
    keep = probability >= bound if also is None else (probability >= bound) | also
    for number, group in enumerate(gated.groups):
        if not (group.makes or _selects_alone(gated, group)):
            keep[gated.layout.span(number)] = True
    _keep_at_least_one(gated, keep, probability)
    keep = close_dead_units(gated.layout, keep.to(probability.dtype)) != 0
    _keep_at_least_one(gated, keep, probability)
    return keep


def _selects_alone(gated: Gated, group: Group) -> bool:
    """Whether a group gathers inputs that no other group makes. Their number is then constant."""
    if group.select is None:
        return False
    _, axis = gated.layout.selections[group.select.tensor]
    return len(axis.reaches) == 1


def _keep_at_least_one(gated: Gated, keep: Tensor, probability: Tensor) -> None:
    """Keep the most probable units of a group that would fall below one unit, or its floor."""
    for number in range(len(gated.groups)):
        span = gated.layout.span(number)
        least = max(1, gated.groups[number].floor)
        if int(keep[span].sum()) < least:
            keep[span.start + probability[span].topk(least).indices] = True


def _shrunk(gated: Gated, number: int, keep: Tensor, draw: Draw, names: dict[str, str]) -> Group:
    """The group with its remaining units, at their positions after the cut, under new names."""
    group = gated.groups[number]
    staying = keep[gated.layout.span(number)].nonzero().squeeze(1).tolist()

    def moved(pieces: tuple[Slice, ...]) -> tuple[Slice, ...]:
        found = [_moved(gated, group, piece, staying, draw) for piece in pieces]
        return tuple(replace(piece, tensor=names[piece.tensor]) for piece in found)

    select = group.select
    return replace(
        group,
        units=len(staying),
        reads=moved(group.reads),
        makes=moved(group.makes),
        counts=moved(group.counts),
        select=None if select is None else replace(select, tensor=names[select.tensor]),
        patches=tuple(
            replace(
                patch,
                module=names[patch.module],
                per_unit=_per_unit_left(gated, number, patch, draw),
            )
            for patch in group.patches
        ),
        resizes=tuple(replace(resize, module=names[resize.module]) for resize in group.resizes),
        picks=tuple(replace(pick, module=names[pick.module]) for pick in group.picks),
        borrows=tuple(
            replace(borrow, module=names[borrow.module], tensor=names[borrow.tensor])
            for borrow in group.borrows
        ),
        routes=tuple(replace(route, module=names[route.module]) for route in group.routes),
        dots=tuple(replace(dot, module=names[dot.module]) for dot in group.dots),
        widens=tuple(replace(widen, module=names[widen.module]) for widen in group.widens),
        norms=tuple(replace(norm, module=names[norm.module]) for norm in group.norms),
    )


def _per_unit_left(gated: Gated, number: int, patch: Patch, draw: Draw) -> int:
    """What an attribute loses for a unit: less, if units of other groups are factors of it."""
    units = gated.groups[number].units
    full = getattr(gated.model.get_submodule(patch.module), patch.attribute)
    if patch.per_unit * units != full:
        return patch.per_unit
    patches = gated.layout.patches[patch.module][patch.attribute]
    return draw.count_left(full, patches) // draw.units_kept(number)


def _moved(gated: Gated, group: Group, piece: Slice, staying: list[int], draw: Draw) -> Slice:
    if piece.dim is None:
        return piece
    tensors = named_tensors(gated.model)
    axis = gated.layout.tensors.get(piece.tensor, TensorCut(piece.tensor)).axes.get(piece.dim)
    index = None if axis is None else draw.kept(axis).index
    kept = range(tensors[piece.tensor].shape[piece.dim]) if index is None else index.tolist()
    place = {old: new for new, old in enumerate(kept)}
    units = units_of(tensors, group, piece)
    now = tuple(tuple(place[p] for p in units[unit] if p in place) for unit in staying)
    block = len(now[0])
    in_order = [p for positions in now for p in positions] == list(range(len(kept)))
    if in_order and all(len(positions) == block for positions in now):
        return Slice(piece.tensor, piece.dim, block=block)
    return Slice(piece.tensor, piece.dim, index=now)
