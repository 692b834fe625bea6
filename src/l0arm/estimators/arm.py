"""Augment-REINFORCE-merge: two antithetic evaluations of the loss (Eq. 7 and Eq. 9)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator
from l0arm.estimators._surrogate import (
    Chain,
    antithetic_loss,
    antithetic_pair,
    checked_chain,
    equal_draws,
    loss_of,
    probabilities,
    surrogate,
    unmoved,
)


@dataclass(frozen=True)
class ARM(NoiseEstimator):
    """``(f(1[u > g(-phi)]) - f(1[u < g(phi)])) (u - 1/2)``, Eq. 9.

    Two evaluations of f. The second is skipped if both draws are equal, unless ``skip`` is False.

    Args:
        chain: ``"exact"``: the gradient includes g'(phi). ``"printed"``: it does not, as Eq. 9 is
            printed. That is biased unless g is the plain sigmoid.
        skip: False: evaluate f twice also at equal draws. It matters if f differs between the two
            evaluations (``l0_arm(second_pass="eval")``).

    Raises:
        ValueError: ``chain`` is unknown, or ``skip`` is no bool.

    Example:
        >>> import torch
        >>> from l0arm.estimators import ARM
        >>> probs = torch.tensor([0.5, 0.5], requires_grad=True)
        >>> loss = ARM()(lambda z: z.sum(), probs, torch.Generator().manual_seed(0))
        >>> loss.backward()  # probs.grad is now one sample of dE[f]/dprobs = (1, 1)
    """

    chain: Chain = "exact"
    skip: bool = True
    forwards = 2

    def __post_init__(self) -> None:
        checked_chain(self.chain)
        if not isinstance(self.skip, bool):
            raise ValueError(f"skip must be True or False; got {self.skip!r}")

    @property
    def unbiased(self) -> bool:
        """Not as printed: without g'(phi) the mean is another vector."""
        return self.chain == "exact"

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        z, z_anti = antithetic_pair(u, probabilities(gates))
        value = f(z)  # first, and with its graph: it also trains the weights
        if self.skip and equal_draws(z, z_anti):
            return unmoved(value, gates, self.chain)
        s = (antithetic_loss(f, z_anti) - loss_of(value)) * (u - 0.5)  # Eq. 9
        return surrogate(value, s, gates, self.chain)
