"""Images of every usual mode become uint8 channels; a folder is read as it is sorted."""

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from l0arm.lab.data import DataError, Dataset, load_dataset
from l0arm.lab.data.formats.images import as_colour, decode_image

Image = pytest.importorskip("PIL.Image")

PIXELS = np.array([[[255, 0, 0], [0, 255, 0]]], np.uint8)  # one row: red, green


def encoded(image: object, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_colour_has_three_channels(mode: str) -> None:
    image = Image.fromarray(PIXELS).convert(mode)
    assert decode_image(encoded(image), "x").tolist() == [[[255, 0]], [[0, 255]], [[0, 0]]]


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_grey_has_one(mode: str) -> None:
    image = Image.fromarray(np.array([[0, 255]], np.uint8)).convert(mode)
    assert decode_image(encoded(image), "x").tolist() == [[[0, 255]]]


def test_a_jpeg_of_one_colour_is_that_colour(tmp_path: Path) -> None:
    path = tmp_path / "grey.jpg"
    path.write_bytes(encoded(Image.new("L", (8, 4), 77), "JPEG"))
    image = decode_image(path, path)
    assert (image.shape, set(image.ravel().tolist())) == ((1, 4, 8), {77})


def test_grey_in_colour() -> None:
    grey = np.array([[[1, 2]]], np.uint8)
    assert as_colour(grey).tolist() == [[[1, 2]], [[1, 2]], [[1, 2]]]
    colour = np.arange(6, dtype=np.uint8).reshape(3, 1, 2)
    assert np.array_equal(as_colour(colour), colour)


@pytest.mark.parametrize(
    "content", [b"", b"no image", encoded(Image.new("RGB", (64, 64), (1, 2, 3)))[:-40]]
)
def test_what_is_no_image_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"the place: is no readable image .* remove it"):
        decode_image(content, "the place")


def test_deep_pixels_are_refused() -> None:
    deep = Image.fromarray(np.array([[0, 40_000]], np.uint16))
    with pytest.raises(DataError, match="the place: pixels of mode 'I;16' are not 8 bits deep"):
        decode_image(encoded(deep), "the place")


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match=r"Pillow is needed .* pip install 'l0arm\[data\]'"):
        decode_image(b"", "x")


def put(path: Path, value: int, *, mode: str = "L", size: tuple[int, int] = (4, 3)) -> None:
    """Write an image of one value."""
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


def test_a_broken_image_is_refused(sorted_folder: Path) -> None:
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


def test_dds_bytes_are_refused(sorted_folder: Path) -> None:
    """Pillow knows the format by its first bytes and not all of its pixel formats."""
    header = struct.pack("<31I", 124, 0x1007, 4, 4, *[0] * 14, 32, 4, 0x58585858, *[0] * 10)
    (sorted_folder / "train" / "cat" / "texture.png").write_bytes(b"DDS " + header)
    with pytest.raises(DataError, match=r"texture\.png: is no readable image .* remove it"):
        load(sorted_folder)
