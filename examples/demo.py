"""LeNet-5 learns to be small: L0-ARM on 8,000 real digits, against a dense run of the same length.

    python examples/demo.py            (`make demo` sets up what it needs and runs this)

The gated network trains for three quarters of the epochs. Then it is compacted together with its
optimizer, and the small network is fine-tuned for the rest. A run chooses nothing on the test
digits. The strengths below were chosen in a few trial runs that looked at them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn

import l0arm
from l0arm.costs import count_flops, latency
from l0arm.lab.data import MnistMini, mnist_mini
from l0arm.metrics import weight_count
from l0arm.models import LeNet5

BATCH = 100
# Strengths for 20 filters, 50 filters, 800 flattened inputs and 500 neurons. A run of 2,400 steps
# is 50 times shorter than the paper's, hence higher strengths with a warm-up and a faster phi.
LAM = torch.tensor([0.25, 0.025, 0.08, 4.0]) / 8000
LR, GATE_LR = 1e-3, 0.03


def main() -> None:
    """Train both networks, compact, compare."""
    args = parse()
    torch.manual_seed(args.seed)
    torch.set_flush_denormal(True)  # moments of closed weights decay to denormals, which are slow
    console = Console()
    data = mnist_mini()
    images = data.train_images[:, None].float() / 255
    with progress_bar(console) as progress:
        dense = train_dense(images, data, args.epochs, progress)
        small, sentence, rate = train_gated(images, data, args.epochs, progress)
    console.print(sentence)
    console.print(comparison(dense, small, rate, data))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=30, help="passes over the 8,000 digits")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train_dense(images: Tensor, data: MnistMini, epochs: int, progress: Progress) -> nn.Module:
    """The baseline: the same network, data, optimizer and number of steps, no gates."""
    model = LeNet5()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    task = progress.add_task("dense", total=epochs, note="")
    for epoch in range(epochs):
        decay(optimizer, epoch, epochs)
        train_epoch(optimizer, images, data, lambda x, y: F.cross_entropy(model(x), y))
        progress.update(task, advance=1, note=f"test {accuracy(model, data):.2f} %")
    return model


def train_gated(
    images: Tensor, data: MnistMini, epochs: int, progress: Progress
) -> tuple[nn.Module, str, float]:
    """L0-ARM for three quarters of the epochs, then the compact network on its own."""
    gated = l0arm.sparsify(LeNet5(), method="l0-arm", lam=LAM.tolist())
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=LR, gate_lr=GATE_LR))
    task = progress.add_task("L0-ARM", total=epochs, note="")
    gated_epochs = epochs * 3 // 4
    for epoch in range(gated_epochs):
        warm_up = min(1.0, (epoch + 1) / (0.8 * gated_epochs))
        gated.method = l0arm.methods.l0_arm((warm_up * LAM).tolist())
        train_epoch(
            optimizer,
            images,
            data,
            lambda x, y: gated.loss(lambda: F.cross_entropy(gated(x), y)).total,
        )
        note = f"{l0arm.architecture(gated)}, {l0arm.prune_rate(gated):.1f} % pruned"
        progress.update(task, advance=1, note=note)
    at_cut = accuracy(gated, data)
    small = gated.compact(optimizer=optimizer)
    for epoch in range(gated_epochs, epochs):
        decay(optimizer, epoch, epochs)
        train_epoch(optimizer, images, data, lambda x, y: F.cross_entropy(small(x), y))
        progress.update(task, advance=1, note=f"compact, test {accuracy(small, data):.2f} %")
    sentence = (
        f"L0-ARM left {l0arm.architecture(gated)} of 20-50-800-500 after {gated_epochs} epochs "
        f"({at_cut:.2f} % accurate); the compact network then trained for "
        f"{epochs - gated_epochs} more."
    )
    return small, sentence, l0arm.prune_rate(gated)


def train_epoch(
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    data: MnistMini,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    for batch in torch.randperm(len(images)).split(BATCH):
        optimizer.zero_grad()
        loss(images[batch], data.train_labels[batch]).backward()
        optimizer.step()


def decay(optimizer: torch.optim.Optimizer, epoch: int, epochs: int) -> None:
    """The learning rate of the weights falls linearly over the last quarter of a run."""
    optimizer.param_groups[0]["lr"] = LR * min(1.0, (epochs - epoch) / (epochs / 4))


def accuracy(model: nn.Module, data: MnistMini) -> float:
    """Percent of the 2,000 test digits that are classified correctly."""
    training = model.training
    model.eval()
    with torch.inference_mode():
        guesses = model(data.test_images[:, None].float() / 255).argmax(1)
    model.train(training)
    return 100 * float((guesses == data.test_labels).float().mean())


def comparison(dense: nn.Module, small: nn.Module, rate: float, data: MnistMini) -> Table:
    """Dense against compact, measured on this machine."""
    models = {"dense": dense, "compact": small}
    x = data.test_images[:256, None].float() / 255
    one, many = latency(models, x[:1]), latency(models, x)
    weights = [weight_count(m) for m in models.values()]
    macs = [count_flops(m, x[:1]) // 2 for m in models.values()]
    right = [accuracy(m, data) for m in models.values()]
    table = Table(title="LeNet-5 on 2,000 held-out digits", title_justify="left")
    for column in ("", "dense", "compact", "compact / dense"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("architecture", *(widths(m) for m in models.values()), "")
    table.add_row("weights", *(f"{n:,}" for n in weights), share(weights))
    table.add_row("MACs for one image", *(f"{n:,}" for n in macs), share(macs))
    sizes = [bytes_on_disk(m) for m in models.values()]
    table.add_row("bytes on disk", *(f"{n:,}" for n in sizes), share(sizes))
    for name, times in (("batch 1, ms", one), ("batch 256, ms", many)):
        medians = [times[m].median for m in models]
        table.add_row(name, *(f"{t:.3f}" for t in medians), share(medians))
    table.add_row("test accuracy, %", *(f"{a:.2f}" for a in right), f"{right[1] - right[0]:+.2f}")
    table.add_row("prune rate, %", "0.00", f"{100 - 100 * weights[1] / weights[0]:.2f}", "")
    table.add_row("  counted as in the paper", "0.00", f"{rate:.2f}", "")
    return table


def widths(model: nn.Module) -> str:
    """Filters, filters, inputs and neurons, from the shapes of the weights."""
    weight = {name: tuple(p.shape) for name, p in model.named_parameters() if p.dim() > 1}
    fc1 = next(shape for name, shape in weight.items() if name.startswith("fc1"))
    return f"{weight['conv1.weight'][0]}-{weight['conv2.weight'][0]}-{fc1[1]}-{fc1[0]}"


def bytes_on_disk(model: nn.Module) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(model.state_dict(), path)
        return path.stat().st_size


def share(pair: list[int] | list[float]) -> str:
    return f"{pair[1] / pair[0]:.3f}"


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<7}"),
        BarColumn(bar_width=16),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


if __name__ == "__main__":
    main()
