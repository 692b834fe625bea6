"""File formats of data sets, one module each.

A format is a small class that turns the files of a part into a `Part`. The catalogue names it with
its options, as in ``CifarBinary(label_bytes=2)``.
"""

from collections.abc import Mapping
from typing import Protocol

from l0arm.lab.data.dataset import Part
from l0arm.lab.data.formats.cifar import CifarBinary, CifarPython
from l0arm.lab.data.formats.idx import Idx
from l0arm.lab.data.formats.parquet import Parquet

__all__ = ["CifarBinary", "CifarPython", "Format", "Idx", "Parquet"]


class Format(Protocol):
    """How the original files of a data set are laid out."""

    def parse(self, contents: Mapping[str, bytes], classes: int) -> Part:
        """Parse the files of a part: content by name, in the order of the release."""
        ...
