"""Data sets by name, checked before use, whole in memory; and the way from them to batches."""

from l0arm.lab.data.batches import PREPROCESS, Preprocess, batches, crop_and_flip, shift, to_float
from l0arm.lab.data.dataset import Dataset
from l0arm.lab.data.errors import DataError
from l0arm.lab.data.loading import DATASETS, load_dataset
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
    "shift",
    "to_float",
]
