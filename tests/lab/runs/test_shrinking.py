"""Runs that train on without the units that are closed for good."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers.power_cut import Cut, CutAfter
from tests.helpers.run_states import bits, timeless

from l0arm.gating import Gated
from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import session, shrinking
from l0arm.lab.runs.building import Trainee, build_trainee
from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.restoring import check_kept
from l0arm.lab.runs.training import train

Quick = Callable[..., Recipe]


@pytest.fixture(autouse=True)
def a_third_of_the_gates_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(recipe: Recipe, data: Dataset) -> Trainee:
        trainee = build_trainee(recipe, data)
        if isinstance(trainee, Gated):
            trainee.phi.data[::3] = -9.0
        return trainee

    monkeypatch.setattr(session, "build_trainee", closed)


def last_state(folder: RunFolder) -> dict[str, Any]:
    state, _ = newest_checkpoint(folder.checkpoints)
    assert state is not None
    return state


@pytest.mark.parametrize(("name", "cut"), [("mlp-l0-arm", 2), ("mlp-l0-arm", 4), ("mlp-l0-ar", 9)])
def test_a_run_cut_after_a_shrink_ends_as_if_nothing_had_happened(
    folder: RunFolder, tmp_path: Any, quick: Quick, digits: Dataset, name: str, cut: int
) -> None:
    recipe, whole = quick(name), RunFolder(tmp_path / "whole")
    train(whole, recipe, digits, checkpoint_seconds=1e9)
    with pytest.raises(Cut):
        train(folder, recipe, digits, callback=CutAfter(cut), checkpoint_seconds=0.0)
    assert "kept" in last_state(folder)
    train(folder, recipe, digits, resume=True, checkpoint_seconds=0.0)
    assert bits(folder) == bits(whole)
    assert timeless(folder) == timeless(whole)


def test_what_is_saved_has_its_full_size_and_closed_units_are_not_trained(
    folder: RunFolder, quick: Quick, digits: Dataset
) -> None:
    train(folder, quick(), digits)
    state = last_state(folder)
    closed = torch.arange(1184) % 3 == 0
    assert torch.equal(state["kept"], ~closed)
    phi = torch.cat([state["trainee"][f"phi.fc{n}"] for n in (1, 2, 3)])
    assert bool((phi[closed] == -9.0).all())
    assert bool((phi[~closed].abs() < 1.0).all())
    assert state["trainee"]["model.fc1.weight"].shape == (300, 784)
    assert folder.read_result()["gates"]["fc1"][:1] == [0.0]


def test_a_recipe_can_opt_out(folder: RunFolder, quick: Quick, digits: Dataset) -> None:
    train(folder, quick("mlp-l0-arm", "training.shrink=false", "training.epochs=1"), digits)
    assert "kept" not in last_state(folder)


def test_a_network_is_cut_again_only_if_a_tenth_of_its_gates_has_closed(
    quick: Quick, digits: Dataset
) -> None:
    recipe = quick()
    run = session.new_session(recipe, digits)
    assert shrinking.begin_smaller(run, recipe)
    assert isinstance(run.trainee, Gated)
    first, left = run.smaller, int(run.kept.sum())
    run.trainee.phi.data[784:1184][1::3][: left // 20] = -9.0
    assert not shrinking.begin_smaller(run, recipe)
    assert run.smaller is first
    run.trainee.phi.data[:784][1::3][: left // 10] = -9.0
    assert shrinking.begin_smaller(run, recipe)
    assert int(run.kept.sum()) <= 0.9 * left


@pytest.mark.parametrize("kept", [1.0, torch.ones(3, dtype=torch.bool), torch.ones(1184)])
def test_a_malformed_mask_is_refused(quick: Quick, digits: Dataset, kept: object) -> None:
    with pytest.raises(ValueError, match="mask of 1184 gates is malformed"):
        check_kept(kept, session.new_session(quick(), digits).trainee)


def test_a_recipe_sets_the_probability_below_which_gates_are_removed(
    quick: Quick, digits: Dataset
) -> None:
    for below, removed in (("0.001", True), ("1e-40", False)):
        recipe = quick("mlp-l0-arm", f"training.shrink_below={below}")
        assert shrinking.begin_smaller(session.new_session(recipe, digits), recipe) == removed
    with pytest.raises(UserError, match="shrink_below"):
        quick("mlp-l0-arm", "training.shrink_below=1.0")
