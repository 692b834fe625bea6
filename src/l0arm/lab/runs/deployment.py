"""What is to be exported or measured: a run's small network, or one that was saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from l0arm.compaction import inspect_saved, load
from l0arm.lab.data import Dataset
from l0arm.lab.recipes.recipe import ModelSpec, Recipe
from l0arm.lab.runs.building import build_model, network_for
from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.trained import Trained, trained_network

EXAMPLES = 8


@dataclass(frozen=True)
class Deployment:
    """A dense network, the small one that came of it, and inputs for both."""

    dense: nn.Module
    compact: nn.Module
    example: Tensor
    trained: Trained | None = None  # of a run: accuracy can be measured

    def accuracy(self, call: Callable[[Tensor], Tensor]) -> float | None:
        """Percent right of the test images, 1,000 at a time."""
        if self.trained is None:
            return None
        images, labels = self.trained.data.test_images, self.trained.data.test_labels
        right = 0
        with torch.no_grad():
            for start in range(0, len(images), 1000):
                logits = call(self.trained.preprocess(images[start : start + 1000]))
                right += int((logits.argmax(1) == labels[start : start + 1000]).sum())
        return 100.0 * right / len(images)


def of_run(folder: RunFolder, data: Dataset) -> Deployment:
    """The network of a run as its newest checkpoint left it."""
    trained = trained_network(folder, data)
    dense = build_model(folder.recipe().model, trained.data).eval()
    example = trained.preprocess(trained.data.test_images[:EXAMPLES])
    return Deployment(dense, trained.compact(), example, trained)


def of_saved(
    path: Path, factory: Callable[[], nn.Module] | None, size: Sequence[int] | None
) -> Deployment:
    """A saved network; one from ``l0arm compact`` knows its original and the size of its input."""
    network = inspect_saved(path).metrics.get("network")
    if factory is None or size is None:
        known, image = _known(network, path)
        factory, size = factory or known, size or image
    torch.manual_seed(0)
    return Deployment(factory().eval(), load(path, factory), torch.rand(EXAMPLES, *size))


def network_record(recipe: Recipe, data: Dataset) -> dict[str, Any]:
    """What ``of_saved`` needs to make the original again."""
    image = list(data.train_images.shape[1:])
    return {"model": recipe.model.model_dump(), "image": image, "classes": data.classes}


def _known(network: Any, path: Path) -> tuple[Callable[[], nn.Module], list[int]]:
    try:
        spec = ModelSpec.model_validate(network["model"])
        image, classes = [int(n) for n in network["image"]], int(network["classes"])
        if len(image) != 3 or not all(0 < n <= 4096 for n in (*image, classes)):
            raise ValueError(image)
    except (TypeError, KeyError, ValueError, ValidationError):
        raise UserError(
            f"{path} does not say how to build its original model; name it with "
            "--model package.module:factory and the size of one input with --input 3,32,32"
        ) from None
    return lambda: network_for(spec, image, classes, "the saved network has"), image
