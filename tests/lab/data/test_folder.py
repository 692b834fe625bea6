"""A folder of images is read as it is sorted; what does not fit is named."""

from pathlib import Path

import numpy as np
import pytest

from l0arm.lab.data import DataError, Dataset, load_dataset

Image = pytest.importorskip("PIL.Image")


def put(path: Path, value: int, *, mode: str = "L", size: tuple[int, int] = (4, 3)) -> None:
    """An image of one value, named so that its class and value can be told from it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


def load(root: Path) -> Dataset:
    return load_dataset(f"folder:{root}")


@pytest.fixture
def sorted_folder(tmp_path: Path) -> Path:
    for part, start in (("train", 0), ("test", 100)):
        put(tmp_path / part / "dog" / "b.png", start + 2)
        put(tmp_path / part / "dog" / "a.PNG", start + 1)
        put(tmp_path / part / "cat" / "z.bmp", start)
    (tmp_path / "train" / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "readme.md").touch()
    return tmp_path


def test_train_and_test_by_folders(sorted_folder: Path) -> None:
    dataset = load(sorted_folder)
    assert dataset.train_images.shape == dataset.test_images.shape == (3, 1, 3, 4)
    # cat before dog, a before b
    assert dataset.train_images[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert dataset.test_images[:, 0, 2, 3].tolist() == [100, 101, 102]
    assert dataset.train_labels.tolist() == dataset.test_labels.tolist() == [0, 1, 1]
    assert dataset.classes == 2
    assert "its own train/ and test/" in dataset.source


def test_one_colour_image_makes_all_of_them_colour(sorted_folder: Path) -> None:
    put(sorted_folder / "test" / "dog" / "c.png", 7, mode="RGB")
    dataset = load(sorted_folder)
    assert dataset.train_images.shape == (3, 3, 3, 4)
    assert dataset.test_images[-1, :, 0, 0].tolist() == [7, 0, 255]
    assert dataset.train_images[1, :, 0, 0].tolist() == [1, 1, 1]


def test_a_folder_without_parts_is_split_80_to_20(tmp_path: Path) -> None:
    for n in range(15):
        put(tmp_path / "a" / f"{n:02}.png", n)
    for n in range(10):
        put(tmp_path / "b" / f"{n:02}.png", 100 + n)
    dataset, again = load(tmp_path), load(tmp_path)
    train, test = (x[:, 0, 0, 0].tolist() for x in (dataset.train_images, dataset.test_images))
    assert np.bincount(dataset.train_labels).tolist() == [12, 8]
    assert np.bincount(dataset.test_labels).tolist() == [3, 2]
    assert sorted(train + test) == [*range(15), *range(100, 110)]
    assert [int(value >= 100) for value in test] == dataset.test_labels.tolist()
    assert again.test_images[:, 0, 0, 0].tolist() == test  # the seed is fixed
    assert test != [0, 1, 2, 100, 101]  # and the choice is a random one
    assert "a random 20% of each class as test part (seed 0)" in dataset.source


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("train", "plane"):
        for n in range(5):
            put(tmp_path / name / f"{n}.png", n)
    assert load(tmp_path).classes == 2


def test_progress_is_reported(sorted_folder: Path) -> None:
    reports = []
    load_dataset(f"folder:{sorted_folder}", progress=lambda *report: reports.append(report))
    assert reports == [(f"reading {sorted_folder}", n, 6) for n in range(1, 7)]


def test_mixed_sizes_are_refused(sorted_folder: Path) -> None:
    put(sorted_folder / "test" / "cat" / "big.png", 1, size=(5, 3))
    with pytest.raises(DataError, match=r"big\.png: its height and width are \(3, 5\), .*z\.bmp"):
        load(sorted_folder)


def test_a_broken_image_is_named(sorted_folder: Path) -> None:
    (sorted_folder / "train" / "cat" / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken\.png: is no readable image"):
        load(sorted_folder)


def test_an_unknown_class_in_test_is_refused(sorted_folder: Path) -> None:
    put(sorted_folder / "test" / "bird" / "a.png", 1)
    with pytest.raises(DataError, match="bird: is a class that train/ does not have"):
        load(sorted_folder)


def test_train_without_test_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "train" / "cat" / "a.png", 1)
    with pytest.raises(DataError, match="test: there is no such folder, though train/ is beside"):
        load(tmp_path)


@pytest.mark.parametrize("folders", [[], ["cat"], ["train/cat", "test/cat"]])
def test_an_empty_folder_is_refused(folders: list[str], tmp_path: Path) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(DataError, match=r": has no images; expected <class>/<image>"):
        load(tmp_path)


def test_too_few_images_to_split_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "cat" / "a.png", 1)
    with pytest.raises(DataError, match=rf"{tmp_path}: too few images to set 20% of each class"):
        load(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: there is no such folder of images"):
        load(tmp_path / "nowhere")
