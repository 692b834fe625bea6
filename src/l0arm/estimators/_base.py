"""The base of the estimators of binary draws: most are unbiased and drop closed units."""

from __future__ import annotations

from l0arm.contracts import Estimator


class BinaryEstimator(Estimator):
    """An estimator for gates that are 0 or 1. Those that are biased say so."""

    takes = "binary"

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the estimate is the gradient."""
        return True
