"""The catalogue is complete and agrees with what is published about the data sets."""

import re

import pytest

from l0arm.lab.data import DATASETS, PREPROCESS
from l0arm.lab.data.catalogue import CATALOGUE, Release

RELEASES = [release for entry in CATALOGUE.values() for release in entry.releases]
every_release = pytest.mark.parametrize("release", RELEASES, ids=lambda r: f"{r.format} {r.folder}")


@every_release
def test_every_file_has_a_digest_of_its_own(release: Release) -> None:
    files = [*release.train, *release.test, *([release.archive] if release.archive else [])]
    for file in files:
        assert re.fullmatch("sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", file.digest)
    assert len({file.digest for file in files}) == len(files)


def test_only_two_files_rest_on_md5() -> None:
    weak = [
        file.digest
        for release in RELEASES
        for file in (*release.train, *release.test, release.archive)
        if file is not None and file.digest.startswith("md5:")
    ]
    # cifar-100-python's train and test, as torchvision has them; the archive has SHA-256.
    assert weak == ["md5:16019d7e3df5f24257cddd939b257f8d", "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"]


@every_release
def test_mirrors_are_folders(release: Release) -> None:
    assert all(re.fullmatch(r"https?://\S+/", mirror) for mirror in release.mirrors)


def test_the_names_agree() -> None:
    assert (
        *("mnist", "fashion-mnist", "cifar10", "cifar100", "mnist-mini", "folder:PATH"),
    ) == DATASETS
    assert set(PREPROCESS) == set(DATASETS) - {"folder:PATH"}


@pytest.mark.parametrize(
    ("name", "classes", "train", "test"),
    [
        ("mnist", 10, 60_000, 10_000),
        ("fashion-mnist", 10, 60_000, 10_000),
        ("cifar10", 10, 50_000, 10_000),
        ("cifar100", 100, 50_000, 10_000),
    ],
)
def test_sizes(name: str, classes: int, train: int, test: int) -> None:
    entry = CATALOGUE[name]
    assert (entry.classes, entry.train_size, entry.test_size) == (classes, train, test)
    assert any(release.mirrors for release in entry.releases)
