"""What is compared on: a network, its data, its loss, and how long it is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.data import Data, Images, Text, images, standard_library
from benchmarks.peers.networks import LanguageModel, ResNet20, depthwise, vgg

EPOCHS = 3  # of every method, after the dense training


@dataclass(frozen=True)
class Task:
    """One network and its data.

    Attributes:
        name: The name on the command line.
        title: The name in tables.
        network: Makes the network, with all widths scaled by a number.
        data: Name of the data set; "" for text.
        optimizer: Makes the optimizer of all methods.
        dense_epochs: Epochs of the dense training, before anything is compared.
    """

    name: str
    title: str
    network: Callable[[float], nn.Module]
    data: str
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    dense_epochs: int

    @property
    def is_text(self) -> bool:
        """Whether perplexity is measured (smaller is better), not accuracy."""
        return not self.data

    def load(self, folder: Path | None, validation: bool) -> Data:
        """The data in memory."""
        return (
            standard_library(validation) if self.is_text else images(self.data, folder, validation)
        )

    def batches(self, data: Data, seed: int) -> Images | Text:
        """Training batches that can be walked again and again."""
        return Text(data, seed) if self.is_text else Images(data, seed)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The cross-entropy of the next character or of the class."""
        return F.cross_entropy(output.flatten(0, -2), target.flatten())

    def example(self, data: Data, rows: int) -> Tensor:
        """Inputs to count and to time on."""
        return data.test_x[:rows]

    @torch.no_grad()
    def measure(self, model: nn.Module, data: Data) -> float:
        """Accuracy in per cent, or perplexity, on all of the test data. Leaves eval mode set."""
        model.eval()
        right, loss = 0, 0.0
        for x, y in zip(data.test_x.split(500), data.test_y.split(500), strict=True):
            output = model(x)
            right += int((output.argmax(-1) == y).sum())
            loss += float(self.loss(output, y)) * y.numel()
        count = data.test_y.numel()
        return math.exp(loss / count) if self.is_text else 100 * right / count


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """For the networks on images."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """For the transformer."""
    return torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.01)


TASKS = {
    task.name: task
    for task in (
        Task("resnet", "ResNet-20, CIFAR-10", ResNet20, "cifar10", sgd, 8),
        Task("vgg", "VGG, CIFAR-10", vgg, "cifar10", sgd, 8),
        Task("depthwise", "depthwise-separable, Fashion-MNIST", depthwise, "fashion-mnist", sgd, 5),
        Task("transformer", "transformer, characters", LanguageModel, "", adamw, 6),
    )
}
