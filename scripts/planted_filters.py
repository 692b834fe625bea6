"""Does a method find filters that are known to be useful? The positive control of docs/wrn.md.

    python scripts/planted_filters.py small-wrn-l0-arm --data-dir ~/cifar [--set KEY=VALUE ...]

Half of the filters of every layer, drawn at random, are trained alone: they are planted. The others
keep their initial weights, so that they add noise to the network. Then all gates start open with
the probability of the recipe, and the recipe's optimizer trains them, with the weights as they are
(``--weight-lr`` lets them move). A method that learns opens the planted filters and closes the
others. One that walks at random opens as many of both. Images are not augmented.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm import Gated
from l0arm.lab.data import load_dataset
from l0arm.lab.data.batching import batches
from l0arm.lab.data.dataset import Dataset
from l0arm.lab.recipes.recipe import Recipe, load_recipe
from l0arm.lab.runs.building import build_optimizer, build_trainee, prepared, preprocess_of

Weights = dict[str, Tensor]


def built(recipe: Recipe, data: Dataset) -> tuple[Gated, torch.optim.Optimizer]:
    """The gated network of a recipe and its optimizer."""
    gated = build_trainee(recipe, data)
    assert isinstance(gated, Gated)
    return gated, build_optimizer(recipe, gated)


def train(gated: Gated, optimizer: torch.optim.Optimizer, data: Dataset, epochs: int) -> float:
    """Train, and give the mean data loss of the last epoch."""
    preprocess, losses = preprocess_of(data), [math.nan]
    for _ in range(epochs):
        losses = []
        for index in batches(len(data.train_labels), 128):
            x, y = preprocess(data.train_images[index]), data.train_labels[index]
            optimizer.zero_grad()
            loss = gated.loss(lambda x=x, y=y: F.cross_entropy(gated(x), y))  # type: ignore[misc]
            loss.backward()
            optimizer.step()
            losses.append(loss.data.item())
    return sum(losses) / len(losses)


def planted(data: Dataset, epochs: int) -> tuple[Weights, Tensor, float]:
    """Weights of which half are trained, which filters these are, and the loss they reach."""
    gated, optimizer = built(load_recipe("small-wrn-random"), data)
    useful = torch.zeros(len(gated.phi))
    for number, group in enumerate(gated.groups):
        order = torch.randperm(group.units)[: group.units // 2]
        useful[gated.layout.span(number)][order] = 1.0
    gated.phi.data.copy_(useful)
    loss = train(gated, optimizer, data, epochs)
    for rates in optimizer.param_groups:
        rates["lr"] *= 0.1
    loss = train(gated, optimizer, data, 1)
    return gated.model.state_dict(), useful.bool(), loss


def found(
    recipe: Recipe, data: Dataset, weights: Weights, useful: Tensor, epochs: int, weight_lr: float
) -> dict[str, Any]:
    """How many of the planted filters, and of the others, a recipe leaves open."""
    gated, optimizer = built(recipe, data)
    gated.model.load_state_dict(weights)
    optimizer.param_groups[0]["lr"] = weight_lr
    loss = train(gated, optimizer, data, epochs)
    is_open = gated.gates.probs.detach() > 0.5
    return {
        "recipe": recipe.name,
        "seed": recipe.training.seed,
        "planted": int(useful.sum()),
        "of these open": int((is_open & useful).sum()),
        "others": int((~useful).sum()),
        "of those open": int((is_open & ~useful).sum()),
        "z": round(_z(gated, is_open, useful), 1),
        "last loss": round(loss, 4),
    }


def _z(gated: Gated, is_open: Tensor, useful: Tensor) -> float:
    """Planted filters that are open, against a choice of as many in each layer at random."""
    excess, variance = 0.0, 0.0
    for number, group in enumerate(gated.groups):
        span, n = gated.layout.span(number), group.units
        opened, good = int(is_open[span].sum()), int(useful[span].sum())
        excess += int((is_open & useful)[span].sum()) - opened * good / n  # hypergeometric
        variance += opened * good * (n - good) * (n - opened) / (n * n * (n - 1))
    return excess / math.sqrt(variance) if variance else 0.0


def main() -> None:
    """Print a line of JSON for every recipe and seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--plant-epochs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--weight-lr", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    recipes = [load_recipe(name, options.set) for name in options.recipe]
    data = prepared(load_dataset("cifar10", options.data_dir), recipes[0].data)
    torch.manual_seed(0)
    weights, useful, loss = planted(data, options.plant_epochs)
    print(json.dumps({"the planted filters alone": round(loss, 4)}), flush=True)
    for recipe in recipes:
        for seed in range(options.seeds):
            torch.manual_seed(1000 + seed)
            weight_lr = options.weight_lr
            line = found(recipe, data, weights, useful, options.epochs, weight_lr)
            print(json.dumps({**line, "seed": seed}), flush=True)


if __name__ == "__main__":
    main()
