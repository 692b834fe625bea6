"""``l0arm prune``: a trained network of the user's, made smaller."""

from __future__ import annotations

import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from l0arm import PruneResult
from l0arm import prune as pruned
from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import DataDir, Force, Json, Quiet, check_absent, load_data
from l0arm.lab.cli.outside import made_by
from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError, shown
from l0arm.lab.runs.building import preprocess_of
from l0arm.planning import PlanError

MEASURED = 1000  # test images in a batch


def prune(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:FACTORY", help="What makes the network, or a network."),
    ],
    weights: Annotated[
        Path,
        typer.Option(help="Its trained weights: .safetensors, or a state dict of torch.save."),
    ],
    data: Annotated[
        str, typer.Option(help="Images with labels: mnist, cifar10, mnist-mini, folder:PATH, ...")
    ],
    budget: Annotated[
        list[str],
        typer.Option(
            help="What may be left: flops=25%, params=40%, latency=50%, bytes=1e6. Repeatable."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the small network.")],
    epochs: Annotated[float, typer.Option(min=0.01, help="Length of the whole training.")] = 8.0,
    lr: Annotated[float, typer.Option(min=1e-9, help="Rate of SGD with momentum 0.9.")] = 0.02,
    batch: Annotated[int, typer.Option(min=1, max=1_000_000, help="Images in a batch.")] = 100,
    round_to: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Leave widths that are multiples of this.")
    ] = 1,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave matching layers alone. Repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")] = 0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder for checkpoints. The same command goes on from them."),
    ] = None,
    data_dir: DataDir = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a trained image classifier smaller: rank, learn, cut, fine-tune.

    This imports MODULE (also from the current folder) and calls FACTORY without arguments, so it
    runs that code: name only code that you trust. The weights are read without executing anything.
    Accuracy is measured on the test images, before and after; nothing is chosen by it.

    Writes the small network to OUT, which l0arm.load(OUT, FACTORY) and `l0arm inspect` read.

    Examples:

        l0arm prune nets:net --weights w.pt --data mnist --budget flops=25% --out s/
        l0arm prune nets:net --weights w.pt --data mnist --budget bytes=9e4 --out s/
    """
    limits = _limits(budget)
    check_absent([out], force=force)
    model = made_by(target)
    _load(model, weights, target)
    images = load_data(data, data_dir, quiet=quiet or as_json)
    result = _result(
        model,
        images,
        budget=limits,
        epochs=epochs,
        lr=lr,
        batch=batch,
        round_to=round_to,
        exclude=tuple(exclude or ()),
        seed=seed,
        checkpoint=checkpoint,
        quiet=quiet or as_json,
    )
    result.save(out, force=force)
    if as_json:
        figures = {"dense": asdict(result.dense), "small": asdict(result.small)}
        say_json({"architecture": result.architecture, "out": str(out), **figures})
        return
    say(f"{result}\nwrote {out}", quiet=quiet)


def _result(
    model: nn.Module, data: Dataset, *, batch: int, lr: float, seed: int, **options: object
) -> PruneResult:
    """The pruned network. What the library refuses is a mistake of the command."""
    to_float = preprocess_of(data)
    train = TensorDataset(to_float(data.train_images), data.train_labels)
    order = torch.Generator().manual_seed(seed)
    batches = DataLoader(train, batch_size=batch, shuffle=True, generator=order)
    starts = range(0, len(data.test_labels), MEASURED)
    parts = [slice(start, start + MEASURED) for start in starts]
    test = [(to_float(data.test_images[part]), data.test_labels[part]) for part in parts]

    def accuracy(network: nn.Module) -> float:
        with torch.no_grad():
            right = sum(int((network(x).argmax(1) == y).sum()) for x, y in test)
        return 100 * right / len(data.test_labels)

    def sgd(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True)  # type: ignore[arg-type]

    try:
        return pruned(
            model,
            batches,
            F.cross_entropy,
            validate=accuracy,
            optimizer=sgd,
            seed=seed,
            **options,  # type: ignore[arg-type]
        )
    except (ValueError, IndexError, PlanError) as error:
        raise UserError(" ".join(str(error).split())) from error
    except RuntimeError as error:
        if "shape" not in str(error):
            raise
        shape = tuple(data.train_images.shape[1:])
        first = str(error).partition("\n")[0]
        raise UserError(f"the network does not take images of {shape}: {first}") from error


def _limits(budget: list[str]) -> dict[str, str | float]:
    """``flops=25%`` as an entry of the budget. The library checks names and values."""
    limits: dict[str, str | float] = {}
    for text in budget:
        what, equals, limit = text.partition("=")
        if not equals or not what or not limit:
            raise UserError(f"--budget {shown(text)}: write flops=25% or params=100000")
        if what in limits:
            raise UserError(f"--budget {shown(text)}: there is a limit for '{what}' already")
        if limit.endswith("%"):
            limits[what] = limit
            continue
        try:
            limits[what] = float(limit)
        except ValueError:
            raise UserError(f"--budget {shown(text)}: expected a share or a number") from None
    return limits


def _load(model: nn.Module, path: Path, target: str) -> None:
    """Load weights into the model, without executing anything that the file contains."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state = load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path} is not a safetensors file: {error}") from None
    else:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            why = str(error).partition("\n")[0]
            raise UserError(f"{path} is not a state dict of torch.save: {why}") from None
    if not isinstance(state, dict):
        raise UserError(f"{path} holds a {type(state).__name__}, not a state dict")
    try:
        model.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        why = " ".join(str(error).split())[:300]
        raise UserError(f"{path} does not fit the network of {target}: {why}") from None
