"""Operators that treat elements one by one: activations, arithmetic, comparisons, dropout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from l0arm.planning.elementwise import channelwise, elementwise
from l0arm.planning.registry import rule, spaces_in
from l0arm.planning.site import Site
from l0arm.planning.space import Space

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

for name in f"{ACTIVATIONS} {ARITHMETIC} {LOGIC}".split():
    rule(f"aten.{name}")(elementwise)


@rule("aten.mul", "aten.div", "aten.neg", "aten.multiply", "aten.divide", "aten.true_divide")
def scaled(site: Site, x: Any, *others: Any, **kwargs: Any) -> Space:
    """Products; a parameter times a number is still that parameter, zero where it is zero."""
    result = elementwise(site, x, *others, **kwargs)
    alone = isinstance(x, Space) and not spaces_in(*others)
    return replace(result, parameter=alone and x.parameter)


SAME = "to _to_copy clone contiguous detach alias lift_fresh float double half bfloat16 positive"


@rule(*(f"aten.{name}" for name in SAME.split()), "aten.type_as")
def same(site: Site, x: Space, *others: Any, **kwargs: Any) -> Space:
    """The value itself, in another type or place."""
    return x


@rule("aten.prelu")
def prelu(site: Site, x: Space, weight: Space) -> Space:
    """One slope for all, or one per channel."""
    return channelwise(site, x, [weight], min(1, len(x.shape) - 1))
