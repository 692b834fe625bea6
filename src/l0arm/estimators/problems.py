"""Functions of binary gates to compare estimators on: one in closed form, and a gated network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Objective
from l0arm.gating import Gated
from l0arm.gating.draw import Draw
from l0arm.gating.step import SharedRandomness
from l0arm.precision import at_least_float32

ENDS = {"polarised": 0.02, "converged": 0.002}


@dataclass(frozen=True)
class Quadratic:
    """``f(z) = offset + linear . z + z' coupling z``, coupling symmetric with an empty diagonal.

    It is linear in each single gate, so E[f] = f(pi), and the gradient is that of f at pi.
    """

    offset: float
    linear: Tensor
    coupling: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        return self.offset + self.linear @ z + z @ self.coupling @ z

    def gradient(self, pi: Tensor) -> Tensor:
        """dE[f]/dpi."""
        return self.linear + 2 * self.coupling @ pi

    def logit_gradient(self, pi: Tensor) -> Tensor:
        """dE[f]/dlogit(pi): what ``measure`` reports."""
        return self.gradient(pi) * pi * (1 - pi)


def quadratic(bits: int = 50, seed: int = 0, offset: float = 2.3) -> Quadratic:
    """Linear coefficients N(0, 1/bits), couplings N(0, 1/bits^2): both parts of f of order 1.

    >>> problem = quadratic(bits=3)
    >>> problem(torch.zeros(3, dtype=torch.float64)).item()
    2.3
    """
    random = torch.Generator().manual_seed(seed)
    linear = torch.randn(bits, generator=random, dtype=torch.float64) / bits**0.5
    coupling = torch.randn(bits, bits, generator=random, dtype=torch.float64) / bits
    coupling = (coupling + coupling.T) / 2
    return Quadratic(offset, linear, coupling - torch.diag(coupling.diag()))


def stages(probs: Tensor, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """Three points of a training run: the start, polarised gates (.02), nearly converged (.002).

    Each gate is settled to open or closed once, with its probability at the start.
    """
    pi = at_least_float32(probs.detach())
    u = torch.rand(pi.shape, generator=generator, dtype=pi.dtype, device=pi.device)
    ends = {n: torch.where(u < pi, 1 - end, end).to(pi) for n, end in ENDS.items()}
    return {"start": pi, **ends}


def loss_under(gated: Gated, closure: Callable[[], Tensor]) -> Objective:
    """The data loss of a gated network as a function of z that leaves no trace in the model.

    Every evaluation sees the same random numbers (dropout) and writes no buffers. Where a
    derivative in z is asked for, nothing is dropped.
    """
    randomness = SharedRandomness(gated.phi.device)

    def f(z: Tensor) -> Tensor:
        sliced = gated.execution == "sliced" and not z.requires_grad
        draw = Draw(gated.layout, z, sliced=sliced, writes=False)
        with randomness, gated.engine.evaluating(draw):
            return closure().reshape(())

    return f
