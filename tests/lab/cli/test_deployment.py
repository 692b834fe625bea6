"""From a trained run to files for other programs: compact, inspect, export, sweep."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import l0arm
from l0arm.compaction import inspect_saved
from l0arm.lab.runs.trained import SweepPoint, with_pareto
from l0arm.models import MLP

Cli = Callable[[str], Any]
RUN = "runs/mlp-l0-arm/seed-0"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A saved network that does not say how to build its original."""
    gated = l0arm.sparsify(MLP((6, 5, 3)), method="l0-arm", lam=0.0)
    gated.phi.data.fill_(9.0)
    gated.phi.data[[0, 7]] = -9.0
    return l0arm.save(gated, tmp_path / "other")


def test_compact_does_not_overwrite(trained: Cli, tmp_path: Path) -> None:
    trained(f"compact {RUN} --out small")
    before = (tmp_path / "small" / "l0arm.json").read_bytes()
    ended = trained(f"compact {RUN} --out small")
    assert ended.code == 2
    assert "small exists; choose another folder" in ended.err
    assert (tmp_path / "small" / "l0arm.json").read_bytes() == before
    assert trained(f"compact {RUN} --out small --force").code == 0


def test_inspect_lists_what_is_left(trained: Cli, tmp_path: Path) -> None:
    trained(f"compact {RUN} --out small")
    ended = trained("inspect small")
    assert ended.code == 0
    saved = inspect_saved(tmp_path / "small")
    assert f"group fc1: {len(saved.kept[0])} of 784 units" in ended.out
    assert (
        f"fc2.weight: {len(saved.kept[2])} x {len(saved.kept[1])} float32, was 100 x 300"
        in ended.out
    )
    facts = json.loads(trained("inspect small --json").out)
    assert facts["parameters"] == list(saved.parameters)
    assert facts["metrics"]["network"]["model"]["name"] == "mlp"


def test_inspect_refuses_a_damaged_folder(cli: Cli, other: Path) -> None:
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (other / "model.safetensors").write_bytes(bytes(data))
    ended = cli("inspect other")
    assert ended.code == 2
    assert "SHA-256 is another" in ended.err


def test_names_from_a_file_do_not_control_the_terminal(cli: Cli, tmp_path: Path) -> None:
    gated = l0arm.sparsify(MLP((6, 5, 3)), method="l0-arm", lam=0.0)
    gated.phi.data.fill_(9.0)
    l0arm.save(gated, tmp_path / "bad", metrics={"\x1b[2Jgone": "\x07"})
    assert "?[2Jgone: ?" in cli("inspect bad").out


def test_export_of_a_saved_network_and_of_its_run(trained: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    trained(f"compact {RUN} --out small")
    ended = trained("export small --json --int8")
    assert ended.code == 0, ended.err
    plain, int8 = (json.loads(line) for line in ended.out.splitlines())
    assert (plain["path"], int8["path"]) == ("small/model.onnx", "small/model.int8.onnx")
    assert plain["differences"].keys() == {"1", "7", "64"}
    assert max(plain["differences"].values()) < 1e-5
    assert int8["bytes"] < 0.5 * plain["bytes"]
    again = trained("export small")
    assert again.code == 2
    assert "small/model.onnx exists; choose another place with --out, or --force" in again.err
    of_run = json.loads(trained(f"export {RUN} --out run.onnx --json").out)
    assert of_run["bytes"] == pytest.approx(plain["bytes"], rel=0.01)
    assert of_run["accuracy"] == of_run["compact_accuracy"]


def test_export_of_another_network_needs_its_factory(
    cli: Cli, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = cli("export other --out a.pt2")
    assert ended.code == 2
    assert "--model package.module:factory" in ended.err
    (tmp_path / "mine.py").write_text(
        "from l0arm.models import MLP\n\ndef make():\n    return MLP((6, 5, 3))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ended = cli("export other --out a.pt2 --model mine:make --input 6")
    assert ended.code == 0, ended.err
    assert "wrote a.pt2" in ended.out
    x = torch.rand(3, 6)
    small = l0arm.load(other, lambda: MLP((6, 5, 3)))
    torch.testing.assert_close(torch.export.load(tmp_path / "a.pt2").module()(x), small(x))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("export other --out a.txt", "cannot export to a.txt: .onnx, or .pt2"),
        ("export other --out a.pt2 --int8", "cannot export to a.pt2"),
        ("export nowhere", "neither the folder of a run nor that of a saved network"),
        ("export other --out a.pt2 --model nowhere:x --input 6", "'nowhere' cannot be imported"),
        ("export other --out a.pt2 --model l0arm:x --input 6", "'l0arm' has no 'x'"),
        ("export other --out a.pt2 --model l0arm.models:MLP --input 6,x", "--input 6,x: write the"),
        (
            "export other --out a.pt2 --model l0arm.models:MLP --input 6",
            "'fc3.bias' is in the model",
        ),
        ("inspect .", "has no l0arm.json"),
        ("sweep runs --threshold 1", "--threshold 1: a threshold lies strictly between 0 and 1"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, other: Path, line: str, reason: str) -> None:
    ended = cli(line)
    assert ended.code == 2
    assert reason in ended.err
    assert ended.err.count("\n") == 1


def test_sweep_writes_table_data_and_picture(trained: Cli, tmp_path: Path) -> None:
    ended = trained(f"sweep {RUN} --threshold 0.5 --threshold 0.3 --threshold 0.6")
    assert ended.code == 0, ended.err
    data = json.loads((tmp_path / RUN / "sweep.json").read_text())
    points = {p["threshold"]: p for p in data["points"]}
    assert list(points) == [0.3, 0.5, 0.6]
    result = json.loads((tmp_path / RUN / "result.json").read_text())
    assert points[0.5]["accuracy"] == result["test_accuracy"]
    assert "-".join(map(str, points[0.5]["widths"])) == result["architecture"]
    a, b, c = points[0.5]["widths"]
    assert points[0.5]["macs"] == a * b + b * c + c * 10
    assert points[0.3]["parameters"] > points[0.6]["parameters"]
    assert (tmp_path / RUN / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / RUN / "sweep.md").read_text().count("\n| 0.") == 3
    assert f"wrote {RUN}/sweep.md, {RUN}/sweep.json, {RUN}/sweep.png" in ended.out
    assert "sweep.md exists" in trained(f"sweep {RUN}").err


def test_thresholds_that_leave_the_same_network_are_one_row(trained: Cli, tmp_path: Path) -> None:
    ended = trained(f"sweep {RUN} --threshold 0.5 --threshold 0.50000001 --out one")
    assert ended.code == 0, ended.err
    (point,) = json.loads((tmp_path / "one.json").read_text())["points"]
    assert (point["threshold"], point["upto"]) == (0.5, 0.50000001)
    assert (tmp_path / "one.md").read_text().count("*") == 1


def test_pareto_points() -> None:
    facts = [(100, 90.0), (50, 90.0), (40, 80.0), (60, 85.0), (40, 80.0), (10, 10.0), (10, 9.0)]
    points = [SweepPoint(0.5, (), 0, macs, accuracy) for macs, accuracy in facts]
    marked = [p.pareto for p in with_pareto(points)]
    assert marked == [False, True, True, False, True, True, False]
