"""Batches without end, at a position that can be saved and found again.

The order of a walk through the batches follows from the random numbers at its start. So these are
kept, and a restored stream walks to the same batch again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class Stream:
    """Walks through batches again and again.

    A sampler with ``set_epoch``, such as torch's DistributedSampler, is told the number of the
    walk.

    Args:
        batches: An iterable that can be walked again, such as a DataLoader.

    Example:
        >>> stream = Stream([1, 2, 3])
        >>> [next(stream) for _ in range(4)]
        [1, 2, 3, 1]
        >>> other = Stream([1, 2, 3])
        >>> other.load_state_dict(stream.state_dict())
        >>> next(other)
        2
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches
        self.walk = self.position = 0
        self._walking: Iterator[Any] | None = None
        self._start: dict[str, Any] = {}  # the random numbers at the start of the walk

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        while True:
            walking = self._begin() if self._walking is None else self._walking
            for batch in walking:
                self.position += 1
                return batch
            if self.position == 0:
                raise ValueError("batches is empty: there is nothing to train on")
            self._walking, self.walk, self.position = None, self.walk + 1, 0

    def _begin(self) -> Iterator[Any]:
        sampler = getattr(self.batches, "sampler", None)
        if callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(self.walk)
        self._start = random_state(self.batches)
        self._walking = iter(self.batches)
        return self._walking

    def state_dict(self) -> dict[str, Any]:
        """The position, and the random numbers that the order of this walk follows from."""
        return {"walk": self.walk, "position": self.position, "start": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position. The batches before it are read again, and not used.

        The random numbers are afterwards as before the call.

        Raises:
            ValueError: If the walk ends before the position.
        """
        self.walk, self.position, self._walking = state["walk"], 0, None
        if not state["position"]:
            return
        now = random_state(self.batches)
        set_random_state(state["start"], self.batches)
        walking = self._begin()
        for _ in range(state["position"]):
            if next(walking, self) is self:
                raise ValueError(
                    f"the batches end after {self.position}, but the checkpoint is after "
                    f"{state['position']} of a walk: they are not those of the checkpoint"
                )
            self.position += 1
        set_random_state(now, self.batches)


def random_state(batches: object = None) -> dict[str, Any]:
    """The state of all random numbers: torch, numpy, Python, and the generators of a loader."""
    name, keys, *rest = tuple(np.random.get_state(legacy=True))
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [str(name), torch.tensor(np.asarray(keys, dtype=np.int64)), *rest],
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        "loader": [generator.get_state() for generator in _generators(batches)],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any], batches: object = None) -> None:
    """Restore what ``random_state`` returned."""
    torch.set_rng_state(state["torch"].clone())
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    for generator, saved in zip(_generators(batches), state["loader"], strict=False):
        generator.set_state(saved.clone())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].clone())


@contextmanager
def unchanged_if_refused(batches: object) -> Iterator[None]:
    """If anything raises, random numbers are as before."""
    state = random_state(batches)
    try:
        yield
    except BaseException:
        set_random_state(state, batches)
        raise


@contextmanager
def preserved_randomness(batches: object = None) -> Iterator[None]:
    """Random numbers are afterwards as before."""
    state = random_state(batches)
    try:
        yield
    finally:
        set_random_state(state, batches)


def _generators(batches: object) -> list[torch.Generator]:
    """The generators of a DataLoader and of its samplers, each once."""
    sampler, batch_sampler = (getattr(batches, n, None) for n in ("sampler", "batch_sampler"))
    homes = (batches, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    found = {id(g): g for home in homes if (g := getattr(home, "generator", None)) is not None}
    return [generator for generator in found.values() if isinstance(generator, torch.Generator)]
