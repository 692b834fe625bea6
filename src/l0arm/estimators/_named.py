"""The estimator of a method, given as an object or as a name with options."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from l0arm.estimators import ESTIMATORS, Estimator


def estimator_for(
    method: Callable[..., Any], estimator: Estimator | str, options: Mapping[str, Any]
) -> Estimator:
    """The estimator that a factory was given, or the one with that name and these options.

    ``method`` is the factory. If an option is unknown, the message suggests its own options.
    """
    if isinstance(estimator, type):
        raise TypeError(f"estimator must be an instance or a name; write {estimator.__name__}()")
    if not isinstance(estimator, str):
        if options:
            raise TypeError(
                f"{', '.join(sorted(options))} belong to an estimator given by name; set them "
                f"where you build it: {type(estimator).__name__}(...)"
                + _suggestion(method, options)
            )
        return estimator
    if estimator not in ESTIMATORS:
        known = ", ".join(sorted(ESTIMATORS))
        raise ValueError(f"unknown estimator {estimator!r}; there are {known}")
    accepted = list(inspect.signature(ESTIMATORS[estimator]).parameters)
    unknown = sorted(set(options) - set(accepted))
    if unknown:
        raise TypeError(
            f"estimator {estimator!r} has no option {', '.join(unknown)}; "
            f"it takes {', '.join(accepted) or 'none'}" + _suggestion(method, unknown)
        )
    return ESTIMATORS[estimator](**options)


def _suggestion(method: Callable[..., Any], unknown: Iterable[str]) -> str:
    """The method's own options whose names are close to unknown ones, as a clause of a message."""
    parameters = inspect.signature(method).parameters.values()
    own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    near = [match for name in unknown for match in difflib.get_close_matches(name, own, 1)]
    return f"; the method itself takes {', '.join(near)}" if near else ""
