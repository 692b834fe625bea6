"""MNIST-mini is the whole of t10k, once, in two stratified parts, and nothing else."""

import hashlib
import subprocess
import sys
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from l0arm.lab.data import MnistMini, mini, mnist_mini

# t10k's class counts, 80 % of each, rounded, and the rest.
T10K_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
TRAIN_COUNTS = [784, 908, 826, 808, 786, 714, 766, 822, 779, 807]
TEST_COUNTS = [196, 227, 206, 202, 196, 178, 192, 206, 195, 202]

ARCHIVE = Path(str(resources.files(mini) / "mnist_mini.npz"))
SCRIPT = Path(__file__).parents[3] / "scripts/make_mnist_mini.py"


@pytest.fixture(scope="module")
def digits() -> MnistMini:
    return mnist_mini()


def image_hashes(images: Tensor) -> set[bytes]:
    return {hashlib.sha256(image.numpy().tobytes()).digest() for image in images}


def test_shapes_and_types(digits: MnistMini) -> None:
    assert digits.train_images.shape == (8000, 28, 28)
    assert digits.test_images.shape == (2000, 28, 28)
    assert digits.train_labels.shape == (8000,)
    assert digits.test_labels.shape == (2000,)
    assert digits.train_images.dtype == digits.test_images.dtype == torch.uint8
    assert digits.train_labels.dtype == digits.test_labels.dtype == torch.int64


def test_every_class_is_split_80_20(digits: MnistMini) -> None:
    assert torch.bincount(digits.train_labels).tolist() == TRAIN_COUNTS
    assert torch.bincount(digits.test_labels).tolist() == TEST_COUNTS
    assert np.add(TRAIN_COUNTS, TEST_COUNTS).tolist() == T10K_COUNTS


def test_no_image_is_in_it_twice(digits: MnistMini) -> None:
    train, test = image_hashes(digits.train_images), image_hashes(digits.test_images)
    assert (len(train), len(test)) == (8000, 2000)
    assert train.isdisjoint(test)


def test_labels_are_shuffled(digits: MnistMini) -> None:
    # Sorted by class, neighbours would agree all but 9 times; shuffled, about one time in ten.
    agree = (digits.train_labels[1:] == digits.train_labels[:-1]).double().mean().item()
    assert agree == pytest.approx(0.1, abs=0.02)


def test_mean_intensity_is_that_of_t10k(digits: MnistMini) -> None:
    # t10k's mean pixel is 0.1325 of full scale (33.79 of 255); the split must not lose one.
    total = digits.train_images.sum().item() + digits.test_images.sum().item()
    assert total / (10_000 * 28 * 28) / 255 == pytest.approx(0.1325, abs=5e-5)


def test_archive_is_small() -> None:
    assert ARCHIVE.stat().st_size < 2_000_000


def test_each_load_is_its_own_copy() -> None:
    mnist_mini().train_images.zero_()
    assert mnist_mini().train_images.max() == 255


def test_one_changed_pixel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with np.load(ARCHIVE) as npz:
        arrays = dict(npz)
    arrays["test_images"][0, 0, 0] ^= 1
    tampered = tmp_path / "mnist_mini.npz"
    np.savez_compressed(tampered, **arrays)
    monkeypatch.setattr(mini, "_archive", lambda: tampered)
    with pytest.raises(ValueError, match=r"mnist_mini\.npz: expected content .* reinstall l0arm"):
        mnist_mini()


@pytest.mark.parametrize("keep", [0, 100, 500_000, -1])
def test_a_truncated_file_is_refused(
    keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truncated = tmp_path / "mnist_mini.npz"
    truncated.write_bytes(ARCHIVE.read_bytes()[:keep])
    monkeypatch.setattr(mini, "_archive", lambda: truncated)
    with pytest.raises(ValueError, match=r"an unreadable file .* reinstall l0arm"):
        mnist_mini()


@pytest.mark.slow
def test_script_makes_the_same_file(data_dir: Path, tmp_path: Path) -> None:
    made = tmp_path / "mnist_mini.npz"
    command: list[str | Path] = [sys.executable, SCRIPT, "--data-dir", data_dir, "--out", made]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert mini.SHA256 in printed
    # Member by member: how they are compressed is up to the zlib at hand.
    with zipfile.ZipFile(made) as a, zipfile.ZipFile(ARCHIVE) as b:
        assert a.namelist() == b.namelist()
        assert all(a.read(name) == b.read(name) for name in a.namelist())
