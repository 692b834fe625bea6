"""Prune a trained network: its gates start open, at 0.95, and close what is not needed.

python examples/pretrained.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm
from l0arm.costs import count_flops, latency
from l0arm.lab.data import mnist_mini

BATCH, EPOCHS = 100, 2


def convnet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # enough for a network this small
    data = mnist_mini()
    images, labels, test = pixels(data.train_images), data.train_labels, pixels(data.test_images)

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return 100 * float((model.eval()(test).argmax(1) == data.test_labels).float().mean())

    model = convnet()
    train(model, torch.optim.Adam(model.parameters()), images, labels, EPOCHS)
    dense = copy.deepcopy(model)
    print(f"dense: {accuracy(dense):.1f} % of the test digits right")

    gated = l0arm.sparsify(
        model, example_inputs=images[:20], method="l0-disarm", lam=1.2e-5, initial=0.95
    )
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-3, gate_lr=0.1))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return gated.loss(lambda: F.cross_entropy(gated(x), y)).total

    for _ in range(EPOCHS):
        train(gated, optimizer, images, labels, 1, loss)
        print(f"gated: widths {l0arm.architecture(gated)}, {accuracy(gated):.1f} % right")

    small = l0arm.compact(gated, optimizer=optimizer)
    print(l0arm.certificate(small))
    train(small, optimizer, images, labels, 1)
    print(f"small: {accuracy(small):.1f} % right")
    report(dense, small, test[:64])


def pixels(images: Tensor) -> Tensor:
    """Images of 14 x 14 pixels, to be quick."""
    return F.avg_pool2d(images[:, None].float() / 255, 2)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    epochs: int,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH):
            x, y = images[batch], labels[batch]
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) if loss is None else loss(x, y)).backward()
            optimizer.step()


def report(dense: nn.Module, small: nn.Module, x: Tensor) -> None:
    models = {"dense": dense, "small": small}
    times = latency(models, x)
    for name, model in models.items():
        weights = sum(p.numel() for p in model.parameters())
        macs = count_flops(model, x[:1]) // 2
        print(f"{name}: {weights:,} weights, {macs:,} MACs, {times[name].median:.2f} ms for 64")


if __name__ == "__main__":
    main()
