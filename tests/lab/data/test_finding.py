"""A folder is searched for every form of a data set; each file is checked before it is read."""

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from l0arm.lab.data import DataError, Dataset, load_dataset
from l0arm.lab.data.catalogue import DataFile

FORMS = [(10, "cifar-python"), (10, "cifar-binary"), (100, "cifar-python"), (100, "cifar-binary")]
every_cifar = pytest.mark.parametrize(("classes", "form"), FORMS)


def load(made: object, root: Path) -> Dataset:
    catalogue = {"set": made.entry}
    return load_dataset("set", root, cache=root / "cache", download=False, catalogue=catalogue)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
def test_idx_files(
    folder: str,
    compress: bool,
    mnist: Callable[..., object],
    same: Callable[..., bool],
    tmp_path: Path,
) -> None:
    made = mnist()
    home = made.write(tmp_path / folder, compress=compress)
    dataset = load(made, tmp_path)
    assert same(dataset, made)
    assert (dataset.name, dataset.classes) == ("set", 10)
    assert dataset.source == f"{home} (original files, SHA-256 verified)"


@every_cifar
@pytest.mark.parametrize("folder", ["", "the-batches", "cifar{}/the-batches", "cifar{}"])
def test_cifar_files(
    folder: str,
    classes: int,
    form: str,
    cifar: Callable[..., object],
    same: Callable[..., bool],
    tmp_path: Path,
) -> None:
    made = cifar(classes, form)
    made.write(tmp_path / folder.format(classes))
    assert same(load(made, tmp_path), made)


@every_cifar
def test_cifar_archives(
    classes: int,
    form: str,
    cifar: Callable[..., object],
    same: Callable[..., bool],
    tmp_path: Path,
) -> None:
    made = cifar(classes, form)
    made.write_archive(tmp_path / f"cifar{classes}")
    dataset = load(made, tmp_path)
    assert same(dataset, made)
    assert dataset.source.endswith("the-batches.tar.gz (original archive, SHA-256 verified)")
    assert [path.name for path in tmp_path.rglob("*")] == [f"cifar{classes}", "the-batches.tar.gz"]


def test_a_weaker_checksum_is_named(cifar: Callable[..., object], tmp_path: Path) -> None:
    made = cifar(100, "cifar-python")
    name, content = next(iter(made.files.items()))
    weak = DataFile(name, f"md5:{hashlib.md5(content).hexdigest()}")
    made.entry = replace(made.entry, releases=(replace(made.release, train=(weak,)),))
    made.write(tmp_path)
    assert load(made, tmp_path).source.endswith("(original files, MD5 verified)")
    (tmp_path / name).write_bytes(content[:-1] + b"x")
    with pytest.raises(DataError, match=r"train: its MD5 is"):
        load(made, tmp_path)


@pytest.mark.parametrize("number", range(4))
def test_one_changed_byte_in_any_file_is_refused(
    number: int, mnist: Callable[..., object], tmp_path: Path
) -> None:
    made = mnist()
    made.write(tmp_path, compress=True)
    name = list(made.files)[number]
    content = made.files[name]
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content[:-1] + bytes([content[-1] ^ 1])))
    with pytest.raises(DataError, match=rf"{name}\.gz: its SHA-256 is .* put the original"):
        load(made, tmp_path)


def test_a_truncated_file_is_refused(mnist: Callable[..., object], tmp_path: Path) -> None:
    made = mnist()
    made.write(tmp_path, compress=True)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz: cannot be read to its end"):
        load(made, tmp_path)


def test_an_archive_is_checked_before_it_is_opened(
    cifar: Callable[..., object], tmp_path: Path
) -> None:
    made = cifar(10, "cifar-python")
    made.archive = made.archive[:-1]
    made.write_archive(tmp_path)
    with pytest.raises(DataError, match=r"the-batches\.tar\.gz: its SHA-256 is"):
        load(made, tmp_path)


def test_a_member_is_checked_too(
    cifar: Callable[..., object], formats: object, tmp_path: Path
) -> None:
    made = cifar(10, "cifar-binary")
    files = {**made.files, "test_batch.bin": bytes(2 * 3073)}
    made.archive = formats.tar_gz({f"the-batches/{k}": v for k, v in files.items()})
    kept = DataFile("the-batches.tar.gz", formats.sha256(made.archive))
    made.entry = replace(made.entry, releases=(replace(made.release, archive=kept),))
    made.write_archive(tmp_path)
    with pytest.raises(DataError, match=r"gz, member the-batches/test_batch\.bin: its SHA-256 is"):
        load(made, tmp_path)


def test_the_folder_of_the_data_set_goes_before_its_parent(
    mnist: Callable[..., object], same: Callable[..., bool], tmp_path: Path
) -> None:
    made = mnist()
    made.write(tmp_path / "mnist")
    for name in made.files:  # another data set with the same file names
        (tmp_path / name).write_bytes(b"other")
    assert same(load(made, tmp_path), made)


def test_missing_files_are_named(mnist: Callable[..., object], tmp_path: Path) -> None:
    made = mnist()
    made.write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=rf"{tmp_path} lacks t10k-labels-idx1-ubyte of set"):
        load(made, tmp_path)


def test_a_wrong_number_of_images_is_refused(mnist: Callable[..., object], tmp_path: Path) -> None:
    made = mnist()
    made.entry = replace(made.entry, test_size=4)
    made.write(tmp_path)
    with pytest.raises(DataError, match="6 training and 4 test images, but 6 and 3 came"):
        load(made, tmp_path)
