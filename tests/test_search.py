"""``search`` finds the units that count, by values alone, and goes on where it was stopped."""

import importlib.util
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from l0arm import ConstantObjective, SearchResult, search
from l0arm._search import _Problem
from l0arm.gating.constancy import PATIENCE

GROUPS = {"a": 6, "b": 4}
WORTH = np.array([3.0, 0.0, 1.0, 0.0, 2.0, 0.0, 0.5, 4.0, 0.0, 1.5])


def missed(masks: dict[str, Any]) -> float:
    """The worth of the closed units: the optimum under a budget is a knapsack."""
    keep = np.concatenate([masks["a"], masks["b"]])
    return float(WORTH[~keep].sum())


def test_it_finds_the_best_of_all_masks() -> None:
    """Of all masks with four of ten units, that with the four most valuable misses least."""
    least = min(float(WORTH.sum() - sum(kept)) for kept in itertools.combinations(WORTH, 4))
    found = search(missed, GROUPS, "40%", steps=400)
    assert found.value == least == missed(found.masks)
    assert found.value < found.start
    assert found.cost == pytest.approx(0.4)


def test_the_budget_counts_the_costs_of_the_units() -> None:
    cost = {"a": np.array([2.0, 1, 1, 1, 3, 1]), "b": 2.0}
    flat = np.concatenate([cost["a"], np.full(4, 2.0)])
    found = search(missed, GROUPS, "40%", cost=cost, steps=300)
    keep = np.concatenate([found.masks["a"], found.masks["b"]])
    assert found.cost <= 0.4
    assert math.isclose(found.cost, flat @ keep / flat.sum())
    assert found.value < found.start
    by_name = search(missed, GROUPS, "40%", cost=cost.__getitem__, steps=300)
    assert by_name.history == found.history


@pytest.mark.parametrize("estimator", ["arm", "arms", "reinforce-loo", "ugc", "bitflip"])
def test_any_estimator_of_values_improves(estimator: str) -> None:
    found = search(missed, GROUPS, 0.5, steps=200, estimator=estimator)
    assert found.value < found.start


def test_the_objective_is_called_as_often_as_is_said() -> None:
    calls = list[int]()

    def counted(masks: dict[str, Any]) -> float:
        calls.append(1)
        return missed(masks)

    found = search(counted, GROUPS, 0.5, steps=30, estimator="reinforce-loo", samples=3)
    assert len(calls) == found.evaluations <= 3 * 30 + 2
    assert len(found.history) == 30


@pytest.mark.parametrize("estimator", ["disarm", "reinforce"])
def test_an_interrupted_search_goes_on_bit_for_bit(estimator: str, tmp_path: Path) -> None:
    def run(path: Path | None, f: Any = missed) -> SearchResult:
        settings: dict[str, Any] = {"steps": 60, "every": 10, "estimator": estimator}
        settings["blocks"] = (3, 1)
        return search(f, GROUPS, 0.5, checkpoint=path, **settings)

    whole, calls = run(None), list[int]()

    def fails(masks: dict[str, Any]) -> float:
        calls.append(1)
        if len(calls) == 40:
            raise KeyboardInterrupt
        return missed(masks)

    path = tmp_path / "state.pt"
    with pytest.raises(KeyboardInterrupt):
        run(path, fails)
    again = run(path)
    assert again.history == whole.history
    assert again.evaluations == whole.evaluations
    assert (again.value, again.start) == (whole.value, whole.start)
    for name in GROUPS:
        assert np.array_equal(again.probabilities[name], whole.probabilities[name])


def test_a_checkpoint_of_another_search_is_refused(tmp_path: Path) -> None:
    search(missed, GROUPS, 0.5, steps=5, checkpoint=tmp_path / "state.pt")
    with pytest.raises(ValueError, match="belongs to another search"):
        search(missed, GROUPS, 0.4, steps=5, checkpoint=tmp_path / "state.pt")


def test_stop_gives_an_early_result_that_fits() -> None:
    found = search(missed, GROUPS, 0.5, steps=100, stop=lambda record: record["step"] == 20)
    assert len(found.history) == 20
    assert found.cost <= 0.5


def test_scores_decide_the_start() -> None:
    scores = {"a": WORTH[:6], "b": torch.tensor(WORTH[6:])}
    found = search(missed, GROUPS, 0.6, steps=1, scores=scores)
    assert found.start == 0.0  # the six units that are worth something


