"""What every module can do (train, state_dict, deepcopy), done by one thread at a time."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

from torch import Tensor, nn

from l0arm.gating.engine import Engine
from l0arm.gating.threads import THIS, Identity
from l0arm.precision import Precise


class Exclusive(Precise):
    """A module that waits while another thread is inside a call of the model.

    The tensors of the model are then cut, and its mode must not change.
    """

    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        self._modes = Modes()

    def train(self, mode: bool = True) -> Self:
        """Switch to training or eval mode, as every module."""
        self.engine.alone(partial(super().train, mode))
        self._modes.choose(mode)
        return self

    def check_mode(self, *, trains: bool) -> None:
        """Refuse to compute in a mode that another thread chose against this one's choice."""
        self._modes.check(self.training, trains=trains)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict, as of every module."""
        return self.engine.alone(partial(super().state_dict, *args, **kwargs))

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state dict, as every module."""
        return self.engine.alone(partial(super().load_state_dict, *args, **kwargs))

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters, as of every module. An optimizer must not get tensors that are cut."""
        names = partial(super().named_parameters, *args, **kwargs)
        return iter(self.engine.alone(lambda: list(names())))

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """The buffers, as of every module."""
        names = partial(super().named_buffers, *args, **kwargs)
        return iter(self.engine.alone(lambda: list(names())))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy, in which no draw is in force."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(self.engine.alone(lambda: copy.deepcopy(self.__dict__, memo)))
        return twin

    def _replicate_for_data_parallel(self) -> Self:
        raise TypeError(
            "nn.DataParallel runs a model in several threads, which would share its gates; use "
            "DistributedDataParallel(l0arm.distributed.WholeLoss(gated)), or the network that "
            "gated.compact() returns"
        )


class Modes:
    """Notices that another thread switched the model between training and eval mode.

    The mode is one flag for all threads, as in every module. A thread that trains or that chose a
    mode itself must not silently compute in the other one.
    """

    def __init__(self) -> None:
        self._chooser: Identity | None = None  # the thread that chose the present mode
        self._here = _Chosen()

    def __reduce__(self) -> tuple[type[Modes], tuple[()]]:
        return Modes, ()

    def choose(self, training: bool) -> None:
        """The calling thread switches the model to a mode."""
        self._chooser, self._here.training = THIS.thread, training

    def check(self, training: bool, *, trains: bool) -> None:
        """Refuse to compute in a mode that another thread chose against this one's own choice.

        Args:
            training: The present mode.
            trains: Whether the calling thread computes a loss. It then relies on this mode.

        Raises:
            RuntimeError: Another thread chose the other mode.
        """
        mine = self._here.training
        if mine is None:
            self._here.training = training if trains else None
        elif mine != training and self._chooser not in (None, THIS.thread):
            names = {True: "training", False: "eval"}
            raise RuntimeError(
                f"this thread uses the model in {names[mine]} mode, but thread "
                f"{self._chooser} switched it to {names[training]} mode, which is one flag "
                "for all threads. In the other thread, use a copy: copy.deepcopy(gated).eval(), "
                "or gated.compact()"
            )


class _Chosen(threading.local):
    """The mode that a thread chose. None: it did not choose."""

    training: bool | None = None
