"""Dropout switched off in train mode, so that two networks can be compared in it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

DROPOUTS = frozenset(
    (
        *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout),
        *(F.feature_alpha_dropout, torch.dropout, torch.alpha_dropout, torch.feature_dropout),
    )
)


def without_dropout(model: nn.Module) -> None:
    """Rates of dropout, stochastic depth and the like set to 0, in modules and configurations."""
    for module in model.modules():
        for home in (module, vars(module).get("config")):  # one of the class is not the copy's
            for name, value in dict(getattr(home, "__dict__", {})).items():
                rate = isinstance(value, float) and "drop" in name.lower()
                if rate or (isinstance(home, nn.modules.dropout._DropoutNd) and name == "p"):
                    with suppress(AttributeError):  # frozen: NoDropout is still there
                        setattr(home, name, 0.0)


class NoDropout(TorchFunctionMode):
    """Dropout returns its input, however it is called."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args, kwargs = args[:4], {**kwargs, "dropout_p": 0.0, **_causal(args)}
        return func(*args, **kwargs)


def _causal(args: tuple[Any, ...]) -> dict[str, Any]:
    return {"is_causal": args[5]} if len(args) > 5 else {}
