"""LeNet-5-Caffe 20-50-800-500 of Table 2."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.gating import Group, Slice
from l0arm.models.pooled_conv import PooledConv2d


class LeNet5(nn.Module):
    """Two convolutions with max pooling and two fully connected layers, for 28 x 28 images.

    The 800 flattened inputs of ``fc1`` have gates of their own on top of those of the 50 filters.

    Args:
        classes: The number of outputs.

    Example:
        >>> [group.units for group in LeNet5().groups()]
        [20, 50, 800, 500]
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = PooledConv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(50 * 16, 500)
        self.fc2 = nn.Linear(500, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)  # channels last from here on: pooling and conv2 are faster that way
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # ReLU last: a quarter of the work
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits

    def groups(self) -> tuple[Group, ...]:
        """Filters and neurons, open at 0.5 (Sec. 5.1).

        A filter counts the weights of its kernel, a neuron those of its fan-out.
        """
        conv1, conv2 = Slice("conv1.weight", 0), Slice("conv2.weight", 0)
        fc1, fc2 = Slice("fc1.weight", 1), Slice("fc2.weight", 1)
        return (
            Group(
                "conv1",
                20,
                reads=(Slice("conv2.weight", 1),),
                makes=(conv1, Slice("conv1.bias", 0)),
                counts=(conv1,),
            ),
            Group(
                "conv2",
                50,
                reads=(Slice("fc1.weight", 1, block=16),),
                makes=(conv2, Slice("conv2.bias", 0)),
                counts=(conv2,),
            ),
            Group("fc1", 800, reads=(fc1,), counts=(fc1,), select=Slice("fc1", -1)),
            Group(
                "fc2",
                500,
                reads=(fc2,),
                makes=(Slice("fc1.weight", 0), Slice("fc1.bias", 0)),
                counts=(fc2,),
            ),
        )
