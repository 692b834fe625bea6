"""Checkpoints are read back bit for bit, or skipped if they are damaged."""

from pathlib import Path
from typing import Any

import pytest
import torch

from l0arm.lab.errors import UserError
from l0arm.lab.runs.checkpoint import newest_checkpoint, save_checkpoint


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


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    tree = tmp_path / "00000001.json"
    tree.write_text(tree.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(UserError, match="newer version of l0arm"):
        newest_checkpoint(tmp_path)


def test_a_value_that_is_not_plain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a checkpoint cannot hold /x, a set"):
        save_checkpoint(tmp_path, 1, {"x": {1, 2}})
