"""A data set in a folder, in whichever of its published forms it is there."""

from collections.abc import Iterator
from pathlib import Path

import torch

from l0arm.lab.data.dataset import Dataset
from l0arm.lab.data.errors import Absent, DataError
from l0arm.lab.data.hub import read_hub_copy
from l0arm.lab.data.originals import read_archive, read_originals
from l0arm.lab.data.parts import Found
from l0arm.lab.data.progress import Progress
from l0arm.lab.data.releases import Entry
from l0arm.lab.data.storage import plain_or_gz

__all__ = ["read_folder"]


def read_folder(name: str, entry: Entry, root: Path, cache: Path, progress: Progress) -> Dataset:
    """The data set in ``root`` or in a sub-folder named like it; `Absent` if it is not there.

    What is there but damaged raises `DataError`.
    """
    for base in _bases(entry, root):
        for release in entry.releases:
            if release.form == "parquet":
                found = read_hub_copy(release, entry, base, cache, progress)
            else:
                found = read_originals(release, entry, base) or read_archive(release, entry, base)
            if found:
                return _dataset(name, entry, found)
    raise Absent(f"{root}: {_what_is_missing(name, entry, root)}")


def _bases(entry: Entry, root: Path) -> Iterator[Path]:
    yield from (root / folder for folder in entry.folders if (root / folder).is_dir())


def _dataset(name: str, entry: Entry, found: Found) -> Dataset:
    came = len(found.train.labels), len(found.test.labels)
    if came != (entry.train_size, entry.test_size):
        raise DataError(
            f"{found.source}: {name} has {entry.train_size:,} training and {entry.test_size:,} "
            f"test images, but {came[0]:,} and {came[1]:,} came; check that all of its files are "
            "there"
        )
    return Dataset(
        name,
        torch.from_numpy(found.train.images),
        torch.from_numpy(found.train.labels),
        torch.from_numpy(found.test.images),
        torch.from_numpy(found.test.labels),
        entry.classes,
        found.source,
    )


def _what_is_missing(name: str, entry: Entry, root: Path) -> str:
    """Why nothing was found: a folder that has only some of the files says which are missing."""
    if not root.is_dir():
        return "there is no such folder"
    for base in _bases(entry, root):
        for release in entry.releases:
            files = [*release.train, *release.test]
            for folder in release.homes(base):
                missing = [f.name for f in files if not plain_or_gz(folder, f.name).is_file()]
                if len(missing) < len(files):
                    return f"{folder} lacks {', '.join(missing)} of {name}"
    return f"has no files of {name}"
