"""Pickles of CIFAR by any version of Python are read; whatever could run code is refused."""

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from l0arm.lab.data import DataError
from l0arm.lab.data.formats.unpickling import unpickle

IMAGES = np.arange(2 * 300).reshape(2, 300).astype(np.uint8)
NUMPY1 = (b"numpy._core.multiarray", b"numpy.core.multiarray")


def test_a_python_2_pickle(
    formats: SimpleNamespace, outside_pickle: Callable[[bytes], dict[bytes, object]]
) -> None:
    content = formats.python2_pickle(IMAGES, [6, 9], b"labels")
    trusted = outside_pickle(content)  # the file that the test made is a true pickle
    batch = unpickle(content, "batch")
    assert np.array_equal(trusted[b"data"], IMAGES)
    assert np.array_equal(batch["data"], IMAGES)
    assert batch["labels"] == trusted[b"labels"] == [6, 9]
    assert batch["batch_label"] == trusted[b"batch_label"] == b"batch 1 of 5"
    assert batch["data"].dtype == np.uint8
    assert batch["data"].flags.writeable


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_python_3_pickle(protocol: int) -> None:
    batch = {"data": IMAGES, "labels": [1, 2], b"more": [b"x", "y", 3]}
    content = pickle.dumps(batch, protocol=protocol)
    read = unpickle(content, "batch")
    assert np.array_equal(read.pop("data"), IMAGES)
    assert read == {"labels": [1, 2], "more": [b"x", "y", 3]}


@pytest.mark.parametrize("protocol", [2, 3])  # protocol 4 frames names by length
def test_the_module_names_of_numpy_1(protocol: int) -> None:
    content = pickle.dumps({"data": IMAGES}, protocol=protocol).replace(*NUMPY1)
    assert NUMPY1[0] not in content
    assert np.array_equal(unpickle(content, "batch")["data"], IMAGES)


class Acts:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_acts_is_refused_and_does_not_act(protocol: int, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    content = pickle.dumps({"data": Acts(os.mkdir, str(trap))}, protocol=protocol)
    with pytest.raises(DataError, match=r"batch: .* asks for posix\.mkdir, which is not admitted"):
        unpickle(content, "batch")
    assert not trap.exists()
    pickle.loads(content)  # the trap is a working one
    assert trap.exists()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Acts(eval, "1"), "eval"),
        (Acts(getattr, 1, "real"), "getattr"),
        (OrderedDict(a=1), "OrderedDict"),
        ({1}, "set"),
        (np.float64(1), "scalar"),
        (np.random.default_rng, "default_rng"),
        (bytearray(b"a"), "bytearray"),
        (1j, "complex"),
    ],
)
def test_every_other_name_is_refused(value: object, name: str) -> None:
    content = pickle.dumps({"data": value}, protocol=2)
    with pytest.raises(DataError, match=rf"batch: .* asks for \S*{name}, which is not admitted"):
        unpickle(content, "batch")


@pytest.mark.parametrize(
    "array", [IMAGES.astype(np.int8), IMAGES.astype(float), np.array([object()]), np.array(["a"])]
)
def test_other_arrays_are_refused(array: np.ndarray) -> None:
    if array.dtype == object:
        array[0] = "text"
    with pytest.raises(DataError, match=r"batch: .* not uint8"):
        unpickle(pickle.dumps({"data": array}, protocol=2), "batch")


def test_an_array_in_column_order_is_refused() -> None:
    with pytest.raises(DataError, match=r"batch: .* not uint8 in row order"):
        unpickle(pickle.dumps({"data": np.asfortranarray(IMAGES)}, protocol=2), "batch")


def test_a_shape_that_does_not_fit_its_bytes_is_refused(formats: SimpleNamespace) -> None:
    content = formats.python2_pickle(IMAGES, [], b"labels")
    two, three = b"J\x02\x00\x00\x00", b"J\x03\x00\x00\x00"
    assert content.count(two) == 1
    with pytest.raises(DataError, match=r"an array of shape \(3, 300\) has 600 bytes"):
        unpickle(content.replace(two, three), "batch")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        b"\x80\x02]q\x00.",  # a list
        b"\x80\x02}K\x01K\x02s.",  # a key that is no text
        b"\x80\x02U\x01aQ.",  # a persistent reference
        b"\x80\x02\x82\x01.",  # an entry of the extension registry
        b"\x80\x02cnumpy\ndtype\n)\x81.",  # cls.__new__ on what is no class
        b"\x80\x02cnumpy\ndtype\n}U\x08__call__K\x01sb.",  # to change a stand-in
        b"\x80\x02cnumpy\ndtype\nN}U\x08__call__K\x01s\x86b.",  # the same by its slots
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x85Rs.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nK\x01\x85R.",
        b"\x80\x02}X\x01\x00\x00\x00bc_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86Rs.",
    ],
)
def test_malformed_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="batch: is not a batch as CIFAR has them"):
        unpickle(content, "batch")


def test_every_truncation_is_refused(formats: SimpleNamespace) -> None:
    content = formats.python2_pickle(IMAGES[:, :4], [1, 2], b"labels")
    for keep in range(len(content)):
        with pytest.raises(DataError, match="batch: "):
            unpickle(content[:keep], "batch")
