"""Prune rates by tau are those of the formula of Sec. 5.2, and accuracies come from the sweep."""

import json
from pathlib import Path

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.plots import threshold_curves
from l0arm.lab.recipes.recipe import ModelSpec, load_recipe
from l0arm.lab.tables.thresholds import THRESHOLDS, prune_rates, threshold_curve

LENET = {
    "conv1": [0.2] * 5 + [0.95] * 15,
    "conv2": [0.05] * 30 + [0.45] * 10 + [0.95] * 10,
    "fc1": [0.05] * 700 + [0.65] * 50 + [0.95] * 50,
    "fc2": [0.05] * 400 + [0.95] * 100,
}


def rate(a: int, b: int, c: int, d: int) -> float:
    return 100 * (1 - (25 * a + 25 * a * b + c * d + 10 * d) / 430_500)


def write_run(path: Path, gates: dict[str, list[float]], prune_rate: float) -> Path:
    path.mkdir()
    recipe = load_recipe("lenet5-l0-arm").model_dump(mode="json")
    (path / "recipe.json").write_text(json.dumps(recipe))
    result = {"recipe": "lenet5-l0-arm", "seed": 0, "epochs": 9, "prune_rate": prune_rate}
    (path / "result.json").write_text(json.dumps({**result, "gates": gates}))
    return path


def test_rates_are_those_of_the_units_above_tau() -> None:
    found = prune_rates(ModelSpec(name="lenet5"), LENET, (0.1, 0.3, 0.5, 0.9))
    expected = [rate(20, 20, 100, 100), rate(15, 20, 100, 100), rate(15, 10, 100, 100)]
    assert list(found.values()) == pytest.approx([*expected, rate(15, 10, 50, 100)])


def test_a_run_has_its_rates_and_the_accuracies_of_its_sweep(tmp_path: Path) -> None:
    path = write_run(tmp_path / "seed-0", LENET, rate(15, 10, 100, 100))
    assert threshold_curve(path).accuracies == {}
    points = [(0.1, 0.2, 99.0), (0.5, 0.5, 98.0)]
    sweep = [{"threshold": a, "upto": b, "accuracy": c} for a, b, c in points]
    (path / "sweep.json").write_text(json.dumps({"points": sweep}))
    curve = threshold_curve(path)
    assert curve.accuracies == {0.1: 99.0, 0.2: 99.0, 0.5: 98.0}
    assert tuple(curve.prune_rates) == THRESHOLDS
    rates, right = threshold_curves([curve]).axes
    assert list(rates.lines[0].get_ydata()) == list(curve.prune_rates.values())
    assert list(right.lines[0].get_ydata()) == [99.0, 99.0, 98.0]


def test_a_run_that_another_rule_pruned_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "seed-0", LENET, 12.3)
    with pytest.raises(UserError, match="was not pruned by g"):
        threshold_curve(path)


def test_a_damaged_sweep_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "seed-0", LENET, rate(15, 10, 100, 100))
    (path / "sweep.json").write_text('{"points": [{}]}')
    with pytest.raises(UserError, match=r"sweep\.json is damaged"):
        threshold_curve(path)
