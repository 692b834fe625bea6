"""How far the mean of estimates is from a gradient, corrected for the noise of both."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SIGMAS = 3.0  # standard errors within which a bias is called shown, or bounded
ROUNDING = 1e-12  # a square below it is rounding


@dataclass(frozen=True)
class Bias:
    """``|E[estimate] - gradient|^2 / |gradient|^2``, estimated without bias, so it may be < 0.

    Attributes:
        squared: The estimate.
        squared_error: Its standard error.
        unseen: The share of |gradient|^2 at gates that no draw moved, about which nothing is known.
    """

    squared: float
    squared_error: float
    unseen: float = 0.0

    @property
    def size(self) -> float:
        """The root of ``squared``, and 0 if that is negative."""
        return math.sqrt(max(self.squared, 0.0))

    @property
    def error(self) -> float:
        """One standard error upwards. Near 0 it is the root of the square's error."""
        return self._above(1.0) - self.size

    @property
    def limit(self) -> float:
        """An upper bound of the bias, at ``SIGMAS`` standard errors."""
        return math.hypot(self._above(SIGMAS), math.sqrt(self.unseen))

    @property
    def shown(self) -> bool:
        """Whether the bias is above 0 by ``SIGMAS`` standard errors."""
        return self.squared > max(SIGMAS * self.squared_error, ROUNDING)

    def _above(self, sigmas: float) -> float:
        return math.sqrt(max(self.squared, 0.0) + sigmas * self.squared_error)


@dataclass(frozen=True)
class Reference:
    """The gradient in logit(pi): exact, or the mean of local expectations.

    Attributes:
        gradient: One number per gate.
        draws: Pairs of antithetic draws at which local expectations were taken, (n, 2, V).
        estimates: The local expectations at these draws, (n, 2, V).
    """

    gradient: Tensor
    draws: Tensor | None = None
    estimates: Tensor | None = None

    @staticmethod
    def sampled(draws: Tensor, estimates: Tensor) -> Reference:
        """The mean of pairs of estimates at pairs of draws."""
        return Reference(estimates.double().mean((0, 1)), draws, estimates.double())

    def bias_of(self, estimates: Tensor, draws: Tensor) -> Bias:
        """The bias of estimates (rows) that were made at these draws (rows).

        If the reference was evaluated at the same draws, much of the noise is common and cancels in
        the difference. The less noisy way is used. A gate that no draw moved (near pi = 0 and 1,
        with few draws) counts as ``unseen`` only, however large its gradient is.
        """
        moved = (estimates != 0).any(0)
        ways = [[part[:, moved] for part in way] for way in self._ways(estimates, draws)]
        found = min((squared_mean(*way) for way in ways), key=lambda way: way.noise)
        size = squared_mean(self.gradient[None] if self.estimates is None else self._means())
        share = found.value / size.value
        error = math.hypot(found.error, share * size.error) / size.value
        return Bias(share, error, float(self.gradient[~moved].square().sum()) / size.value)

    def _ways(self, estimates: Tensor, draws: Tensor) -> list[tuple[Tensor, ...]]:
        """Alternatives, each a tuple of independent samples whose means add up to the bias."""
        if self.draws is None or self.estimates is None:
            return [(estimates - self.gradient,)]
        ways: list[tuple[Tensor, ...]] = [(estimates, -self._means())]
        n = min(len(draws), len(self.draws))
        same = (draws[:n, None].round() == self.draws[:n]).all(2)  # a relaxed draw is rounded
        if n > 1 and bool(same.any(1).all()):
            at_same = self.estimates[torch.arange(n), same.int().argmax(1)]
            ways.append((estimates[:n] - at_same,))
        return ways

    def _means(self) -> Tensor:
        assert self.estimates is not None
        return self.estimates.mean(1)


@dataclass(frozen=True)
class SquaredMean:
    """``|E[x]|^2`` with its standard error, after ``noise`` was subtracted."""

    value: float
    error: float
    noise: float


def squared_mean(*samples: Tensor) -> SquaredMean:
    """``|E[x]|^2`` for the sum x of independent samples (rows). A single row has no noise.

    d, the mean found, has covariance C: E|d|^2 = |E d|^2 + tr C, and for a normal d the variance
    of |d|^2 is 4 Ed'C Ed + 2 tr C^2, where Ed'C Ed is d'C d minus its own noise, tr C^2.

    >>> squared_mean(torch.tensor([[3.0, 4.0]])).value
    25.0
    """
    d = torch.stack([rows.mean(0) for rows in samples]).sum(0)
    centred = torch.cat(
        [(r - r.mean(0)) / math.sqrt(len(r) * max(len(r) - 1, 1)) for r in samples]
    )  # C = centred' centred
    products = centred @ centred.T
    noise = float(products.trace())
    # Without the diagonal, which would add the noise of C itself.
    spread = float(products.square().sum() - products.diagonal().square().sum())
    along = float((centred @ d).square().sum())
    variance = max(4 * along - 2 * spread, 2 * spread)
    return SquaredMean(float(d @ d) - noise, math.sqrt(variance), noise)
