"""Widths that a training step computes faster than those that a draw leaves.

In channels-last, BatchNorm on CPUs runs along the channels of a pixel. Torch's kernels take the
channels that do not fill a vector one by one. Its threads add up gradients and moments side by
side: if a row of these sums is not a whole number of cache lines, two threads write to one line,
and wait for each other. 15 channels on two threads then take eight times as long as 16
(``python -m benchmarks.operators norms``).

So a draw computes some closed units, too, in groups with such a norm: up to the next width that
suits it. They are stand-ins (draw.py): their readers' columns are zero, and their statistics are
not kept. Loss and gradients are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l0arm.gating.layout import Layout

CACHE_LINE = 64  # bytes
VECTOR = 4  # channels. Wider vectors gained nothing on one thread: more closed units are computed.


class Widths:
    """The numbers whose multiples suit the groups of one model."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        modules = dict(model.named_modules())
        owner = {name: modules[name.rpartition(".")[0]] for name in layout.tensors}
        # Groups whose units are the channels of a norm, one each, with their convolutions.
        self._normed: list[tuple[int, list[nn.Conv2d]]] = []
        for number, group in enumerate(layout.groups):
            made = [piece.tensor for piece in group.makes if piece.dim is not None]
            axes = [
                layout.tensors[name].axes[0] for name in made if isinstance(owner[name], _BatchNorm)
            ]
            around = [owner[name] for name in (*made, *(piece.tensor for piece in group.reads))]
            convolutions = [m for m in around if isinstance(m, nn.Conv2d)]
            if any(a.single is not None and a.single.drops for a in axes) and convolutions:
                self._normed.append((number, convolutions))
        self._groups = len(layout.groups)

    def multiples(self) -> tuple[int, ...] | None:
        """For every group, what its width should be a multiple of; None: no group has a wish.

        It depends on the number of threads and on the memory format, which may change.
        """
        found = [1] * self._groups
        for number, convolutions in self._normed:
            weights = [w for m in convolutions if (w := m._parameters.get("weight")) is not None]
            if any(map(_channels_last, weights)):
                several = torch.get_num_threads() > 1
                found[number] = CACHE_LINE // weights[0].element_size() if several else VECTOR
        return None if set(found) == {1} else tuple(found)


def _channels_last(weight: Tensor) -> bool:
    """Whether a weight makes a convolution on a CPU compute channels-last."""
    last = weight.is_contiguous(memory_format=torch.channels_last)
    return weight.device.type == "cpu" and last and not weight.is_contiguous()
