"""What can be set on a gated network, as one value that is passed on as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from l0arm.gates.threshold import DEFAULT_TAU
from l0arm.gating.mask import Threshold, checked_multiple, checked_threshold

if TYPE_CHECKING:
    from l0arm.equality.example import Example
    from l0arm.gating.gated import Gated

Execution = Literal["sliced", "masked"]
T = TypeVar("T")
SAVED = {"saved": True}  # part of the network: it goes into checkpoints


@dataclass(frozen=True)
class Settings:
    """The settings of a ``Gated``. Each can be set on the network: ``gated.threshold = 0.3``.

    Those that decide which network it is are saved in its state dict. Those that only say how this
    process computes are not.

    Attributes:
        threshold: tau of Eq. 14, or ``"valley"``: that of each group's histogram. Saved.
        width_multiple: z-bar leaves widths (units times positions per unit) that are multiples of
            this number, where some kernels are faster. Saved.
        penalty_weight: Factor of all penalties together; a warm-up lowers it. Saved.
        outputs: The outputs that count in comparisons, by key or number. Empty: all. Saved.
        execution: ``"sliced"`` drops closed slices, ``"masked"`` zeroes them where they are read.
        sharing: Compute once what the evaluations of a step have in common. None: if there is a
            backward pass, which keeps the results of the first evaluation in any case.
        averaged_elsewhere: With several processes: you average the gradients, not DDP.
        example: Inputs on which compaction shows that it changed nothing.
    """

    threshold: Threshold = field(default=DEFAULT_TAU, metadata=SAVED)
    width_multiple: int = field(default=1, metadata=SAVED)
    penalty_weight: float = field(default=1.0, metadata=SAVED)
    outputs: tuple[str, ...] = field(default=(), metadata=SAVED)
    execution: Execution = "sliced"
    sharing: bool | None = None
    averaged_elsewhere: bool = False
    example: Example | None = None

    def __post_init__(self) -> None:
        checked_threshold(self.threshold)
        checked_multiple(self.width_multiple)
        if self.execution not in ("sliced", "masked"):
            raise ValueError(f"execution must be 'sliced' or 'masked'; got {self.execution!r}")

    def to_tensor(self) -> Tensor:
        """The saved settings as JSON in a tensor of bytes, which every checkpoint format takes."""
        saved = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata}
        return torch.tensor(list(json.dumps(saved).encode()), dtype=torch.uint8)

    def with_saved(self, tensor: Tensor) -> Settings:
        """These settings with those of ``to_tensor``.

        Raises:
            ValueError: If the tensor does not hold settings of this version.
        """
        try:
            saved: dict[str, Any] = json.loads(bytes(tensor.cpu().byte().tolist()))
            saved["outputs"] = tuple(saved["outputs"])
            return replace(self, **saved)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"the checkpoint's settings cannot be read: {error}") from None


class Setting(Generic[T]):
    """An attribute of ``Gated`` that is kept in its settings."""

    def __set_name__(self, owner: type[Gated], name: str) -> None:
        self.name = name

    def __get__(self, gated: Gated, owner: type[Gated]) -> T:
        value: T = getattr(gated.settings, self.name)
        return value

    def __set__(self, gated: Gated, value: T) -> None:
        changed: dict[str, Any] = {self.name: value}
        gated.settings = replace(gated.settings, **changed)
