"""Data sets by name, verified and in memory, and the way from them to batches.

To add a data set, add an entry to ``catalogue.CATALOGUE``. To add a file format, add a module with
a class like ``formats.Idx`` to ``formats`` and name it in the entry.
"""

from l0arm.lab.data.batching import (
    Preprocess,
    batches,
    crop_and_flip,
    random_offsets,
    shifted,
    to_float,
)
from l0arm.lab.data.catalogue import DATASETS, PREPROCESS
from l0arm.lab.data.dataset import DataError, Dataset
from l0arm.lab.data.loading import load_dataset
from l0arm.lab.data.mini import MnistMini, mnist_mini

__all__ = [
    "DATASETS",
    "PREPROCESS",
    "DataError",
    "Dataset",
    "MnistMini",
    "Preprocess",
    "batches",
    "crop_and_flip",
    "load_dataset",
    "mnist_mini",
    "random_offsets",
    "shifted",
    "to_float",
]