def test_blocks_are_neighbours_by_score_and_of_like_cost() -> None:
    """Blocks of two cheap units; a unit of group b costs as much as four, and is one by itself."""
    costs = torch.tensor([1.0] * 6 + [4.0] * 4, dtype=torch.float64)
    problem = _Problem(missed, GROUPS, costs / costs.sum(), 0.5)
    phi = torch.tensor([0.1, 0.9, 0.5, 0.4, 0.8, 0.2, 0.3, 0.7, 0.6, 0.0]).double()
    blocks = problem.blocks(phi, 2).tolist()
    assert blocks == [2, 0, 1, 1, 0, 2, 5, 3, 4, 6]
    assert problem.blocks(phi, 1).tolist() == list(range(10))


def test_blocks_find_among_thousands_of_units_what_single_gates_do_not() -> None:
    """With 200 evaluations for 4,000 units, of which the first eighth counts."""
    worth = np.where(np.arange(4000) < 500, 1.0, 0.0)

    def missing(masks: dict[str, Any]) -> float:
        return float(worth[~masks["units"]].sum())

    def run(blocks: tuple[int, ...]) -> float:
        return search(missing, {"units": 4000}, 0.25, steps=100, blocks=blocks).value

    assert run((250, 125)) == 0.0
    assert run((1,)) > 100.0


def test_a_wide_spread_keeps_the_draws_close_to_the_choice_by_scores() -> None:
    """One step from the start: the lowest and the highest logit are 2 spread apart, or nearly."""
    scores = {"a": WORTH[:6], "b": WORTH[6:]}
    for spread in (1.0, 4.0):
        found = search(missed, GROUPS, 0.6, steps=1, scores=scores, spread=spread, lr=1e-6)
        odds = np.concatenate([p / (1 - p) for p in found.probabilities.values()])
        assert np.log(odds.max() / odds.min()) == pytest.approx(2 * spread, abs=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32(np.nan)])
def test_a_value_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="at evaluation 1; it must be finite"):
        search(lambda masks: value, GROUPS, 0.5)


@pytest.mark.parametrize("value", [None, "0.1", np.zeros(3), True, [1.0], torch.zeros(2)])
def test_what_is_not_a_number_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="must return a number, got"):
        search(lambda masks: value, GROUPS, 0.5)


def test_a_constant_objective_gets_one_warning() -> None:
    with pytest.warns(ConstantObjective, match=f"in all of its {PATIENCE} evaluations") as caught:
        search(lambda masks: 0.25, GROUPS, 0.5, steps=100)
    assert len(caught) == 1


def test_the_masks_cannot_be_changed() -> None:
    def changes(masks: dict[str, Any]) -> float:
        masks["a"][0] = True
        return 0.0

    with pytest.raises(ValueError, match="read-only"):
        search(changes, GROUPS, 0.5)


def test_an_estimator_that_needs_slopes_is_refused() -> None:
    with pytest.raises(TypeError, match="a search has values only"):
        search(missed, GROUPS, 0.5, estimator="straight-through")


@pytest.mark.parametrize(
    ("groups", "budget", "options", "message"),
    [
        ({}, 0.5, {}, "number of units"),
        ({"a": 0}, 0.5, {}, "number of units"),
        (GROUPS, 1.5, {}, "between 0 and 1"),
        (GROUPS, "0%", {}, "between 0 and 1"),
        (GROUPS, 0.5, {"cost": {"a": [1.0, 2.0], "b": 1.0}}, "cost of group 'a'"),
        (GROUPS, 0.5, {"cost": {"a": -1.0, "b": 1.0}}, "0 or more"),
        (GROUPS, 0.5, {"scores": {"a": [1.0], "b": 1.0}}, "scores of group 'a'"),
        (GROUPS, 0.5, {"steps": 0}, "integers >= 1"),
        (GROUPS, 0.5, {"spread": 0.0}, "spread must be a finite number > 0"),
        (GROUPS, 0.5, {"blocks": ()}, "blocks are numbers of units"),
        (GROUPS, 0.5, {"blocks": (0,)}, "blocks are numbers of units"),
        (GROUPS, 0.5, {"lr": -1.0}, "lr must be a finite number"),
    ],
)
def test_bad_input_is_refused(
    groups: dict[str, int], budget: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        search(missed, groups, budget, **options)


def test_the_int8_network_improves_and_equals_the_compact_file() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    path = Path(__file__).parent.parent / "examples" / "onnx_search.py"
    spec = importlib.util.spec_from_file_location("onnx_search", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found, difference = example.main(steps=100)
    assert found.value < found.start
    assert found.masks["hidden"].sum() == 16
    assert difference < 1e-5
