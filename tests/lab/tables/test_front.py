"""The front: medians of seeds, rows that papers print, and what no other point dominates."""

import json
from pathlib import Path

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.plots import pareto_front
from l0arm.lab.recipes.recipe import load_recipe
from l0arm.lab.tables.front import FrontPoint, front_points, fronts, undominated


def write_run(root: Path, folder: str, name: str, seed: int, rate: float, right: float) -> None:
    path = root / folder / f"seed-{seed}"
    path.mkdir(parents=True)
    recipe = load_recipe(name, [f"training.seed={seed}"]).model_dump(mode="json")
    (path / "recipe.json").write_text(json.dumps(recipe))
    result = {"prune_rate": rate, "test_accuracy": right, "gates": {}}
    (path / "result.json").write_text(json.dumps(result))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed, (rate, right) in enumerate([(90.0, 98.5), (92.0, 98.1), (91.0, 98.3)]):
        write_run(tmp_path, "mlp-l0-arm", "mlp-l0-arm", seed, rate, right)
    write_run(tmp_path, "mlp-l0-arm-control", "mlp-l0-arm-control", 0, 33.0, 99.9)
    write_run(tmp_path, "mlp-dense", "mlp-dense", 0, 0.0, 99.9)
    write_run(tmp_path, "mine", "lenet5-l0-best", 0, 99.9, 99.9)
    return tmp_path


def test_a_folder_is_a_point_with_the_median_seed(root: Path) -> None:
    here = [point for point in front_points([root]) if point.source == "here"]
    lenet, mlp = here
    assert (mlp.method, mlp.name, mlp.left, mlp.accuracy) == ("l0-arm", "mlp-l0-arm", 9.0, 98.3)
    assert len(mlp.seeds) == 3
    assert (lenet.method, lenet.name) == ("l0-best", "mine")


def test_quoted_rows_are_those_of_table_2_and_vibnet(root: Path) -> None:
    quoted = {p.name: p for p in front_points([root]) if p.source == "quoted"}
    assert quoted["lenet5-bc-ghs"].left == pytest.approx(0.64)
    assert quoted["mlp-vibnet"].accuracy == 98.4
    assert not any(name.startswith("wrn") or "control" in name for name in quoted)


def test_a_point_that_is_better_in_both_dominates(root: Path) -> None:
    best = undominated(front_points([root]))
    assert [p.name for p in best if p.network.startswith("LeNet")] == ["mine"]
    mlp = [p for p in best if p.network.startswith("MLP")]
    assert [p.name for p in mlp] == ["mlp-vibnet", "mlp-l0-hc"]  # quoted; l0-arm is worse than one


def test_points_of_two_networks_do_not_compete() -> None:
    points = [FrontPoint(n, "m", n, "here", left, 98.0) for n, left in (("a", 1.0), ("b", 2.0))]
    assert undominated(points) == points


def test_runs_on_shifted_images_have_a_front_of_their_own(root: Path) -> None:
    """They beat quoted rows on other data than these rows had, so both fronts are given."""
    write_run(root, "moved", "mlp-l0-best-shifted", 0, 97.0, 98.6)
    points = [p for p in front_points([root]) if p.network.startswith("MLP")]
    assert [p.name for p in points if p.shifted] == ["moved"]
    unchanged, every = fronts(points).values()
    assert [p.name for p in unchanged] == ["mlp-vibnet", "mlp-l0-hc"]
    assert [p.name for p in every] == ["moved"]
    (axes,) = pareto_front(points, fronts(points)).axes
    lines = [line.get_label() for line in axes.lines if line.get_linestyle() != "None"]
    assert lines == ["not dominated", "not dominated, shifted images too"]


def test_the_picture_has_a_mark_for_every_point_and_prune_rates_grow_to_the_right(
    root: Path,
) -> None:
    points = [p for p in front_points([root]) if p.network.startswith("MLP")]
    (axes,) = pareto_front(points, fronts(points)).axes
    marks = [line for line in axes.lines if line.get_marker() not in (".", "None", "")]
    assert len(marks) == len(points)
    left, right = axes.get_xlim()
    assert left > right > 0


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder of runs at"):
        front_points([tmp_path / "nosuch"])


def test_points_that_are_not_shown_are_counted_in_the_panel() -> None:
    low = FrontPoint("MLP", "a", "a", "here", left=10.0, accuracy=90.0)
    high = FrontPoint("MLP", "b", "b", "here", left=12.0, accuracy=98.0)
    (axes,) = pareto_front([low, high], {"not dominated": [high]}).axes
    assert [text.get_text() for text in axes.texts] == ["below 97.2 %, not shown: 1"]
    assert axes.get_ylabel() == "test accuracy (%)"
