"""How units pass through each family of operators. Importing this package registers all rules.

**To add a rule for an operator**, write one function in the file of its family and decorate it with
``@rule("aten.name")``. For a new family add a file and list it below. For an operator of your own
use the same decorator in your own code. The function is called with the ``Site`` (the operation)
and the operator's own arguments, with a ``Space`` (shape and units) in place of every tensor. It
returns the ``Space`` of the result and uses these:

* ``elementwise`` is itself the rule of any operator that acts element by element.
* ``mixed`` pins the units along dimensions that the operator mixes, ``without`` also removes them.
* ``combine``, ``product`` and ``reshape`` are the algebra of element-wise operators, of sums of
  products and of views (in ``pointwise``, ``contraction`` and ``views``).
* ``NotCovered`` is raised for arguments that the rule does not treat.

An operator without a rule pins all units that reach it. A wrong rule makes no wrong network: the
planner tries every group by values, and one that fails is masked.

Example:
    An operator that scales the last dimension to length 1 mixes the units there.

    >>> import torch
    >>> from torch import nn
    >>> from l0arm.planning import PlanError, plan
    >>> from l0arm.planning.rules import Site, Space, forget, mixed, rule
    >>> @torch.library.custom_op("example::unit_length", mutates_args=())
    ... def unit_length(x: torch.Tensor) -> torch.Tensor:
    ...     return x / x.norm(dim=-1, keepdim=True)
    >>> @unit_length.register_fake
    ... def _(x):
    ...     return torch.empty_like(x)
    >>> @rule("example.unit_length")
    ... def last_dimension_mixed(site: Site, x: Space) -> Space:
    ...     return mixed(site.atoms, x, {len(x.shape) - 1}, site.mixes())
    >>> class Net(nn.Sequential):
    ...     def forward(self, x):
    ...         return self[2](unit_length(self[1](self[0](x))))
    >>> net = Net(nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 2))
    >>> found = plan(net, torch.rand(3, 4))
    >>> [group.name for group in found.groups], found.skipped[0].reason
    (['0'], 'unit_length mixes the units')
    >>> forget("example.unit_length")
"""

from l0arm.planning.rules import (
    attention,
    contraction,
    convolution,
    embedding,
    experts,
    normalisation,
    pointwise,
    pooling,
    recurrent,
    reduction,
    slicing,
    views,
)
from l0arm.planning.rules.base import NotCovered, Site, forget, rule
from l0arm.planning.rules.pointwise import elementwise
from l0arm.planning.space import Space, mixed, without

__all__ = [
    "NotCovered",
    "Site",
    "Space",
    "attention",
    "contraction",
    "convolution",
    "elementwise",
    "embedding",
    "experts",
    "forget",
    "mixed",
    "normalisation",
    "pointwise",
    "pooling",
    "recurrent",
    "reduction",
    "rule",
    "slicing",
    "views",
    "without",
]
