"""A table comes back from disk as it was, or not at all."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from l0arm.costs.latency_file import LARGEST, read_table, table_file, write_table
from l0arm.costs.latency_table import LatencyTable, LayerTime

TENSORS = {"conv": "conv.weight", "fc": "fc.weight"}
LAYERS = {
    "conv": LayerTime("conv.weight", weights=3.0, read=0.5, made=0.25),
    "fc": LayerTime("fc.weight", weights=1.0, read=0.0, made=2.0),
}
TABLE = LatencyTable(LAYERS, constant=2.0, dense=8.5, deviation=0.1)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    assert read_table(path, "abc", TENSORS) == TABLE
    assert [file.name for file in path.parent.iterdir()] == ["abc.json"]  # nothing temporary


def test_it_lies_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert table_file("abc") == Path("/somewhere/l0arm/latency/abc.json")


LAYER: dict[str, Any] = asdict(LAYERS["conv"])
CHANGES: list[dict[str, Any]] = [
    {"format": 2},
    {"digest": "abd"},
    {"constant": -1.0},
    {"constant": float("nan")},
    {"constant": float("inf")},
    {"constant": "1.5"},
    {"dense": 0.0},
    {"deviation": None},
    {"deviation": True},
    {"layers": {}},
    {"layers": []},
    {"layers": 3},
    {"layers": {"conv": LAYER | {"tensor": "fc.weight"}}},
    {"layers": {"conv": LAYER | {"tensor": ["conv.weight"]}}},
    {"layers": {"other": LAYER}},
    {"layers": {"conv": LAYER | {"weights": -0.5}}},
    {"layers": {"conv": LAYER | {"made": "long"}}},
    {"layers": {"conv": {key: LAYER[key] for key in ("tensor", "weights", "read")}}},
    {"layers": {"conv": 1.0}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_table_that_no_measurement_gives_is_not_read(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert read_table(path, "abc", TENSORS) is None


@pytest.mark.parametrize("key", ["format", "digest", "layers", "constant", "dense", "deviation"])
def test_nothing_may_be_missing(tmp_path: Path, key: str) -> None:
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    told = json.loads(path.read_text())
    del told[key]
    path.write_text(json.dumps(told))
    assert read_table(path, "abc", TENSORS) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"3", b"[" * 10**5, b'{"format": 1}']
)
def test_damage_is_not_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    assert read_table(tmp_path / "t.json", "abc", TENSORS) is None


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    path.write_text(path.read_text() + " " * LARGEST)
    assert read_table(path, "abc", TENSORS) is None


def test_no_file_is_no_table(tmp_path: Path) -> None:
    assert read_table(tmp_path / "none.json", "abc", TENSORS) is None
    assert read_table(tmp_path, "abc", TENSORS) is None


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "latency").write_text("a file where a folder should be")
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    assert read_table(path, "abc", TENSORS) is None
