"""Data in memory: 20,000 training images, or characters of Python's standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from l0arm.lab.data import load_dataset

TRAINING, HELD_BACK = 20_000, 5_000  # images; those held back are for choosing settings
CONTEXT = 64  # characters
STEPS, WINDOWS = 157, 16  # an epoch of text: as many steps as for the images, windows in each
SYMBOLS = "\n" + "".join(map(chr, range(32, 127)))  # others: number 96
READ = """
    argparse ast bdb calendar cgitb code codecs collections/__init__ configparser contextlib copy
    csv datetime difflib dis doctest enum fractions ftplib functools gettext glob gzip heapq
    html/parser http/client http/server imaplib inspect ipaddress json/decoder logging/__init__
    mailbox mimetypes nntplib ntpath numbers os pathlib pdb pickle pickletools platform plistlib
    posixpath pprint profile pstats pydoc random shutil smtplib socket ssl stat string
"""
VALIDATED = "optparse shelve subprocess threading"
TESTED = "statistics tarfile textwrap typing uuid zipfile"


@dataclass(frozen=True)
class Data:
    """Inputs and targets for training, and for measuring.

    Attributes:
        x: Images, or one long line of characters.
        y: Labels. Not used for text.
        test_x: As ``x``, for measuring: whole windows for text.
        test_y: Targets.
        source: What it is, with a hash.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    source: str


class Images:
    """Batches of images in a new order at each walk, one half of them mirrored."""

    def __init__(self, data: Data, seed: int, size: int = 128) -> None:
        self.data, self.size = data, size
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.data.y) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.data.y), generator=self.generator)
        for rows in order.split(self.size):
            x = self.data.x[rows]
            mirrored = torch.rand(len(x), 1, 1, 1, generator=self.generator) < 0.5
            x = torch.where(mirrored, x.flip(3), x)
            yield x.contiguous(memory_format=torch.channels_last), self.data.y[rows]


class Text:
    """Batches of windows at random places of a text."""

    def __init__(self, data: Data, seed: int, size: int = WINDOWS) -> None:
        self.data, self.size = data, size
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(STEPS):
            last = len(self.data.x) - CONTEXT - 1
            start = torch.randint(last, (self.size, 1), generator=self.generator)
            window = self.data.x[start + torch.arange(CONTEXT + 1)]
            yield window[:, :-1], window[:, 1:]


@cache
def images(name: str, folder: Path | None, validation: bool) -> Data:
    """The first 20,000 training images, and the test images or held-back training images."""
    found = load_dataset(name, folder)
    x, y = _floats(found.train_images[: TRAINING + HELD_BACK]), found.train_labels
    if validation:
        test_x, test_y = x[TRAINING:], y[TRAINING : TRAINING + HELD_BACK]
    else:
        test_x, test_y = _floats(found.test_images), found.test_labels
    return Data(x[:TRAINING], y[:TRAINING], test_x, test_y, name)


def _floats(pixels: Tensor) -> Tensor:
    x = pixels.float().div_(255).sub_(0.5).div_(0.25)
    return x.contiguous(memory_format=torch.channels_last)


@cache
def standard_library(validation: bool) -> Data:
    """Sources of modules that every Python installs."""
    text = _encoded(READ)
    measured = _encoded(VALIDATED if validation else TESTED)
    windows = measured[: (len(measured) - 1) // CONTEXT * CONTEXT + 1]
    digest = hashlib.sha256(bytes(text.tolist()) + bytes(measured.tolist())).hexdigest()
    source = f"Python's standard library: {len(text)} and {len(measured)} characters, {digest}"
    shape = (-1, CONTEXT)
    return Data(text, text[:0], windows[:-1].view(shape), windows[1:].view(shape), source)


def _encoded(modules: str) -> Tensor:
    """Characters as numbers. Modules that this Python does not have are left out."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = [folder / f"{module}.py" for module in modules.split()]
    text = "".join(f.read_text(encoding="utf-8") for f in files if f.is_file())
    numbers = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    return torch.tensor([numbers.get(symbol, len(SYMBOLS)) for symbol in text])
