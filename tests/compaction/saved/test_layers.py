"""Names of tensors where whole layers are gone, and records of it that do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import l0arm
from l0arm import Group, SavedError, Slice
from l0arm.compaction import inspect_saved
from l0arm.compaction.saved.description import digest
from l0arm.compaction.saved.layers import LayersLeft
from l0arm.models import MLP


def test_layers_behind_one_that_is_gone_move_up() -> None:
    left = LayersLeft({"model.layers": (0, 2, 3)})
    for own, plain in ((0, 0), (2, 1), (3, 2)):
        name = f"model.layers.{own}.mlp.weight"
        assert left.plain_name(name) == f"model.layers.{plain}.mlp.weight"
        assert left.own_name(left.plain_name(name)) == name
    gone = [n for n in range(4) if left.is_gone(f"model.layers.{n}.mlp.weight")]
    assert gone == [1]
    for other in ("model.layers", "model.norm.weight", "other.layers.1.weight", "head"):
        assert left.plain_name(other) == left.own_name(other) == other
        assert not left.is_gone(other)


def rewrite(folder: Path, layers: Any) -> None:
    """Put layers into a record, with a digest that fits."""
    path = folder / "l0arm.json"
    record = json.loads(path.read_text())
    record["layers"] = layers
    record["sha256"] = digest(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("layers", [{"x": [1, 0]}, {"x": [0, 0]}, {"x": [-1]}, {"x": "01"}, [0]])
def test_records_of_layers_are_checked(layers: Any, tmp_path: Path) -> None:
    gated = l0arm.sparsify(MLP((6, 5, 3)), method="l0-arm", lam=0.0, initial=0.9)
    folder = l0arm.save(gated, tmp_path / "saved")
    assert "layers" not in json.loads((folder / "l0arm.json").read_text())  # as it was before
    rewrite(folder, layers)
    with pytest.raises(SavedError, match="layers must"):
        inspect_saved(folder)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def test_two_tensors_that_get_one_name_are_refused(tmp_path: Path) -> None:
    """The first of the file would be the second one, and so is the second."""
    makes = (Slice("layers.0.weight", 0), Slice("layers.0.bias", 0))
    group = Group("hidden", 4, reads=(Slice("layers.1.weight", 1),), makes=makes)
    gated = l0arm.sparsify(Chain(), [group], "l0-arm", lam=0.0, initial=0.9)
    folder = l0arm.save(gated, tmp_path / "saved")
    rewrite(folder, {"layers": [1]})
    with pytest.raises(SavedError, match="tensors of one name twice"):
        l0arm.load(folder, Chain)
