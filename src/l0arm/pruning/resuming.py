"""Checkpoints of ``prune``: a call that was killed goes on where it was, with the same result."""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l0arm.checkpoints import newest_checkpoint, save_checkpoint
from l0arm.files import remove_leftovers
from l0arm.pruning.stages import Pruning
from l0arm.pruning.stream import Stream, random_state, set_random_state

SAVES = 20  # checkpoints in a training, by default


@dataclass(frozen=True)
class Checkpoints:
    """The folder of one call of ``prune``.

    Attributes:
        folder: Where the checkpoints are. Two are kept.
        every: Steps between two checkpoints.
        call: What the call prunes, and how. A folder belongs to one call.
    """

    folder: Path
    every: int
    call: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"checkpoint_every must be at least 1 step; got {self.every}")
        if importlib.util.find_spec("safetensors") is None:
            raise ImportError("checkpoints need safetensors; pip install 'l0arm[export]'")

    def due(self, pruning: Pruning) -> bool:
        """Whether a checkpoint is written after this step."""
        return pruning.step % self.every == 0 or pruning.stage == "done"

    def save(self, pruning: Pruning, stream: Stream, history: list[Any], scaler: Any) -> None:
        """Write a checkpoint, atomically."""
        small = pruning.small
        state = {
            "call": dict(self.call),
            "pruning": pruning.state_dict(),
            "gated": dict(pruning.gated.state_dict()),
            "small": None if small is None else dict(small.state_dict()),
            "optimizer": pruning.optimizer.state_dict(),
            "gates": pruning.gates.state_dict(),
            "scaler": scaler.state_dict(),
            "stream": stream.state_dict(),
            "random": random_state(stream.batches),
            "history": history,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.folder, pruning.step, state)

    def restore(self, pruning: Pruning, stream: Stream, history: list[Any], scaler: Any) -> bool:
        """Go to the newest checkpoint that is intact.

        Returns:
            Whether there is one.

        Raises:
            ValueError: If the folder belongs to another call.
        """
        if not self.folder.exists():
            return False
        remove_leftovers(self.folder)
        state, skipped = newest_checkpoint(self.folder)
        for reason in skipped:
            warnings.warn(f"a checkpoint was skipped: {reason}", stacklevel=4)
        if state is None:
            return False
        self._check(state["call"])
        pruning.gated.load_state_dict(state["gated"])
        pruning.load_state_dict(state["pruning"])
        if pruning.small is not None:
            pruning.small.load_state_dict(state["small"])
        pruning.optimizer.load_state_dict(state["optimizer"])
        pruning.gates.load_state_dict(state["gates"])
        scaler.load_state_dict(state["scaler"])
        history[:] = state["history"]
        stream.load_state_dict(state["stream"])
        set_random_state(state["random"], stream.batches)
        return True

    def _check(self, saved: Mapping[str, str]) -> None:
        other = [
            f"{name} is {saved.get(name)} there and {self.call.get(name)} here"
            for name in sorted(saved.keys() | self.call.keys())
            if saved.get(name) != self.call.get(name)
        ]
        if other:
            raise ValueError(
                f"the checkpoints in {self.folder} are of another call of prune: "
                f"{'; '.join(other)}. Choose another folder, or delete this one"
            )


def digest_of(model: nn.Module) -> str:
    """A name for a model with its weights: its class, and a digest of all its tensors."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(data.numpy().tobytes())
    return f"{type(model).__name__} {digest.hexdigest()[:12]}"
