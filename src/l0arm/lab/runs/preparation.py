"""The data as a recipe uses it."""

from __future__ import annotations

from dataclasses import replace

from l0arm.lab.data import PREPROCESS, Dataset, Preprocess
from l0arm.lab.recipes.recipe import DataSpec
from l0arm.lab.runs.errors import UserError


def prepared(data: Dataset, spec: DataSpec) -> Dataset:
    """The part of the data that a recipe trains and measures on."""
    if spec.held_out:
        data = data.split(spec.held_out)
    count = len(data.train_images)
    if spec.limit > count:
        raise UserError(f"data.limit is {spec.limit}, but '{data.name}' has {count} images")
    if spec.limit:
        images, labels = data.train_images[: spec.limit], data.train_labels[: spec.limit]
        data = replace(data, train_images=images, train_labels=labels)
    height, width = data.train_images.shape[2:]
    if spec.shift >= min(height, width):
        what = f"images of '{data.name}' are {height} x {width}"
        raise UserError(f"data.shift is {spec.shift}, but {what}")
    return data


def preprocess_of(data: Dataset) -> Preprocess:
    """The scaling that goes with a data set; to [0, 1] for one that is not known."""
    channels = data.train_images.shape[1]
    return PREPROCESS.get(data.name, Preprocess((0.0,) * channels, (1.0,) * channels))
