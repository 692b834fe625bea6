"""What an estimator remembers from step to step: a baseline, tuned parameters, their moments."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from l0arm.precision import Precise


class Memory(Precise):
    """Named tensors as buffers: saved with the model, moved with it, unseen by its optimizer.

    They never fall below float32. A tensor of one entry per gate starts empty, since an estimator
    learns their number at its first call; a saved one of any size can be loaded into it.

    >>> import torch
    >>> memory = Memory(mean=torch.zeros(()))
    >>> memory["mean"] = torch.tensor(2.5)
    >>> dict(memory.state_dict())
    {'mean': tensor(2.5000)}
    """

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(name)

    def __setitem__(self, name: str, value: Tensor) -> None:
        old = self.get_buffer(name)
        if old.shape == value.shape:
            old.copy_(value.detach())  # in place: wrappers may hold on to the tensor
        else:
            setattr(self, name, value.detach().to(old))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name, own in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if own is not None and saved is not None and 0 in (own.numel(), saved.numel()):
                self._buffers[name] = own.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)
