"""Checkpoints are read back bit for bit, or skipped if they are damaged."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from l0arm import checkpoints
from l0arm.checkpoints import SCHEMA, NewerCheckpoint, newest_checkpoint, save_checkpoint
from l0arm.files import write_json
from l0arm.lab.errors import UserError
from l0arm.lab.runs import checkpoint as runs


def state(number: int) -> dict[str, Any]:
    return {
        "step": number,
        "rate": 0.1 + 0.2,
        "nothing": None,
        "optimizer": {
            "state": {0: {"m": torch.full((2, 3), float(number))}},
            "betas": (0.9, 0.999),
        },
        "double": torch.tensor([1.0 / 3.0], dtype=torch.float64),
        "generator": torch.get_rng_state(),
    }


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    before = state(7)
    save_checkpoint(tmp_path, 7, before)
    after, damaged = newest_checkpoint(tmp_path)
    assert after is not None
    assert damaged == []
    assert after["step"] == 7
    assert after["rate"] == 0.1 + 0.2
    assert after["nothing"] is None
    assert after["optimizer"]["betas"] == [0.9, 0.999]
    assert list(after["optimizer"]["state"]) == [0]  # a number, not the text "0"
    assert torch.equal(after["optimizer"]["state"][0]["m"], torch.full((2, 3), 7.0))
    assert after["double"].dtype == torch.float64
    assert torch.equal(after["double"], before["double"])
    assert torch.equal(after["generator"], before["generator"])


def test_two_names_for_one_tensor_are_saved_twice(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    save_checkpoint(tmp_path, 1, {"a": shared, "b": shared[1:], "c": shared.view(2, 2).t()})
    after, _ = newest_checkpoint(tmp_path)
    assert after is not None
    assert after["b"].tolist() == [1.0, 2.0, 3.0]
    assert after["c"].tolist() == [[0.0, 2.0], [1.0, 3.0]]


def test_two_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        save_checkpoint(tmp_path, number, state(number))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "00000002.json",
        "00000002.safetensors",
        "00000010.json",
        "00000010.safetensors",
    ]


@pytest.mark.parametrize(
    "kind", ["flipped", "cut", "empty", "no tensors", "cut json", "empty json"]
)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path: Path, kind: str) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    save_checkpoint(tmp_path, 2, state(2))
    tensors, tree = tmp_path / "00000002.safetensors", tmp_path / "00000002.json"
    whole = tensors.read_bytes()
    if kind == "flipped":
        tensors.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    elif kind == "cut":
        tensors.write_bytes(whole[: len(whole) // 2])
    elif kind == "empty":
        tensors.write_bytes(b"")
    elif kind == "no tensors":
        tensors.unlink()
    else:
        tree.write_bytes(tree.read_bytes()[: 0 if kind == "empty json" else 100])
    after, damaged = newest_checkpoint(tmp_path)
    assert after is not None
    assert after["step"] == 1
    assert len(damaged) == 1
    assert "00000002.json" in damaged[0]


def test_when_all_are_damaged_none_is_loaded(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    (tmp_path / "00000001.json").write_text("{")
    after, damaged = newest_checkpoint(tmp_path)
    assert after is None
    assert len(damaged) == 1


def test_a_failed_write_leaves_the_old_ones_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    before = sorted(p.name for p in tmp_path.iterdir())

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 2, state(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def written(folder: Path, number: int, tree: Any, tensors: bytes, schema: Any = SCHEMA) -> None:
    """Write a checkpoint with a right digest, whatever is in it."""
    digest = checkpoints._digest(schema, tree, tensors)
    (folder / f"{number:08d}.safetensors").write_bytes(tensors)
    write_json(folder / f"{number:08d}.json", {"schema": schema, "digest": digest, "state": tree})


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    written(tmp_path, 2, {"dict": []}, save({}), schema=99)
    with pytest.raises(UserError, match="newer version of l0arm"):  # of a run: a user's error
        runs.newest_checkpoint(tmp_path)
    with pytest.raises(NewerCheckpoint, match="newer version of l0arm"):
        newest_checkpoint(tmp_path)


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal in every bit and every type."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(("suffix", "flips"), [("json", 200), ("safetensors", 50)])
def test_a_flipped_bit_is_found_or_has_no_effect(tmp_path: Path, suffix: str, flips: int) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    before, _ = newest_checkpoint(tmp_path)
    save_checkpoint(tmp_path, 2, state(2))
    after, _ = newest_checkpoint(tmp_path)
    path, chance, found = tmp_path / f"00000002.{suffix}", random.Random(0), 0
    whole = path.read_bytes()
    for _ in range(flips):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        restored, damaged = newest_checkpoint(tmp_path)
        assert same(restored, before if damaged else after)
        assert all("00000002" in line and "\n" not in line for line in damaged)
        found += len(damaged)
    assert found > flips / 2  # the others are in the white space of the JSON


@pytest.mark.parametrize(
    ("tree", "tensors", "reason"),
    [
        (None, save({}), "not a dict"),
        ([], save({}), "not a dict"),
        ({}, save({}), "malformed at {}"),
        ({"tensor": "x"}, save({}), "malformed"),
        ({"tensor": ["x"]}, save({}), "malformed"),
        ({"tensor": "x"}, save({"x": torch.zeros(1)}), "not a dict"),
        ({"dict": 5}, save({}), "malformed"),
        ({"dict": [5]}, save({}), "malformed at 5"),
        ({"dict": [["a"]]}, save({}), "malformed"),
        ({"dict": [[["a"], 1]]}, save({}), "malformed"),
        ({"dict": [["a", {"b": 1}]]}, save({}), "malformed"),
        ({"dict": []}, b"", "tensors cannot be read"),
        ({"dict": []}, b"\xff" * 100, "tensors cannot be read"),
        ({"dict": []}, b"\x02" + bytes(7) + b"[]", "tensors cannot be read"),
    ],
)
def test_malformed_with_a_right_digest(
    tmp_path: Path, tree: Any, tensors: bytes, reason: str
) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    written(tmp_path, 2, tree, tensors)
    after, (message,) = newest_checkpoint(tmp_path)
    assert after is not None
    assert after["step"] == 1
    assert reason in message
    assert "\n" not in message


def test_nested_too_deeply(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    save_checkpoint(tmp_path, 2, state(2))
    (tmp_path / "00000002.json").write_text("[" * 100_000)
    after, (message,) = newest_checkpoint(tmp_path)
    assert after is not None
    assert "nested more than 64 deep" in message


def test_a_state_that_cannot_be_used_is_skipped(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    save_checkpoint(tmp_path, 2, state(2))

    def use(state: dict[str, Any]) -> None:
        if state["step"] == 2:
            raise ValueError("not this one")

    after, damaged = newest_checkpoint(tmp_path, use)
    assert after is not None
    assert after["step"] == 1
    assert damaged == [f"{tmp_path / '00000002.json'}: not this one"]


def test_checkpoints_that_were_passed_over_are_deleted_by_the_next_save(tmp_path: Path) -> None:
    for number in (1, 8, 9):
        save_checkpoint(tmp_path, number, state(number))
    save_checkpoint(tmp_path, 8, state(8))
    save_checkpoint(tmp_path, 5, state(5))
    assert [p.name for p in tmp_path.glob("*.json")] == ["00000005.json"]


def test_a_folder_that_was_moved_away_is_not_created_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_checkpoint(tmp_path / "checkpoints", 1, state(1))
    assert not list(tmp_path.iterdir())


def former(folder: Path, number: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint of schema 1, whose digest is that of the tensors."""
    save_checkpoint(folder, number, state)
    path = folder / f"{number:08d}.json"
    record = json.loads(path.read_text())
    digest = hashlib.sha256(path.with_suffix(".safetensors").read_bytes()).hexdigest()
    write_json(path, {"schema": 1, "sha256": digest, "state": record["state"]})
    return path


def test_checkpoints_of_the_former_schema_are_read(tmp_path: Path) -> None:
    former(tmp_path, 1, state(1))
    after, damaged = newest_checkpoint(tmp_path)
    assert after is not None
    assert (after["step"], damaged) == (1, [])
    path = former(tmp_path, 2, state(2))
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 3'))
    after, damaged = newest_checkpoint(tmp_path)
    assert after is not None
    assert (after["step"], len(damaged)) == (1, 1)


def test_a_value_that_is_not_plain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a checkpoint cannot hold /x, a set"):
        save_checkpoint(tmp_path, 1, {"x": {1, 2}})
