"""DisARM (also U2G): ARM with u integrated out given both draws, so never more variance than ARM.

Dong, Mnih, Tucker, "DisARM: An Antithetic Gradient Estimator for Binary Latent Variables", 2020;
Yin, Ho, Yan, Qian, Zhou, "Probabilistic Best Subset Selection via Gradient-Based Optimization",
2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator
from l0arm.estimators._surrogate import (
    antithetic_loss,
    antithetic_pair,
    equal_draws,
    loss_of,
    probabilities,
    surrogate,
    unmoved,
)


@dataclass(frozen=True)
class DisARM(NoiseEstimator):
    """``1/2 (f(z) - f(z~)) (z - z~) max(pi, 1 - pi)``: exactly 0 for a gate whose draws agree.

    Two evaluations of f, at the antithetic draws z and z~ of ARM. The second is skipped if both are
    equal.

    Example:
        >>> import torch
        >>> from l0arm.estimators import DisARM
        >>> probs = torch.tensor([0.9], requires_grad=True)
        >>> loss = DisARM().at(lambda z: z.sum(), probs, torch.tensor([0.5]))  # both draws are open
        >>> loss.backward(); probs.grad
        tensor([0.])
    """

    forwards = 2

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        probs = probabilities(gates)
        z, z_anti = antithetic_pair(u, probs)
        value = f(z)  # first, and with its graph: it also trains the weights
        if equal_draws(z, z_anti):
            return unmoved(value, gates)
        difference = loss_of(value) - antithetic_loss(f, z_anti)
        s = difference / 2 * (z - z_anti) * torch.maximum(probs, 1 - probs).detach()
        return surrogate(value, s, gates)
