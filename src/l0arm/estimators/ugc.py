"""UGC: DisARM, but a gate near 0 or 1 waits for its flip (variance clipping).

Kunes, Yin, Land, Haviv, Pe'er, Tavare, "Gradient Estimation for Binary Latent Variables via
Gradient Variance Clipping", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._flips import chosen, difference
from l0arm.estimators._relaxation import live
from l0arm.estimators._surrogate import (
    antithetic_loss,
    antithetic_pair,
    loss_of,
    probabilities,
    surrogate,
    uniform_like,
)
from l0arm.gating.synchrony import several_processes


@dataclass(frozen=True)
class UGC(BinaryEstimator):
    """Gate by gate, the estimate that varies less: DisARM, or bitflip if min(pi, 1-pi) < 1/(2V).

    Both share f(z). The gate to flip is drawn among all V, so often it needs no third evaluation.

    >>> probs = torch.tensor([0.5, 0.5], requires_grad=True)
    >>> value = UGC()(lambda z: z.sum(), probs)
    """

    forwards = 3  # at most

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates).detach()
        u = uniform_like(probs, generator)
        return self.at(f, gates, u, uniform_like(probs.new_zeros(()), generator))

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor, w: Tensor) -> Tensor:
        """The estimate for given noise u of the draws and w of the choice."""
        probs = probabilities(gates)
        pi = probs.detach()
        z, z_anti = antithetic_pair(u, probs)
        value = f(z)
        change = loss_of(value) - antithetic_loss(f, z, z_anti, value)
        s = change / 2 * (z - z_anti) * torch.maximum(pi, 1 - pi)  # DisARM
        waits = live(pi) & (torch.minimum(pi, 1 - pi) < 1 / (2 * pi.numel()))
        s = torch.where(waits, 0.0, s)
        i = chosen(torch.ones_like(pi), w)
        if bool(waits[i]) or several_processes():  # which evaluate equally often
            flip = difference(f, z, value, i) * pi[i] * (1 - pi[i]) * pi.numel()
            s[i] = torch.where(waits[i], flip, s[i])
        return surrogate(value, s, gates)
