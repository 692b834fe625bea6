"""Stages in the loop: entered once, at their epoch. A run cut at any of them ends the same."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.helpers.power_cut import Cut, CutAfter
from tests.helpers.run_states import bits, timeless

from l0arm.gating import Gated
from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import MethodSpec, Recipe, load_recipe, recipe_names
from l0arm.lab.runs.building import build_method, prepared, preprocess_of, without_held_out
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.measuring import evaluate
from l0arm.lab.runs.session import Session, new_session
from l0arm.lab.runs.trained import trained_network
from l0arm.lab.runs.training import Schedule, train
from l0arm.methods import METHODS, Method, Stage, l1_filter
from l0arm.methods.stages import Ramp

Quick = Callable[..., Recipe]

# Settings with which each method prunes something of an MLP within 6 epochs of 2 steps.
SETTINGS: dict[str, tuple[str, ...]] = {
    "bc-ghs": ("lam=1.0", "options.threshold=1.505", "options.tolerance=5.0"),
    "bc-gnj": ("lam=1.0", "options.threshold=-9.0", "options.tolerance=5.0"),
    "generalized-dropout": ("lam=0.02",),
    "group-lasso": ("lam=[0.0, 0.0, 700.0]",),
    "l0": ("lam=0.02", "options.estimator=arms", "options.samples=4"),
    "l0-ar": ("lam=0.02",),
    "l0-arm": ("lam=0.02",),
    "l0-best": ("lam=0.02",),
    "l0-disarm": ("lam=0.02",),
    "l0-hc": ("lam=1e-4",),
    "l1-filter": ("options.keep=0.5",),
    "magnitude": ("options.keep=0.02",),
    "random": ("options.keep=0.5",),
    "sbp": ("lam=1e-2",),
    "sparse-vd": ("lam=1.0",),
    "vibnet": ("lam=1.0", "options.threshold=-9.0"),
}
SMALL = ("data.limit=100", "training.batch=50")
FAST_GATES = ("optimizer.gate_lr=1.0",)
pytestmark = pytest.mark.filterwarnings("ignore:every unit of group")


@pytest.fixture
def short(quick: Quick) -> Quick:
    """The recipe of a method on an MLP: 6 epochs of 2 steps."""

    def load(name: str, *overrides: str) -> Recipe:
        settings = [f"method.{setting}" for setting in SETTINGS[name]]
        fast = FAST_GATES if name in ("l0-hc", "sbp") else ()
        named = ("training.epochs=6", *SMALL, f"method.name={name}", *settings, *fast)
        return quick("mlp-dense", *named, *overrides)

    return load


def boundaries(recipe: Recipe, few_digits: Dataset) -> list[int]:
    """Steps after which a run is cut: at the end of the first stage, and in the last stage."""
    _, stages = session_of(recipe, few_digits)
    assert stages.course is not None
    starts = stages.course.timetable.starts
    return [2 * starts[1], 2 * starts[-1] + 2] if len(starts) > 1 else [5]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_trains_prunes_and_resumes_bit_for_bit_at_its_stages(
    tmp_path: Path, short: Quick, few_digits: Dataset, name: str
) -> None:
    recipe = short(name)
    whole = RunFolder(tmp_path / "whole")
    result = train(whole, recipe, few_digits)
    assert 0.0 < result["prune_rate_realised"] < 100.0
    facts = trained_network(whole, few_digits).measured()
    assert facts["architecture"] == result["architecture"]
    assert facts["test_accuracy"] == result["test_accuracy"]
    assert facts["compact_accuracy"] == pytest.approx(result["test_accuracy"], abs=1.0)
    assert facts["largest_difference"] < 1e-4
    for cut in boundaries(recipe, few_digits):
        broken = RunFolder(tmp_path / f"cut-{cut}")
        with pytest.raises(Cut):
            train(broken, recipe, few_digits, callback=CutAfter(cut), checkpoint_seconds=0.0)
        train(broken, recipe, few_digits, resume=True, checkpoint_seconds=0.0)
        assert bits(broken) == bits(whole)
        assert timeless(broken) == timeless(whole)


def session_of(recipe: Recipe, few_digits: Dataset) -> tuple[Session, Schedule]:
    data, held = without_held_out(recipe, prepared(few_digits, recipe.data))
    session = new_session(recipe, data)
    return session, Schedule(recipe, session, held, preprocess_of(data))


def rates(stages: Schedule) -> list[float]:
    assert stages.course is not None
    assert stages.lr == stages.course.rates[0]
    return stages.course.rates


def test_a_stage_sets_rates_and_the_weight_of_the_penalties(
    short: Quick, few_digits: Dataset
) -> None:
    recipe = short("sbp", "optimizer.gate_lr=0.01", "method.options.pretrain=0.5")
    session, stages = session_of(recipe, few_digits)
    gated = session.trainee
    assert isinstance(gated, Gated)
    seen = []
    for session.epoch in range(6):
        stages.begin_epoch()
        seen.append((*rates(stages), gated.penalty_weight))
    assert seen == [(1e-3, 0.0, 0.0)] * 3 + [(1e-3, 0.01, 1.0)] * 3


def test_a_rate_falls_within_its_stage(short: Quick, few_digits: Dataset) -> None:
    options = ("settle=0.5", "warm_up=0.5", "average=false")
    settings = [f"method.options.{option}" for option in options]
    recipe = short("l0-best", "optimizer.gate_lr=0.01", *settings)
    session, stages = session_of(recipe, few_digits)
    gated = session.trainee
    assert isinstance(gated, Gated)
    seen = []
    for session.epoch in range(6):
        stages.begin_epoch()
        seen.append((*rates(stages), gated.penalty_weight))
    assert seen[:3] == [(1e-3, 0.01, pytest.approx(min(1.0, 2 * n / 3))) for n in range(3)]
    falling = [3e-3 * (1 + math.cos(math.pi * third / 3)) / 2 for third in range(3)]
    assert seen[3:] == [(pytest.approx(rate), 0.0, 0.0) for rate in falling]
    assert set(gated.gates.open_probability.detach().unique().tolist()) <= {0.0, 1.0}


def test_the_last_epoch_of_l0_best_is_for_the_mean_of_the_weights(
    short: Quick, few_digits: Dataset
) -> None:
    session, stages = session_of(short("l0-best", "method.options.settle=0.5"), few_digits)
    gated = session.trainee
    assert isinstance(gated, Gated)
    weight, seen, now = gated.model.get_parameter("fc1.weight"), [], []
    for session.epoch in range(6):
        stages.begin_epoch()
        now.append(weight.mean().item())
        seen.append(rates(stages)[0])
        weight.data.fill_(session.epoch)  # stands for the steps of an epoch
        session.optimizer.step()  # no gradients: nothing but what the method does after it
    assert seen == pytest.approx([1e-3] * 3 + [3e-3] * 2 + [0.0])
    assert now[4:] == pytest.approx([3.0, (6 * 3 + 24 * 4) / 30])  # t (t + 1) (t + 2)


def test_a_warm_up_grows_with_the_epochs(short: Quick, few_digits: Dataset) -> None:
    recipe = short("sparse-vd", "method.options.warm_up=[0.0, 0.5]")
    session, stages = session_of(recipe, few_digits)
    seen = []
    for session.epoch in range(6):
        stages.begin_epoch()
        seen.append(session.trainee.penalty_weight)
    assert seen == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0, 1.0, 1.0])


def test_stages_are_entered_once_without_averages_of_the_one_before(
    short: Quick, few_digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[str] = []

    def entering(name: str) -> Callable[..., None]:
        return lambda gated, validate: entered.append(f"{name} {validate is None}")

    stages = tuple(Stage(name, share, entering(name)) for name, share in (("a", 1), ("b", 2)))
    monkeypatch.setitem(METHODS, "l1-filter", lambda keep: replace(l1_filter(), stages=stages))
    session, stages = session_of(short("l1-filter"), few_digits)
    averages = []
    for session.epoch in range(6):
        stages.begin_epoch()
        averages.append(len(session.optimizer.state))
        session.trainee.loss(lambda: session.trainee(torch.rand(2, 1, 28, 28)).mean()).backward()
        session.optimizer.step()
    assert entered == ["a True", "b True"]
    assert averages[0] == averages[2] == 0
    assert min(averages[1], *averages[3:]) > 0


def test_images_are_held_out_of_training_and_never_the_test_images(
    short: Quick, few_digits: Dataset
) -> None:
    recipe = short("bc-gnj", "method.options.held_out=0.1")
    data = prepared(few_digits, recipe.data)
    rest, held = without_held_out(recipe, data)
    assert held is not None
    assert (len(rest.train_labels), len(held[1])) == (90, 10)
    assert torch.equal(rest.test_images, data.test_images)
    known = {image.numpy().tobytes() for image in data.train_images}
    assert {image.numpy().tobytes() for image in held[0]} <= known
    trained_on = {image.numpy().tobytes() for image in rest.train_images}
    assert not trained_on & {image.numpy().tobytes() for image in held[0]}


def test_thresholds_are_chosen_without_the_test_images(
    tmp_path: Path, short: Quick, few_digits: Dataset
) -> None:
    other = replace(few_digits, test_images=torch.zeros_like(few_digits.test_images))
    results = []
    for number, data in enumerate((few_digits, other)):
        folder = RunFolder(tmp_path / str(number))
        train(folder, short("bc-gnj"), data)
        results.append(bits(folder))
    assert results[0] == results[1]


def test_the_validation_is_the_accuracy_on_held_out_images(
    short: Quick, few_digits: Dataset
) -> None:
    recipe = short("bc-gnj", "method.options.held_out=0.5")
    data = prepared(few_digits, recipe.data)
    _, held = without_held_out(recipe, data)
    assert held is not None
    session, stages = session_of(recipe, few_digits)
    assert stages.course is not None
    assert stages.course.validate is not None
    assert stages.course.validate() == evaluate(session.trainee, *held, preprocess_of(data))[1]


def test_masks_hold_to_the_end_of_a_run(
    folder: RunFolder, short: Quick, few_digits: Dataset
) -> None:
    train(folder, short("magnitude", "optimizer.weight_decay=0.01"), few_digits)
    session = trained_network(folder, few_digits).session
    gated = session.trainee
    assert isinstance(gated, Gated)
    mask = gated.extras["masks"].get_buffer("fc1-weight")
    assert int(mask.sum()) == round(0.02 * mask.numel())
    assert torch.equal(gated.model.fc1.weight != 0, mask != 0)
    averages = session.optimizer.state[gated.model.fc1.weight]
    for key in ("exp_avg", "exp_avg_sq"):
        assert float(averages[key][mask == 0].abs().max()) == 0.0
        assert float(averages[key][mask == 1].abs().max()) > 0.0


def test_too_few_epochs_for_the_stages_are_refused(
    folder: RunFolder, short: Quick, few_digits: Dataset
) -> None:
    with pytest.raises(UserError, match=r"training.epochs: method 'magnitude': 4 stages"):
        train(folder, short("magnitude", "training.epochs=3"), few_digits)


def test_a_strength_for_a_method_without_one_is_refused() -> None:
    with pytest.raises(UserError, match=r"method 'magnitude' has no strength; remove method\.lam"):
        build_method(MethodSpec(name="magnitude", lam=0.1), 100)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_can_be_built_and_laid_over_its_epochs(name: str) -> None:
    recipe = load_recipe(name)
    if not recipe.gated:
        return
    method: Method = build_method(recipe.method, 60_000)
    assert method.name == recipe.method.name
    assert sum(stage.share for stage in method.stages) == pytest.approx(1.0)


def test_a_ramp_is_full_at_the_end_of_its_stage() -> None:
    for name in ("bc-gnj", "bc-ghs", "sparse-vd"):
        stages = METHODS[name](1.0).stages
        assert isinstance(stages[0].penalty, Ramp)
        assert stages[-1].penalty(0.99) == 1.0
