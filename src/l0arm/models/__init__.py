"""The networks of the paper: plain modules, each with a ``groups()`` method."""

from l0arm.models.lenet5 import LeNet5
from l0arm.models.mlp import MLP
from l0arm.models.wide_resnet import WideResNet

__all__ = ["MLP", "LeNet5", "WideResNet"]
