"""Do decided gates stay decided? Train for some steps and count those that change sides.

    python scripts/gate_flips.py small-wrn-l0-ar --data-dir ~/cifar [--set table.field=value ...]

A gate is decided if g(phi) is below 0.05 or above 0.95. The script notes the decided gates after
``--early`` steps and counts how many of them are on the other side of 1/2 after any later step, and
at the end. Images are not augmented.
"""

from __future__ import annotations

import argparse
import json
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


def flips(recipe: Recipe, data: Dataset, steps: int, early: int) -> dict[str, Any]:
    """Train for ``steps`` steps and follow the gates that are decided after ``early`` of them."""
    training = recipe.training
    torch.manual_seed(training.seed if training.init_seed is None else training.init_seed)
    data = prepared(data, recipe.data)
    gated = build_trainee(recipe, data)
    assert isinstance(gated, Gated)
    optimizer, preprocess = build_optimizer(recipe, gated), preprocess_of(data)
    torch.manual_seed(training.seed)
    left: list[Tensor] = []
    decided, was_open = torch.empty(0), torch.empty(0)
    ever = torch.empty(0)

    for step in range(1, steps + 1):
        left = left or list(batches(len(data.train_labels), training.batch))
        index = left.pop()
        x, y = preprocess(data.train_images[index]), data.train_labels[index]
        optimizer.zero_grad()
        loss = gated.loss(lambda x=x, y=y: F.cross_entropy(gated(x), y))  # type: ignore[misc]
        loss.backward()
        optimizer.step()
        pi = gated.gates.probs.detach()
        if step == early:
            decided, was_open = (pi < 0.05) | (pi > 0.95), pi > 0.5
            ever = torch.zeros_like(decided)
        if step > early:
            ever |= decided & ((pi > 0.5) != was_open)
    at_end = decided & ((pi > 0.5) != was_open)
    return {
        "recipe": recipe.name,
        "steps": steps,
        "gates": len(pi),
        f"decided at step {early}": int(decided.sum()),
        "of these on the other side later": int(ever.sum()),
        "and at the end": int(at_end.sum()),
        "open at the end": int((pi > 0.5).sum()),
        "undecided at the end": int(((pi >= 0.05) & (pi <= 0.95)).sum()),
        "last loss": round(loss.data.item(), 4),
    }


def main() -> None:
    """Print a line of JSON for every recipe."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--early", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipes = [load_recipe(name, options.set) for name in options.recipe]
    data = load_dataset(recipes[0].data.name, options.data_dir)
    for recipe in recipes:
        print(json.dumps(flips(recipe, data, options.steps, options.early)), flush=True)


if __name__ == "__main__":
    main()
