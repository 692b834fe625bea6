"""UGC: DisARM, except for gates near 0 or 1, which use bitflip (gradient variance clipping).

Kunes, Yin, Land, Haviv, Pe'er, Tavare, "Gradient Estimation for Binary Latent Variables via
Gradient Variance Clipping", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._relaxation import live
from l0arm.estimators._surrogate import (
    antithetic_loss,
    antithetic_pair,
    equal_draws,
    loss_of,
    probabilities,
    surrogate,
)
from l0arm.estimators.bitflip import FlipEstimator, flip_difference, pick_gate
from l0arm.gating.synchrony import several_processes


@dataclass(frozen=True)
class UGC(FlipEstimator):
    """For each gate the estimate that varies less: bitflip if min(pi, 1-pi) < 1/(2V), else DisARM.

    Both use the same f(z). The gate to flip is drawn from all V gates. A third evaluation of f is
    needed only if that gate uses bitflip, which is often not the case.

    Example:
        >>> import torch
        >>> from l0arm.estimators import UGC
        >>> probs = torch.tensor([0.5, 0.5], requires_grad=True)
        >>> loss = UGC()(lambda z: z.sum(), probs, torch.Generator().manual_seed(0))
        >>> loss.backward()  # probs.grad is now one sample of dE[f]/dprobs = (1, 1)
    """

    forwards = 3  # at most

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor, w: Tensor) -> Tensor:
        probs = probabilities(gates)
        pi = probs.detach()
        z, z_anti = antithetic_pair(u, probs)
        value = f(z)  # first, and with its graph: it also trains the weights
        change = loss_of(value) - (
            loss_of(value) if equal_draws(z, z_anti) else antithetic_loss(f, z_anti)
        )
        s = change / 2 * (z - z_anti) * torch.maximum(pi, 1 - pi)  # DisARM
        by_flip = live(pi) & (torch.minimum(pi, 1 - pi) < 1 / (2 * pi.numel()))
        s = torch.where(by_flip, 0.0, s)
        i = pick_gate(torch.ones_like(pi), w)
        if bool(by_flip[i]) or several_processes():  # all ranks must evaluate f equally often
            flip = flip_difference(f, z, value, i) * pi[i] * (1 - pi[i]) * pi.numel()
            s[i] = torch.where(by_flip[i], flip, s[i])
        return surrogate(value, s, gates)
