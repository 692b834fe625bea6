"""Which layers a user wants gated: by glob on their names, or by type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from l0arm.planning.capture import PlanError

Pattern = str | type[nn.Module]
Patterns = Pattern | Sequence[Pattern]


def listed(patterns: Patterns | None, what: str = "a pattern") -> tuple[Pattern, ...]:
    """One pattern or several; ``what`` names them in an error."""
    found: tuple[Any, ...] = () if patterns is None else (patterns,)
    if isinstance(patterns, list | tuple | set | frozenset):
        found = tuple(patterns)
    for pattern in found:
        if not (isinstance(pattern, str) or _is_layer_type(pattern)):
            raise PlanError(
                f"{what} takes names of layers (globs such as 'layer4.*') or their types; "
                f"got {pattern!r}"
            )
    return found


def _is_layer_type(pattern: object) -> bool:
    return isinstance(pattern, type) and issubclass(pattern, nn.Module)


def matching_modules(
    model: nn.Module, patterns: Patterns | None, what: str = "a pattern"
) -> set[str]:
    """The names of all modules that match, with all that they contain.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    >>> sorted(matching_modules(model, "1*"))
    ['1', '1.0', '1.1']
    >>> sorted(matching_modules(model, nn.Linear))
    ['0', '1.1']
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found: set[str] = set()
    for pattern in listed(patterns, what):
        hits = [name for name, module in modules.items() if _matches(name, module, pattern)]
        if not hits:
            raise PlanError(_nothing(pattern, modules))
        for hit in hits:
            inside = f"{hit}." if hit else ""
            found.update(name for name in modules if name == hit or name.startswith(inside))
    return found


def _matches(name: str, module: nn.Module, pattern: Pattern) -> bool:
    if isinstance(pattern, str):
        return fnmatchcase(name, pattern) if name else pattern == ""
    return isinstance(module, pattern)


def _nothing(pattern: Pattern, modules: dict[str, nn.Module]) -> str:
    if isinstance(pattern, str):
        near = ", ".join(_near(pattern, modules)) or "none"
        return f"the pattern {pattern!r} matches no layer; nearest names: {near}"
    kinds = sorted({type(module).__name__ for module in modules.values()})
    return f"the model has no layer of type {pattern.__name__}; there are {', '.join(kinds)}"


def _near(pattern: str, names: Iterable[str]) -> list[str]:
    return get_close_matches(pattern, [name for name in names if name], 3, 0.0)
