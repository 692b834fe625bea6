"""E[parameters left]: the price of a unit is what the network would really lose with it.

Eq. 17 counts the weights of a unit by its own group. But a weight between two layers is gone when
either of its ends is closed: a filter costs less, the fewer filters read it. Here the price of a
unit depends on the present state of all other gates, so that one strength suits all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from l0arm.contracts import Extra, Gates
from l0arm.costs.expectation import parameter_cost
from l0arm.gating import Gated

COUNT = "parameter_count"


class ParameterCount(Extra):
    """The expected number of parameters of one gated model; kept in its ``extras``."""

    def __init__(self, gated: Gated) -> None:
        super().__init__()
        self.cost = parameter_cost(gated)
        if not self.cost.depends:
            raise ValueError(
                "no gate of this model takes a parameter off it (those of single weights only zero "
                "them), so parameters left are no price; use price='fixed', or 'l0-disarm'"
            )

    def forward(self, open_probability: Tensor) -> Tensor:
        return self.cost(open_probability)


def parameter_count(gated: Gated) -> Mapping[str, Extra]:
    """The ``extras`` of a method that penalises parameters."""
    return {COUNT: ParameterCount(gated)}


@dataclass(frozen=True)
class Parameters:
    """The penalty ``lam E[parameters left]``; the method needs ``extras=parameter_count``.

    Args:
        lam: The price of one parameter, the same in all layers.

    Raises:
        ValueError: ``lam`` is not one number >= 0.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), method="l0-best", lam=0.5)
        >>> _ = gated.phi.data.fill_(100.0)  # all open
        >>> gated.penalty().item()  # of 38 parameters
        19.0
    """

    lam: float

    def __post_init__(self) -> None:
        if not isinstance(self.lam, int | float) or not self.lam >= 0:
            raise ValueError(
                f"lam must be one number >= 0, the price of a parameter in any layer; got "
                f"{self.lam!r}"
            )

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        count: Tensor = gated.extra(ParameterCount)(gates.open_probability)
        return self.lam * count
