"""A data set in a folder, in whichever published form it is there."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from l0arm.lab.data.catalogue import DataFile, Entry, Release
from l0arm.lab.data.dataset import Absent, DataError, Dataset, Part, Progress, join
from l0arm.lab.data.formats import Parquet
from l0arm.lab.data.formats.parquet import decoded_once
from l0arm.lab.data.reading import (
    check_digest,
    file_digest,
    plain_or_gz,
    read_content,
    read_members,
)

__all__ = ["read_folder"]

Parser = Callable[[dict[str, bytes]], Part]


class Found(NamedTuple):
    """The two parts of a data set, and where they are from and how they were verified."""

    train: Part
    test: Part
    source: str


def read_folder(name: str, entry: Entry, root: Path, cache: Path, progress: Progress) -> Dataset:
    """Read a data set from ``root`` or from a sub-folder named like it.

    Raises `Absent` if it is not there, and `DataError` if it is there but damaged.
    """
    for base in _bases(entry, root):
        for release in entry.releases:
            if isinstance(release.format, Parquet):
                decode = partial(release.format.read, classes=entry.classes, progress=progress)
                found = _read_parquet(release, f"-{release.format.label}", decode, base, cache)
            else:
                parse = partial(release.format.parse, classes=entry.classes)
                found = _read_originals(release, parse, base) or _read_archive(release, parse, base)
            if found:
                return _dataset(name, entry, found)
    raise Absent(f"{root}: {_what_is_missing(name, entry, root)}")


def _bases(entry: Entry, root: Path) -> Iterator[Path]:
    yield from (root / folder for folder in entry.folders if (root / folder).is_dir())


def _read_originals(release: Release, parse: Parser, base: Path) -> Found | None:
    """Read the first folder that has all original files, each plain or as .gz."""
    for folder in release.homes(base):
        paths = {file: plain_or_gz(folder, file.name) for file in (*release.train, *release.test)}
        if all(path.is_file() for path in paths.values()):
            contents = {file: read_content(path) for file, path in paths.items()}
            for file, content in contents.items():
                check_digest(content, file.digest, paths[file])
            weak = any(file.digest.startswith("md5:") for file in paths)
            source = f"{folder} (original files, {'MD5' if weak else 'SHA-256'} verified)"
            names = {file: str(path) for file, path in paths.items()}
            return Found(*_parsed(release, parse, contents, names), source)
    return None


def _read_archive(release: Release, parse: Parser, base: Path) -> Found | None:
    """Read the published archive without unpacking it to disk."""
    if release.archive is None or not (base / release.archive.name).is_file():
        return None
    path = base / release.archive.name
    check_digest(path, release.archive.digest, path)
    names = {file: f"{release.folder}/{file.name}" for file in (*release.train, *release.test)}
    members = read_members(path, list(names.values()))
    contents = {file: members[name] for file, name in names.items()}
    for file, content in contents.items():
        check_digest(content, file.digest, f"{path}, member {names[file]}")
    # The SHA-256 of the archive was right, so its members are verified as strongly as that.
    source = f"{path} (original archive, SHA-256 verified)"
    return Found(*_parsed(release, parse, contents, names), source)


def _parsed(
    release: Release, parse: Parser, contents: dict[DataFile, bytes], names: dict[DataFile, str]
) -> tuple[Part, Part]:
    train, test = (
        parse({names[file]: contents[file] for file in files})
        for files in (release.train, release.test)
    )
    return train, test


def _read_parquet(
    release: Release, suffix: str, decode: Callable[[Path], Part], base: Path, cache: Path
) -> Found | None:
    """Read the first folder that has files train*.parquet and test*.parquet.

    What was decoded once comes from the cache, where its key is the digest of the file and
    ``suffix``.
    """
    for folder in release.homes(base):
        train, test = (sorted(folder.glob(f"{part}*.parquet")) for part in ("train", "test"))
        if train and test:
            digests = {path: file_digest(path) for path in (*train, *test)}
            known = {file.digest for file in (*release.train, *release.test)}
            if {f"sha256:{digest}" for digest in digests.values()} == known:
                note = "the Hugging Face hub's own Parquet files, SHA-256 verified"
            else:
                note = "a Parquet copy, content not verified: these are not the Hugging Face hub's"
                note += " own files"
            parts = {
                path: decoded_once(f"{digest}{suffix}", cache, partial(decode, path))
                for path, digest in digests.items()
            }
            train_part, test_part = (join([parts[path] for path in part]) for part in (train, test))
            return Found(train_part, test_part, f"{folder} ({note})")
    return None


def _dataset(name: str, entry: Entry, found: Found) -> Dataset:
    sizes = len(found.train.labels), len(found.test.labels)
    if sizes != (entry.train_size, entry.test_size):
        raise DataError(
            f"{found.source}: {name} has {entry.train_size:,} training and {entry.test_size:,} "
            f"test images, but {sizes[0]:,} and {sizes[1]:,} came; check that all of its files are "
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
    """Why nothing was found. A folder that has only some of the files says which are missing."""
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
