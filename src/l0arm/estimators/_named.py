"""The estimator that drives a method: an object, or a name with options of its own."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from l0arm.estimators import ESTIMATORS, Estimator


def estimator_for(
    method: Callable[..., Any], estimator: Estimator | str, options: Mapping[str, Any]
) -> Estimator:
    """The estimator of a name with its options, or the one given, for the factory ``method``."""
    if isinstance(estimator, type):
        raise TypeError(f"estimator must be an instance or a name; write {estimator.__name__}()")
    if not isinstance(estimator, str):
        if options:
            raise TypeError(
                f"{', '.join(sorted(options))} belong to an estimator given by name; set them "
                f"where you build it: {type(estimator).__name__}(...)" + _meant(method, options)
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
            f"it takes {', '.join(accepted) or 'none'}" + _meant(method, unknown)
        )
    return ESTIMATORS[estimator](**options)


def _meant(method: Callable[..., Any], unknown: Iterable[str]) -> str:
    """The method's own options that these may be typing mistakes for."""
    parameters = inspect.signature(method).parameters.values()
    own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    near = [match for name in unknown for match in difflib.get_close_matches(name, own, 1)]
    return f"; the method itself takes {', '.join(near)}" if near else ""
