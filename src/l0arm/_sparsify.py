"""``sparsify``: from a model to a gated model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from l0arm.costs.kinds import BudgetLike, budget_for
from l0arm.equality.example import Example
from l0arm.gates.threshold import DEFAULT_TAU
from l0arm.gating import Gated, Group
from l0arm.gating.mask import Threshold
from l0arm.gating.settings import Execution, Settings
from l0arm.gating.undoing import undone_if_refused
from l0arm.methods import METHODS, Method
from l0arm.planning import Plan, exchange, plan


def sparsify(
    model: nn.Module,
    groups: Sequence[Group] | Plan | None = None,
    method: Method | str = "l0-disarm",
    *,
    example_inputs: Sequence[Any] | Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    initial: float | None = None,
    budget: BudgetLike | None = None,
    steps: int | None = None,
    round_to: int = 1,
    execution: Execution = "sliced",
    threshold: Threshold | None = None,
    sharing: bool | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Gated:
    """Give every unit of a model a stochastic binary gate.

    The model is used, not copied: it gets forward hooks, and its parameters stay its own. If
    anything is refused, the model is left as it was.

    Args:
        model: The network, trained or not.
        groups: Where the gates sit: groups, or a plan. None: the model's own ``groups()``, or with
            example inputs a plan made from them.
        method: A method, or a name in ``METHODS``.
        example_inputs: Arguments of one call of the model, for planning. They are kept as
            ``gated.example``, on which ``compact`` shows that it changed nothing.
        example_kwargs: Keyword arguments of that call.
        initial: Probability that a gate is open at the start, for all groups. Near 1, such as
            0.95, for a trained model.
        budget: A limit on the expected size instead of a lambda: ``"40%"`` of the parameters,
            ``{"flops": "30%"}``, or an amount, ``{"flops": 2e8}``, for the example inputs. With
            ``{"latency": "50%"}`` or ``{"latency": "0.8 ms"}`` the layers are timed on this
            machine.
        steps: Optimizer steps of the training with gates, for the budget: its target falls over the
            first 60 % of them. None: over 500 steps.
        round_to: Leave widths that are multiples of this (``gated.width_multiple``). The budget
            counts rounded widths when it is fitted.
        execution: ``"sliced"`` drops closed units, ``"masked"`` zeroes them (the reference).
        threshold: tau of Eq. 14, 1/2 by default. For a method that has a threshold of its own,
            given by name: that threshold.
        sharing: Compute once what the evaluations of a step have in common. Same result. None:
            unless ``loss(..., backward=False)``, where it would cost memory.
        generator: The source of random numbers of phi's start. None: the global one.
        **options: Options of a method given by name, such as ``lam``.

    Returns:
        The gated model.

    Raises:
        ValueError: If the groups or the method do not fit the model, or a name is unknown.
        TypeError: If an option does not belong to the method.
        PlanError: If the model cannot be planned.

    Example:
        >>> from l0arm.models import LeNet5
        >>> gated = sparsify(LeNet5(), method="l0-arm", lam=0.1 / 60_000)
        >>> gated.phi.shape
        torch.Size([1370])
    """
    if isinstance(model, Gated) or any(isinstance(m, Gated) for m in model.modules()):
        raise ValueError(
            "the model is gated already; sparsify the plain model, or compact it first"
        )
    _refuse_plans_options(options)
    if steps is not None and budget is None:
        raise ValueError("steps= is for a budget, which falls over them; give budget= too")
    if budget is not None and isinstance(method, str):
        options.setdefault("lam", 0.0)
    if isinstance(method, str) and "threshold" in _accepted(METHODS.get(method, Method)):
        options, threshold = _with(options, threshold=threshold), None
    method = _method(method, options)
    with undone_if_refused(model):
        found, outputs = _groups(model, groups, example_inputs, example_kwargs)
        if initial is not None:
            found = [replace(group, initial=initial) for group in found]
        gated = Gated(
            model,
            found,
            method,
            settings=Settings(
                threshold=DEFAULT_TAU if threshold is None else threshold,
                width_multiple=round_to,
                outputs=outputs,
                execution=execution,
                sharing=sharing,
                example=Example.of(example_inputs, example_kwargs, outputs),
            ),
            generator=generator,
        )
        if budget is not None:
            gated.budget = budget_for(gated, budget)
            if steps is not None:
                gated.budget.schedule(steps)
    return gated


def _with(options: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """The options and those given that are not None."""
    return {**options, **{name: value for name, value in given.items() if value is not None}}


def _groups(
    model: nn.Module,
    groups: Sequence[Group] | Plan | None,
    inputs: Sequence[Any] | Any,
    kwargs: Mapping[str, Any] | None,
) -> tuple[Sequence[Group], tuple[str, ...]]:
    """The groups, and the outputs that count (of a plan). Checks that the example runs."""
    if isinstance(groups, Group):
        raise TypeError("groups must be a sequence, got a single Group; write groups=[group]")
    example = Example.of(inputs, kwargs)
    if groups is None and example is not None:
        groups = plan(model, example.args, example.kwargs)
    elif example is not None:
        example.check_runs(model)
    if isinstance(groups, Plan):
        if not groups.planned:
            reasons = "; ".join(f"'{each.layer}': {each.reason}" for each in groups.skipped)
            raise ValueError(f"the plan has no groups, so nothing would be gated: {reasons}")
        return _applied(model, groups), groups.outputs
    return _own(model) if groups is None else groups, ()


def _own(model: nn.Module) -> Sequence[Group]:
    own = getattr(model, "groups", None)
    if not callable(own):
        raise ValueError(
            f"{type(model).__name__} has no groups() of its own; pass groups=[Group(...), ...], or "
            "example_inputs=(x,) to have them planned"
        )
    found: Sequence[Group] = own()
    return found


def _applied(model: nn.Module, planned: Plan) -> Sequence[Group]:
    """The plan's groups, after replacing modules that cannot run with fewer units."""
    planned.check(model)
    for name in dict.fromkeys(name for entry in planned.planned for name in entry.replaces):
        exchange(model, name)
    return planned.groups


def _refuse_plans_options(options: Mapping[str, Any]) -> None:
    for name in ("include", "exclude", "outputs"):
        if name in options:
            raise TypeError(
                f"{name} belongs to plan: write sparsify(model, l0arm.plan(model, example_inputs, "
                f"{name}=...), ..., example_inputs=example_inputs)"
            )


def _method(method: Method | str, options: dict[str, Any]) -> Method:
    if isinstance(method, str):
        return _named(method, options)
    if not isinstance(method, Method):
        raise TypeError(
            f"method must be a Method or a name, got {method!r}; call its factory, e.g. "
            "methods.l0_arm(lam=...), or pass method='l0-arm', lam=..."
        )
    if options:
        raise TypeError(
            f"{', '.join(sorted(options))} belong to a method given by name; "
            "set them where you build the Method"
        )
    return method


def _named(name: str, options: dict[str, Any]) -> Method:
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; there are {', '.join(sorted(METHODS))}")
    try:
        return METHODS[name](**options)
    except TypeError as error:
        accepted = _accepted(METHODS[name])
        example = "; e.g. lam=0.1 / N" if "lam" in accepted else ""
        raise TypeError(
            f"method {name!r}: {error}; the method's options are {', '.join(accepted)}{example}"
        ) from None


def _accepted(factory: Callable[..., Method]) -> list[str]:
    """The names of a method's options. Further ones go to its estimator."""
    parameters = inspect.signature(factory).parameters.values()
    further = inspect.Parameter.VAR_KEYWORD
    return [p.name if p.kind is not further else "those of its estimator" for p in parameters]
