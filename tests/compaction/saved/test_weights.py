"""The header of a file of tensors is validated without the library that wrote it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from l0arm.compaction.saved.description import read_description
from l0arm.compaction.saved.weights import DTYPES, SavedError, TensorInfo, read_header
from l0arm.files import LARGEST_JSON


def written(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(shape: list[int], first: int, last: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


@pytest.mark.parametrize("code", DTYPES)
def test_it_reads_what_safetensors_writes(code: str, tmp_path: Path) -> None:
    name, width = DTYPES[code]
    dtype = getattr(torch, name)
    tensors = {"a": torch.zeros(2, 3, dtype=dtype), "b": torch.zeros((), dtype=dtype)}
    save_file({**tensors, "none": torch.zeros(0, 4, dtype=dtype)}, tmp_path / "file")
    found = read_header(tmp_path / "file")
    assert found == {
        "a": TensorInfo((2, 3), name),
        "b": TensorInfo((), name),
        "none": TensorInfo((0, 4), name),
    }
    assert tensors["a"].element_size() == width


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        ({"a": entry([2], 0, 8)}, 4, "cut off or has something at its end"),
        ({"a": entry([2], 0, 8)}, 9, "cut off or has something at its end"),
        ({"a": entry([2], 0, 12)}, 12, "does not take the 12 bytes it has"),
        ({"a": entry([2**40], 0, 2**42)}, 8, "cut off or has something"),
        ({"a": entry([2**60], 0, 8)}, 8, "no tensor has the shape"),
        ({"a": entry([1] * 65, 0, 4)}, 4, "no tensor has the shape"),
        ({"a": entry([True], 0, 4)}, 4, "no tensor has the shape"),
        ({"a": entry([2], 8, 0)}, 8, "does not take the -8 bytes"),
        ({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, 4, "overlap or leave a gap"),
        ({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, 12, "overlap or leave a gap"),
        ({"a": entry([1], 0, 4, "PICKLE")}, 4, "'PICKLE' are not known here"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "lacks the field 'data_offsets'"),
        ({"a": [1, 2]}, 4, "must be an object"),
        ([1, 2], 0, "must be a JSON object"),
        (b'{"a": 1, "a": 2}', 0, "a key stands twice"),
        (b'{"a": NaN}', 0, "NaN is not a finite number"),
        (b"[" * 100_000, 0, "not sound JSON"),
        (b"\xff\xfe{", 0, "not sound JSON"),
    ],
)
def test_what_is_not_sound_is_refused(
    header: object, data: int, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(SavedError, match=reason):
        read_header(written(tmp_path / "file", header, b"\0" * data))


@pytest.mark.parametrize("length", [LARGEST_JSON + 1, 2**63, 10**6])
def test_a_header_that_is_too_long_is_not_read(length: int, tmp_path: Path) -> None:
    with pytest.raises(SavedError, match="cut off or no safetensors file"):
        read_header(written(tmp_path / "file", {}, length=length))


def test_a_file_of_few_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\0\0")
    with pytest.raises(SavedError, match="cut off or no safetensors file"):
        read_header(tmp_path / "file")


def test_a_header_of_gigabytes_is_not_read_though_it_is_there(tmp_path: Path) -> None:
    path = written(tmp_path / "file", {}, length=LARGEST_JSON + 1)
    with path.open("r+b") as file:
        file.truncate(2 * LARGEST_JSON)  # sparse: it takes no room
    with pytest.raises(SavedError, match="cut off or no safetensors file"):
        read_header(path)


def test_a_description_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "l0arm.json", {})
    with path.open("r+b") as file:
        file.truncate(LARGEST_JSON + 1)
    with pytest.raises(SavedError, match="has more than 67,108,864 bytes"):
        read_description(path)
