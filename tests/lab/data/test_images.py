"""Images of every usual mode become uint8 channels; the rest is refused by name."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from l0arm.lab.data import DataError
from l0arm.lab.data.images import as_colour, decode_image

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
