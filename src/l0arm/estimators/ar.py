"""Augment-REINFORCE: one evaluation of the loss, more variance (Eq. 10)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator
from l0arm.estimators._memory import MovingMean
from l0arm.estimators._surrogate import (
    Chain,
    binary_draw,
    checked_chain,
    loss_of,
    probabilities,
    surrogate,
)


@dataclass(frozen=True)
class AR(NoiseEstimator):
    """``f(1[u < g(phi)]) (1 - 2 u)``, Eq. 10. One evaluation of f.

    Args:
        chain: ``"exact"``: the gradient includes g'(phi). ``"printed"``: it does not, as Eq. 10 is
            printed. That is biased unless g is the plain sigmoid.
        decay: The share of the past in a moving mean of earlier losses (0.95, say) that is
            subtracted as a baseline. The estimate stays unbiased and varies far less. None: no
            baseline, as in the paper.

    Raises:
        ValueError: ``chain`` is unknown, or ``decay`` is not in [0, 1).

    Example:
        >>> import torch
        >>> from l0arm.estimators import AR
        >>> probs = torch.tensor([0.5], requires_grad=True)
        >>> AR().at(lambda z: 3 * z.sum(), probs, u=torch.tensor([0.25])).backward()
        >>> probs.grad  # 3 (1 - 2/4) / (1/2 1/2)
        tensor([6.])
    """

    chain: Chain = "exact"
    decay: float | None = None
    state: MovingMean | None = field(init=False, compare=False, repr=False, default=None)
    forwards = 1

    def __post_init__(self) -> None:
        checked_chain(self.chain)
        if self.decay is not None:
            object.__setattr__(self, "state", MovingMean(self.decay))

    @property
    def unbiased(self) -> bool:
        """Not as printed: without g'(phi) the mean is another vector."""
        return self.chain == "exact"

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        value = super().__call__(f, gates, generator)
        if self.state is not None:
            self.state.update(value)
        return value

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """f(z) with the estimate attached, for given noise u and the present baseline."""
        value = f(binary_draw(u, probabilities(gates)))
        loss = loss_of(value) if self.state is None else loss_of(value) - self.state.value
        s = loss * (1 - 2 * u)  # Eq. 10
        return surrogate(value, s, gates, self.chain)
