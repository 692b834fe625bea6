"""How a long step reports: what it does, how much is done, and of how much if that is known."""

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Report nothing."""
