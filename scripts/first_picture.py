"""Draw the picture of the first page, docs/images/first-page.png.

    python scripts/first_picture.py

Runs the first Python block of docs/index.md as it stands, on one thread, trains the dense network
for as many steps, and prints the numbers that the page gives. It takes about a minute.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from l0arm.lab.data import MnistMini
from l0arm.metrics import weight_count
from l0arm.models import MLP

DOCS = Path(__file__).parents[1] / "docs"
KEPT, REMOVED = "#1f5fa8", "#d9dde3"
SEED, EPOCHS, BATCH = 0, 120, 100  # as on the page


def main() -> None:
    """Run the page, train the dense network, draw."""
    torch.set_num_threads(1)
    page: dict[str, Any] = {}
    block = re.search(r"```python\n(.*?)```", (DOCS / "index.md").read_text(), re.S)
    assert block is not None
    exec(block[1], page)
    gated, small, digits = page["gated"], page["small"], page["digits"]
    dense = train_dense(digits)
    weights = weight_count(dense), weight_count(small)
    right = accuracy(dense, digits), accuracy(small, digits)
    print(f"weights {weights[0]:,} -> {weights[1]:,} ({100 * weights[1] / weights[0]:.1f} %)")
    print(f"test accuracy: dense {right[0]:.2f} %, small {right[1]:.2f} %")
    kept = [units != 0 for units in gated.per_group(gated.deterministic()).values()]
    figure = draw(digits.train_images.float().mean(0), kept, weights, right)
    figure.savefig(DOCS / "images/first-page.png", dpi=150, metadata={"Software": ""})


def train_dense(digits: MnistMini) -> nn.Module:
    """The same network without gates: same data, optimizer and number of steps."""
    torch.manual_seed(SEED)
    model = MLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        order = torch.randperm(len(digits.train_images))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            optimizer.zero_grad()
            scores = model(digits.train_images[batch] / 255)
            torch.autograd.backward(F.cross_entropy(scores, digits.train_labels[batch]))
            optimizer.step()
    return model.eval()


def accuracy(model: nn.Module, digits: MnistMini) -> float:
    """Percent of the test digits that are classified correctly."""
    with torch.inference_mode():
        guesses = model(digits.test_images / 255).argmax(1)
    return 100 * float((guesses == digits.test_labels).float().mean())


def draw(
    mean_digit: Tensor,
    kept: list[Tensor],
    weights: tuple[int, int],
    accuracies: tuple[float, float],
) -> Figure:
    """The pixels that are still read, and the width of every layer before and after."""
    figure = Figure(figsize=(8, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    left.imshow(mean_digit, cmap="Greys", vmax=400)
    rows, columns = torch.nonzero(kept[0].view(28, 28), as_tuple=True)
    left.scatter(columns, rows, s=30, marker="s", color=KEPT, linewidths=0)
    left.set_title(f"It reads {len(rows)} of {len(kept[0])} pixels", fontsize=14)
    left.set_xticks([])
    left.set_yticks([])
    names = ["pixels", "hidden 1", "hidden 2"]
    for place, (name, units) in enumerate(zip(names, kept, strict=True)):
        share = float(units.float().mean())
        right.barh(place, 1, color=REMOVED, height=0.55)
        right.barh(place, share, color=KEPT, height=0.55)
        right.text(0, place - 0.36, f"{name}: {int(units.sum())} of {len(units)}", fontsize=13)
    right.set_ylim(2.5, -0.7)
    right.set_axis_off()
    right.set_title(
        f"{weights[0]:,} weights → {weights[1]:,}\n"
        f"test accuracy {accuracies[0]:.1f} % → {accuracies[1]:.1f} %",
        fontsize=14,
    )
    return figure


if __name__ == "__main__":
    main()
