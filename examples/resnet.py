"""A residual network in a plain loop: plan, gate, train, compact with a certificate.

    python examples/resnet.py

The network does not know about gates. The plan finds which filters have to be removed together,
such as those that meet in a residual sum.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm
from l0arm.costs import count_flops, latency
from l0arm.lab.data import mnist_mini

BATCH, STEPS = 50, 240


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.short = nn.Conv2d(narrow, wide, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.short(x))


def resnet() -> nn.Module:
    blocks = [Block(1, 16, 1), Block(16, 32, 2), Block(32, 32, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def pixels(images: Tensor) -> Tensor:
    """Images of 14 x 14 pixels, to be quick."""
    return F.avg_pool2d(images[:, None].float() / 255, 2)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # enough for a network this small
    data = mnist_mini()
    images, labels = pixels(data.train_images), data.train_labels
    model = resnet()
    plan = l0arm.plan(model, images[:1])
    print(plan, "\n")

    gated = l0arm.sparsify(
        model, plan, "l0-disarm", lam=1.5e-5, initial=0.8, example_inputs=images[:20]
    )
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=3e-3, gate_lr=0.1))
    train_gated(gated, optimizer, images, labels)
    small = l0arm.compact(gated, optimizer=optimizer)
    print(l0arm.certificate(small))
    for _ in range(STEPS // 2):  # fine-tune the small network with the same optimizer
        batch = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(small(images[batch]), labels[batch]).backward()
        optimizer.step()

    test = pixels(data.test_images)
    right = (small.eval()(test).argmax(1) == data.test_labels).float().mean()
    print(f"{100 * right:.1f} % of the test digits right")
    report(resnet(), small, test[:64])


def train_gated(
    gated: l0arm.Gated, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> None:
    for step in range(STEPS):
        batch = torch.randint(len(images), (BATCH,))
        x, y = images[batch], labels[batch]
        loss = gated.loss(lambda x=x, y=y: F.cross_entropy(gated(x), y))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        if step % 60 == 59:
            print(f"step {step + 1}: loss {loss.data:.3f}, widths {l0arm.architecture(gated)}")


def report(dense: nn.Module, small: nn.Module, x: Tensor) -> None:
    models = {"dense": dense, "small": small}
    times = latency(models, x)
    for name, model in models.items():
        weights = sum(p.numel() for p in model.parameters())
        macs = count_flops(model, x[:1]) // 2
        print(f"{name}: {weights:,} weights, {macs:,} MACs, {times[name].median:.2f} ms for 64")


if __name__ == "__main__":
    main()
