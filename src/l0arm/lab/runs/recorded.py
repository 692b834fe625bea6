"""The original of a saved network, built from what ``l0arm compact`` recorded of it.

The record may come from anybody. The network is first built on the meta device, where it takes no
memory, and compared with the tensors that the folder describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from l0arm.compaction.saved.description import Description
from l0arm.compaction.saved.rebuilding import check_same
from l0arm.compaction.saved.weights import tensor_infos
from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import ModelSpec, Recipe
from l0arm.lab.runs.building import network_for

LARGEST_IMAGE = 2**20  # numbers of one input
LARGEST_ORIGINAL = 2**26  # numbers of a network that few weights may be left of: 256 MiB
LARGEST_RATIO = 100  # beyond that: numbers of the original for each number in the file
NAME_IT = (
    "name the original with --model package.module:factory and the size of one input with "
    "--input 3,32,32"
)


def network_record(recipe: Recipe, data: Dataset) -> dict[str, Any]:
    """What ``recorded_network`` needs to build the original network."""
    image = list(data.train_images.shape[1:])
    return {"model": recipe.model.model_dump(), "image": image, "classes": data.classes}


def recorded_image(saved: Description, path: Path) -> list[int]:
    """The size of one input, without the batch dimension."""
    return _parsed(saved, path)[1]


def recorded_network(saved: Description, path: Path) -> Callable[[], nn.Module]:
    """A factory of the original network.

    Raises:
        UserError: The folder has no such record, or the network is larger than the tensors of the
            folder justify.
        SavedError: The recorded network is not the one that was cut.
    """
    spec, image, classes = _parsed(saved, path)
    tensors = len(saved.original)
    if spec.name == "wide-resnet" and spec.depth > tensors:  # every layer has a weight
        raise UserError(
            f"{path} records a network that has a depth of {spec.depth:,}, but describes {tensors} "
            f"tensors; {NAME_IT}"
        )

    def make() -> nn.Module:
        return network_for(spec, image, classes, "the saved network has")

    try:
        with torch.device("meta"):
            shapes = tensor_infos(make())
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = str(error).partition("\n")[0][:200]
        message = f"{path} records a network that cannot be built: {reason}; {NAME_IT}"
        raise UserError(message) from None
    check_same(shapes, saved.original, "the network that is recorded", str(path))
    numbers = sum(info.numbers for info in shapes.values())
    left = sum(info.numbers for info in saved.tensors.values())
    most = max(LARGEST_ORIGINAL, LARGEST_RATIO * left)
    if numbers > most:
        raise UserError(
            f"{path} records a network that has {numbers:,} numbers, but the {left:,} that are "
            f"left of it justify no more than {most:,}; {NAME_IT}"
        )
    return make


def _parsed(saved: Description, path: Path) -> tuple[ModelSpec, list[int], int]:
    network: Any = saved.metrics.get("network")
    try:
        spec = ModelSpec.model_validate(network["model"])
        image, classes = [int(n) for n in network["image"]], int(network["classes"])
        if len(image) != 3 or not all(0 < n <= 4096 for n in (*image, classes)):
            raise ValueError(image)
        if math.prod(image) > LARGEST_IMAGE:
            raise ValueError(image)
    except (TypeError, KeyError, ValueError, OverflowError, ValidationError):
        raise UserError(f"{path} does not say how to build its original model; {NAME_IT}") from None
    return spec, image, classes
