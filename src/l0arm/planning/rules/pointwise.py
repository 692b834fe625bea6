"""Operators that act element by element, with broadcasting: units that meet become one unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from l0arm.planning.rules.base import Site, rule, spaces_in
from l0arm.planning.space import Factor, Space, collapse, simplified

ACTIVATIONS = """relu relu6 gelu silu sigmoid hardswish hardsigmoid hardtanh leaky_relu elu selu
celu softplus softsign mish tanh threshold logit log_sigmoid hardshrink softshrink tanhshrink
dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout rrelu"""

ARITHMETIC = """add sub rsub pow exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal
abs sign sgn sin cos tan asin acos atan atan2 sinh cosh erf erfc sigmoid floor ceil round trunc frac
clamp clamp_min clamp_max clip maximum minimum fmax fmin fmod remainder floor_divide lerp addcmul
addcdiv hypot nan_to_num xlogy where masked_fill copy"""

LOGIC = """eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
bitwise_not bitwise_xor __and__ __or__ __xor__ isnan isinf isfinite zeros_like ones_like full_like
rand_like randn_like empty_like fill zero bernoulli"""

SAME = "to _to_copy clone contiguous detach alias lift_fresh float double half bfloat16 positive"


@rule(*(f"aten.{name}" for name in f"{ACTIVATIONS} {ARITHMETIC} {LOGIC}".split()))
def elementwise(site: Site, *args: Any, **kwargs: Any) -> Space:
    """Every operator that computes each element from the elements at the same position."""
    return combine(site, spaces_in(*args, *kwargs.values()), site.shape)


@rule("aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty")
def constant(site: Site, like: Space, *settings: Any, **more: Any) -> Space:
    """A value of its own, which has dtype and device of another."""
    return Space(site.shape)


@rule("aten.mul", "aten.div", "aten.neg", "aten.multiply", "aten.divide", "aten.true_divide")
def scaled(site: Site, x: Any, *others: Any, **kwargs: Any) -> Space:
    """Products. A parameter times a number is still that parameter: zero where it is zero."""
    result = elementwise(site, x, *others, **kwargs)
    alone = isinstance(x, Space) and not spaces_in(*others)
    return replace(result, parameter=alone and x.parameter)


@rule(*(f"aten.{name}" for name in SAME.split()), "aten.type_as")
def same(site: Site, x: Space, *others: Any, **kwargs: Any) -> Space:
    """The value itself, in another dtype or on another device."""
    return x


@rule("aten.prelu")
def prelu(site: Site, x: Space, weight: Space) -> Space:
    """One slope for all channels, or one per channel."""
    return channelwise(site, x, [weight], min(1, len(x.shape) - 1))


def channelwise(site: Site, x: Space, parameters: Sequence[Space | None], dim: int) -> Space:
    """``x`` combined with vectors along one of its dimensions (those of BatchNorm, a bias)."""
    ones = (1,) * len(x.shape)
    vectors = [
        replace(p.moved({0: dim}, ones[:dim] + p.shape + ones[dim + 1 :]), fixed=p.fixed)
        for p in parameters
        if p is not None
    ]
    return combine(site, [x, *vectors], x.shape)


def combine(site: Site, operands: Sequence[Space], shape: tuple[int, ...]) -> Space:
    """The space of ``f(a, b, ...)`` after broadcasting to ``shape``."""
    aligned = [_aligned(simplified(site.atoms, o), shape) for o in operands]
    merged: list[Factor] = []
    for number, operand in enumerate(aligned):
        for factor in operand.factors:
            for place, other in enumerate(aligned):
                if place != number:
                    factor = _beside(site, factor, other, operands[place])
            merged = _merge(site, merged, factor)
    return Space(shape, tuple(merged), fixed=next((o.fixed for o in operands if o.fixed), ""))


def _aligned(space: Space, shape: tuple[int, ...]) -> Space:
    """The operand with the dimensions of the result: missing ones come first and have size 1."""
    shift = len(shape) - len(space.shape)
    to = {dim: dim + shift for dim in range(len(space.shape))}
    return space.moved(to, (1,) * shift + space.shape)


def _beside(site: Site, factor: Factor, other: Space, operand: Space) -> Factor:
    """The factor, not cut along dimensions that the other value fills without labels.

    ``other`` is the ``operand`` after broadcasting. Constants and inputs can lose positions.
    """
    blocked = {d for d in factor.dims if other.shape[d] > 1 and other.at(d) is None}
    if len(factor.dims) == 1 and blocked:
        (dim,) = factor.dims
        if site.picks(operand, dim - len(other.shape), factor.atoms):
            return factor
    reason = f"{site.where} meets positions that are never cut"
    if other.fixed:
        reason += f" ({other.fixed})"
    return collapse(site.atoms, factor, blocked, reason)


def _merge(site: Site, merged: list[Factor], factor: Factor) -> list[Factor]:
    """The labels of the result so far and one more factor, united with those it overlaps."""
    result = []
    for known in merged:
        if set(known.dims) & set(factor.dims):
            factor = _unite(site, known, factor)
        else:
            result.append(known)
    return [*result, factor]


def _unite(site: Site, one: Factor, other: Factor) -> Factor:
    """Two factors over overlapping dimensions become one over the dimensions they share.

    If one factor labels heads and positions (h, d) and the other only positions (d), units become
    whole heads: the units of the outermost dimension stay distinct.
    """
    reason = site.mixes()
    for wide, narrow in ((one, other), (other, one)):
        if set(narrow.dims) < set(wide.dims) and wide.dims[0] not in narrow.dims:
            site.atoms.pin(narrow.atoms, reason)
            return collapse(site.atoms, wide, set(narrow.dims), reason)
    shared = set(one.dims) & set(other.dims)
    one = collapse(site.atoms, one, set(one.dims) - shared, reason)
    other = collapse(site.atoms, other, set(other.dims) - shared, reason)
    site.atoms.unite(one.atoms, other.atoms, reason)
    return one
