"""The multi-layer perceptron 784-300-100 of Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.gating import Group, Slice


class MLP(nn.Module):
    """Fully connected layers with ReLU between them; the gates act on the inputs of each layer.

    Args:
        sizes: The widths: inputs, hidden layers, outputs. The layers are ``fc1``, ``fc2``, ...

    Example:
        >>> MLP().fc1
        Linear(in_features=784, out_features=300, bias=True)
    """

    def __init__(self, sizes: Sequence[int] = (784, 300, 100, 10)) -> None:
        super().__init__()
        self.layers = [f"fc{n}" for n in range(1, len(sizes))]
        for name, (wide, narrow) in zip(self.layers, pairwise(sizes), strict=True):
            self.add_module(name, nn.Linear(wide, narrow))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for name in self.layers[:-1]:
            x = F.relu(getattr(self, name)(x))
        logits: Tensor = getattr(self, self.layers[-1])(x)
        return logits

    def groups(self) -> tuple[Group, ...]:
        """Input neurons, open at 0.8, and hidden neurons, open at 0.5 (Sec. 5.1).

        A neuron counts the weights of its fan-out.
        """
        groups = []
        for producer, name in zip([None, *self.layers], self.layers, strict=False):
            weight = Slice(f"{name}.weight", dim=1)
            made = (
                ()
                if producer is None
                else (Slice(f"{producer}.weight", 0), Slice(f"{producer}.bias", 0))
            )
            groups.append(
                Group(
                    name=name,
                    units=self.get_parameter(f"{name}.weight").shape[1],
                    reads=(weight,),
                    makes=made,
                    counts=(weight,),
                    select=Slice(name, dim=-1) if producer is None else None,
                    initial=0.8 if producer is None else 0.5,
                )
            )
        return tuple(groups)
