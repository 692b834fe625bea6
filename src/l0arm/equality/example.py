"""Example inputs of a model, and how to run a model without side effects."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from l0arm.gating.cutting import copy_model

DROPOUTS = frozenset(
    (
        *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout),
        *(F.feature_alpha_dropout, torch.dropout, torch.alpha_dropout, torch.feature_dropout),
    )
)


@dataclass(frozen=True, eq=False)
class Example:
    """The arguments of one call, and the outputs to compare (by key or number; all if empty)."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        inputs: Sequence[Any] | Any = None,
        kwargs: Mapping[str, Any] | None = None,
        outputs: Sequence[str | int] | None = None,
    ) -> Example | None:
        """From what a user passes: a single value is one argument; None if nothing is given.

        >>> Example.of(torch.zeros(2)).args
        (tensor([0., 0.]),)
        """
        if inputs is None and kwargs is None:
            return None
        args = () if inputs is None else inputs
        args = tuple(args) if isinstance(args, tuple | list) else (args,)
        names = tuple(str(name) for name in outputs or ())
        return cls(args, dict(kwargs or {}), names).map(lambda tensor: tensor.detach().clone())

    def map(self, change: Callable[[Tensor], Tensor]) -> Example:
        """The same call with ``change`` applied to every tensor."""
        args, kwargs = pytree.tree_map_only(Tensor, change, (self.args, dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)

    def check_runs(self, model: nn.Module) -> None:
        """Raise unless a copy of the model runs on the example, as it is or in its precision."""
        twin, like = copy_model(model), next(model.parameters())

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device)

        failures: list[Exception] = []
        for call in (self.map(lambda tensor: tensor.to(like.device)), self.map(cast)):
            try:
                with without_side_effects(twin):
                    twin(*call.args, **call.kwargs)
                return
            except Exception as error:  # whatever a forward raises
                failures.append(error)
        text = (str(failures[0]).strip() or "no message").splitlines()[0].strip()[:200]
        raise ValueError(
            f"the model does not run on the example inputs: {type(failures[0]).__name__}: {text}; "
            "check their shapes, dtypes and device"
        )


@contextmanager
def in_eval(*models: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is in its own mode again (a frozen BatchNorm too).

    >>> model = nn.Sequential(nn.BatchNorm1d(2).eval(), nn.Linear(2, 2))
    >>> with in_eval(model): model.training
    False
    >>> model.training, model[0].training
    (True, False)
    """
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def without_side_effects(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients, no key-value caches, no fused encoder layers, no warnings.

    Afterwards modes, settings and the random number generators are as before.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(in_eval(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_without_caches(model))
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _without_caches(model: nn.Module) -> Iterator[None]:
    """Switch off key-value caches: as outputs they would forbid cutting any head."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    caching = [c for c in configs.values() if getattr(c, "use_cache", False) is True]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True


@contextmanager
def restored_state(model: nn.Module) -> Iterator[None]:
    """Restore buffers and attributes afterwards: a pass may write both."""
    saved = [(module, dict(module.__dict__), dict(module._buffers)) for module in model.modules()]
    clones = {id(b): b.clone() for _, _, kept in saved for b in kept.values() if b is not None}
    for module, _, kept in saved:
        module._buffers.update({k: b if b is None else clones[id(b)] for k, b in kept.items()})
    try:
        yield
    finally:
        for module, attributes, kept in saved:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            module._buffers.clear()
            module._buffers.update(kept)


def zero_dropout_rates(model: nn.Module) -> None:
    """Set rates of dropout, stochastic depth and the like to 0, in modules and configurations."""
    for module in model.modules():
        for home in (module, vars(module).get("config")):  # not one of the class: it is shared
            for name, value in dict(getattr(home, "__dict__", {})).items():
                rate = isinstance(value, float) and "drop" in name.lower()
                if rate or (isinstance(home, nn.modules.dropout._DropoutNd) and name == "p"):
                    with suppress(AttributeError):  # a frozen configuration: see NoDropout
                        setattr(home, name, 0.0)


class NoDropout(TorchFunctionMode):
    """Makes every dropout function return its input, also in train mode.

    It also refuses grouped queries without a head of keys, to which a set of patches that is tried
    may lead: torch 2.10 divides by their number, and the process ends.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            causal = {"is_causal": args[5]} if len(args) > 5 else {}
            args, kwargs = args[:4], {**kwargs, "dropout_p": 0.0, **causal}
            key = args[1] if len(args) > 1 else kwargs["key"]
            if kwargs.get("enable_gqa") and key.dim() > 2 and key.shape[-3] == 0:
                raise ValueError("attention of grouped queries without a head of keys")
        return func(*args, **kwargs)
