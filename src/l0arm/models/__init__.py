"""The paper's networks: plain modules, each with its groups()."""

from l0arm.models.lenet5 import LeNet5
from l0arm.models.mlp import MLP
from l0arm.models.wide_resnet import WideResNet

__all__ = ["MLP", "LeNet5", "WideResNet"]
