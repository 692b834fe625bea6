"""What the step times are held against: ratios to the plain dense step."""

from __future__ import annotations

from l0arm.lab.bench.steps import AR, ARM

COLUMNS = ("reach", "stretch", "beyond")
RATIO = "ARM / AR"

TARGETS: dict[tuple[str, str, str], tuple[float, ...]] = {
    ("LeNet-5", "p = 0.5", ARM): (0.48, 0.38, 0.30),
    ("LeNet-5", "converged 6-10-39-11", ARM): (0.28, 0.21, 0.12),
    ("LeNet-5", "converged 6-10-39-11", RATIO): (1.10, 1.03),
    ("MLP", "p = 0.8/0.5/0.5", ARM): (1.0, 0.85, 0.7),
    ("MLP", "converged 159-74-73", ARM): (0.6, 0.5, 0.35),
    ("WRN-28-10", "70 % open", ARM): (1.05, 0.90),
    ("WRN-28-10", "50 % open", ARM): (0.78, 0.68),
    ("WRN-28-10", "50 % open", AR): (0.58, 0.50),
}


def verdict(measured: float, targets: tuple[float, ...]) -> str:
    """The farthest target that was reached.

    >>> verdict(0.4, (0.48, 0.38)), verdict(0.5, (0.48, 0.38)), verdict(0.5, ())
    ('reach', 'missed', '')
    """
    reached = [name for name, t in zip(COLUMNS, targets, strict=False) if measured <= t]
    return reached[-1] if reached else "missed" if targets else ""
