"""Norms: per channel (units pass), per group of channels (whole groups), over units (pinned)."""

from __future__ import annotations

from typing import Any

from l0arm.planning.rules.base import NotCovered, Site, rule
from l0arm.planning.rules.pointwise import channelwise, combine
from l0arm.planning.space import Space, labels, mixed


@rule("aten.batch_norm", "aten.instance_norm")
def per_channel(
    site: Site,
    x: Space,
    weight: Space | None = None,
    bias: Space | None = None,
    mean: Space | None = None,
    variance: Space | None = None,
    *settings: Any,
) -> Space:
    """Every channel has its own scale, shift and statistics.

    So have the rows of a weight that is standardised in this way, over its full width.
    """
    others = {0, *range(2, len(x.shape))}
    is_weight = x.constant and mean is None and len(x.shape) == 3
    if not (is_weight and site.runs_over_all(x, others, -1)):
        x = mixed(site.atoms, x, others, site.mixes())
    site.record_count(labels(x, 1))  # nn.InstanceNorm2d compares with num_features
    return channelwise(site, x, [weight, bias, mean, variance], 1)


@rule("aten.group_norm")
def group_norm(
    site: Site,
    x: Space,
    groups: int,
    weight: Space | None = None,
    bias: Space | None = None,
    *settings: Any,
) -> Space:
    """Statistics over the channels of a group: a unit is a whole group."""
    x = mixed(site.atoms, x, set(range(2, len(x.shape))), site.mixes())
    rows = labels(x, 1).reshape(groups, -1)
    site.atoms.unite_along(rows, (1,), f"{site.where} needs whole groups")
    site.record_count(rows[:, 0], "num_groups")
    return channelwise(site, x, [weight, bias], 1)


@rule("aten.layer_norm", "aten.rms_norm")
def over_units(
    site: Site,
    x: Space,
    shape: list[int],
    weight: Space | None = None,
    bias: Any = None,
    *settings: Any,
) -> Space:
    """Statistics over the last dimensions mix their units.

    Units that are whole heads pass, and those of a norm that goes on dividing by its full width.
    """
    dims = set(range(len(x.shape) - len(shape), len(x.shape)))
    if not site.passes_norm(x, dims):
        x = mixed(site.atoms, x, dims, site.mixes())
    parameters = [p for p in (weight, bias) if isinstance(p, Space)]
    return combine(site, [x, *parameters], x.shape)


@rule("aten._weight_norm")
def weight_norm(site: Site, direction: Space, length: Space, dim: int = 0) -> Space:
    """A weight by the direction and length of its slices along ``dim``: a slice is a unit."""
    if not 0 <= dim < len(direction.shape):
        raise NotCovered("the length of slices along one dimension")
    others = set(range(len(direction.shape))) - {dim}
    whole = mixed(site.atoms, direction, others, site.mixes())
    kept = whole.relabelled([f for f in whole.factors if not set(f.dims) & others])
    return combine(site, [kept, length], site.shape)
