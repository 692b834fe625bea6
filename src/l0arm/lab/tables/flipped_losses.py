"""The loss of an MLP with each gate flipped in turn, without a pass for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.models import MLP

AT_ONCE = 64  # flips side by side: their activations stay in the cache


@torch.no_grad()
def flipped_losses(model: MLP, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """The mean cross-entropy under z with gate j flipped, for all j.

    What comes before a flipped gate is evaluated once; the layer that reads it gains or loses one
    column. Closed hidden units are left out.
    """
    layers: list[nn.Linear] = [getattr(model, name) for name in model.layers]
    gates = torch.split(z, [layer.in_features for layer in layers])
    h, losses = x.flatten(1), []
    for n, (layer, gate) in enumerate(zip(layers, gates, strict=True)):
        after = layer(h * gate)
        for some in torch.split(torch.arange(len(gate), device=z.device), AT_ONCE):
            change = ((1 - 2 * gate[some]) * h[:, some]).T[:, :, None]
            read = layer.weight[:, some].T[:, None, :]
            losses.append(_rest(after, change, read, layers[n + 1 :], gates[n + 1 :], y))
        h = F.relu(after)
    return torch.cat(losses)


def _rest(
    a: Tensor,
    change: Tensor,
    read: Tensor,
    layers: Sequence[nn.Linear],
    gates: Sequence[Tensor],
    y: Tensor,
) -> Tensor:
    """The losses for ``a + change read`` before the next activation, one for each flip."""
    opened = [gate.nonzero().flatten() for gate in gates]
    width = opened[0] if opened else torch.arange(a.shape[-1], device=a.device)
    a = a[:, width] + change * read[:, :, width]
    for n, layer in enumerate(layers):
        made = opened[n + 1] if n + 1 < len(layers) else slice(None)
        a = F.linear(F.relu(a), layer.weight[:, opened[n]][made], layer.bias[made])
    each = F.cross_entropy(a.flatten(0, 1), y.repeat(len(a)), reduction="none")
    return each.view(len(a), -1).mean(1)
