"""The white list: operators with a rule. What any other operator touches stays ungated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from l0arm.planning.space import Space

Rule = Callable[..., Space | tuple[Space, ...]]
AnyRule = TypeVar("AnyRule", bound=Rule)
RULES: dict[str, Rule] = {}


class NotCovered(Exception):
    """Raised by a rule for arguments that it does not cover: the operator counts as unknown."""


def rule(*operators: str) -> Callable[[AnyRule], AnyRule]:
    """Register how units pass through operators, by name: ``aten.relu`` or ``aten.relu.default``.

    The function gets the site and the operator's own arguments, with a Space in place of every
    tensor, and returns the Space of the result (a tuple for several). The name without an overload
    stands for all of them and for the in-place variant.

    >>> from l0arm.planning.elementwise import elementwise
    >>> register = rule("mylib.swish.default")(elementwise)
    >>> find("mylib.swish.default") is elementwise
    True
    """

    def register(function: AnyRule) -> AnyRule:
        for name in operators:
            RULES[name] = function
        return function

    return register


def find(operator: str) -> Rule | None:
    """The rule of an operator: by its full name, else without overload and in-place mark."""
    name = operator.rpartition(".")[0] if operator.count(".") > 1 else operator
    return next((RULES[n] for n in (operator, name, name.removesuffix("_")) if n in RULES), None)


def forget(*operators: str) -> None:
    """Take rules out again."""
    for name in operators:
        RULES.pop(name, None)


def spaces_in(*arguments: Any) -> list[Space]:
    """All values among an operator's arguments, in nested lists too."""
    found: list[Space] = []
    for argument in arguments:
        if isinstance(argument, Space):
            found.append(argument)
        elif isinstance(argument, tuple | list):
            found += spaces_in(*argument)
    return found
