"""Shares of the epochs or images that a method is given, checked."""

from __future__ import annotations

from numbers import Real


def check_shares(what: str = "the epochs", /, **shares: float) -> None:
    """Each is a share of ``what``, and not all of it.

    >>> check_shares(pretrain=0.1, finetune=0.0)
    """
    for name, share in shares.items():
        if not (isinstance(share, Real) and 0.0 <= share < 1.0):
            raise ValueError(f"{name} is a share of {what}, from 0 up to 1; got {share!r}")


def check_parts(rest: str, **shares: float) -> None:
    """The same, and together they leave something of the epochs for ``rest``."""
    check_shares(**shares)
    if sum(shares.values()) >= 1.0:
        parts = " and ".join(f"{name}={share!r}" for name, share in shares.items())
        raise ValueError(f"{parts} leave no epochs {rest}; their sum must be below 1")
