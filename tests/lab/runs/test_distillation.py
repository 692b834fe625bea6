"""Distillation: the loss in closed form, teachers of finished runs, refusals."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.helpers.power_cut import Cut, CutAfter
from tests.helpers.run_states import bits
from torch.testing import assert_close

from l0arm.lab.data import Dataset, random_offsets, shifted
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe, load_recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.building import prepared, preprocess_of
from l0arm.lab.runs.distillation import (
    CachedShifts,
    CachedTeacher,
    DistillationLoss,
    TeacherNetworks,
    data_loss_of,
    label_loss,
)
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.trained import trained_network
from l0arm.lab.runs.training import train

Quick = Callable[..., Recipe]
TAUGHT = ("teacher.recipe=mlp-dense", "teacher.temperature=2.0", "teacher.weight=0.5")


@pytest.fixture
def runs(tmp_path: Path, finished: Callable[..., RunFolder]) -> Path:
    """A folder of runs with a finished teacher."""
    shutil.copytree(finished("mlp-dense").path, tmp_path / "mlp-dense" / "seed-0")
    return tmp_path


def run_of(runs: Path, name: str = "taught") -> RunFolder:
    return RunFolder(runs / name / "seed-0")


def test_the_loss_by_hand() -> None:
    """Two classes: p = sigmoid of half the difference of the logits over T."""
    answers = torch.tensor([[9.0, 9.0], [1.0, 3.0]], dtype=torch.float64)
    student = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    data_loss = DistillationLoss(CachedTeacher(answers), temperature=2.0, weight=0.25)
    loss = data_loss(torch.tensor([1]), torch.empty(1), torch.tensor([0]))
    t, s = 1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(-0.5))  # P(class 1) at T = 2
    distance = t * math.log(t / s) + (1 - t) * math.log((1 - t) / (1 - s))
    label = -math.log(1 - 1 / (1 + math.exp(-1.0)))
    expected = 0.75 * label + 0.25 * 4 * distance
    assert float(loss(student)) == pytest.approx(expected)


def test_a_student_that_agrees_has_only_the_labels_left() -> None:
    answers = torch.randn(6, 4, dtype=torch.float64)
    batch = (torch.tensor([5, 0, 3]), torch.empty(3), torch.tensor([0, 1, 2]))
    loss = DistillationLoss(CachedTeacher(answers), temperature=3.0, weight=0.9)(*batch)
    right = answers[[5, 0, 3]]
    assert_close(loss(right), 0.1 * label_loss(*batch)(right))


def test_the_answers_are_those_of_the_finished_run(
    runs: Path, quick: Quick, digits: Dataset
) -> None:
    recipe = quick("mlp-l0-arm", *TAUGHT)
    data = prepared(digits, recipe.data)
    data_loss = data_loss_of(recipe, run_of(runs), data, preprocess_of(data))
    assert isinstance(data_loss, DistillationLoss)
    assert isinstance(data_loss.teacher, CachedTeacher)
    teacher = trained_network(RunFolder(runs / "mlp-dense" / "seed-0"), digits)
    network = teacher.session.trainee
    network.train(False)
    assert len(data_loss.teacher.logits) == 200
    with torch.no_grad():
        assert torch.equal(data_loss.teacher.logits, network(teacher.preprocess(data.train_images)))
    assert (data_loss.temperature, data_loss.weight) == (2.0, 0.5)


def test_several_teachers_answer_with_the_mean_of_their_logits(
    runs: Path, quick: Quick, digits: Dataset
) -> None:
    recipe = quick("mlp-l0-arm", *TAUGHT, "teacher.runs=2")
    data = prepared(digits, recipe.data)
    with pytest.raises(UserError, match=r"l0arm train mlp-dense --seed 1 --run-dir .*seed-1"):
        data_loss_of(recipe, run_of(runs), data, preprocess_of(data))
    folders = [RunFolder(runs / "mlp-dense" / f"seed-{seed}") for seed in (0, 1)]
    train(folders[1], quick("mlp-dense", "training.seed=1"), digits)
    data_loss = data_loss_of(recipe, run_of(runs), data, preprocess_of(data))
    assert isinstance(data_loss, DistillationLoss)
    assert isinstance(data_loss.teacher, CachedTeacher)
    logits = []
    for folder in folders:
        teacher = trained_network(folder, digits)
        teacher.session.trainee.train(False)
        with torch.no_grad():
            logits.append(teacher.session.trainee(teacher.preprocess(data.train_images)))
    assert not torch.equal(logits[0], logits[1])
    assert_close(data_loss.teacher.logits, (logits[0] + logits[1]) / 2)


@pytest.mark.parametrize("moving", ["data.shift=1", "data.augment=true"])
def test_a_teacher_looks_at_images_that_move(
    tmp_path: Path, quick: Quick, digits: Dataset, moving: str
) -> None:
    """Its logits are for the images that the student sees, and it is not trained."""
    train(RunFolder(tmp_path / "mlp-dense" / "seed-0"), quick("mlp-dense", moving), digits)
    recipe = quick("mlp-l0-arm", *TAUGHT, moving)
    data = prepared(digits, recipe.data)
    data_loss = data_loss_of(recipe, run_of(tmp_path), data, preprocess_of(data))
    assert isinstance(data_loss, DistillationLoss)
    assert isinstance(data_loss.teacher, TeacherNetworks)
    x = preprocess_of(data)(data.train_images[:4]).roll(1, dims=3)
    logits = data_loss.teacher(torch.tensor([9, 9, 9, 9]), x)
    own_copy = trained_network(RunFolder(tmp_path / "mlp-dense" / "seed-0"), digits)
    own_copy.session.trainee.train(False)
    assert torch.equal(logits, own_copy.session.trainee(x))
    assert not logits.requires_grad
    train(run_of(tmp_path), recipe, digits)
    assert records.read(run_of(tmp_path).records)[-1].epoch == recipe.training.epochs


def test_logits_for_shifted_images_are_computed_in_advance_where_that_is_less_work(
    tmp_path: Path, quick: Quick, digits: Dataset
) -> None:
    """Nine offsets are less work than ten epochs, and not less than nine. The logits are equal."""
    moving = ("data.shift=1", "data.limit=50")
    train(RunFolder(tmp_path / "mlp-dense" / "seed-0"), quick("mlp-dense", *moving), digits)
    teachers = []
    for epochs in (9, 10):
        recipe = quick("mlp-l0-arm", *TAUGHT, *moving, f"training.epochs={epochs}")
        data = prepared(digits, recipe.data)
        data_loss = data_loss_of(recipe, run_of(tmp_path), data, preprocess_of(data))
        assert isinstance(data_loss, DistillationLoss)
        teachers.append(data_loss.teacher)
    live, cached = teachers
    assert isinstance(live, TeacherNetworks)
    assert isinstance(cached, CachedShifts)
    which = torch.arange(50).repeat(9)
    offsets = random_offsets(data.train_images[which], torch.Generator().manual_seed(0))
    assert len(set(zip(*offsets.tolist(), strict=True))) == 9
    x = preprocess_of(data)(shifted(data.train_images[which], offsets))
    assert_close(cached(which, x, offsets), live(which, x, offsets))


def test_the_teacher_changes_the_losses_and_not_the_start(
    runs: Path, quick: Quick, finished: Callable[..., RunFolder], digits: Dataset
) -> None:
    """With a very small weight the run is the one without a teacher: same draws, same batches."""
    alone, taught, strong = finished(), run_of(runs, "taught"), run_of(runs, "strong")
    train(strong, quick("mlp-l0-arm", *TAUGHT), digits)
    recipe = quick("mlp-l0-arm", "teacher.recipe=mlp-dense", "teacher.weight=1e-9")
    train(taught, recipe, digits)
    one, other = (trained_network(f, digits).session.trainee.state_dict() for f in (alone, taught))
    for key, tensor in one.items():
        if torch.is_tensor(tensor):
            assert_close(other[key], tensor, rtol=1e-3, atol=1e-5)
    losses = [records.read(folder.records)[-1].train_loss for folder in (alone, strong)]
    assert losses[0] != pytest.approx(losses[1], rel=0.01)


def test_a_taught_run_cut_off_goes_on_bit_for_bit(
    runs: Path, quick: Quick, digits: Dataset
) -> None:
    recipe = quick("mlp-l0-best", *TAUGHT)
    whole, broken = run_of(runs, "whole"), run_of(runs, "broken")
    train(whole, recipe, digits)
    with pytest.raises(Cut):
        train(broken, recipe, digits, callback=CutAfter(7), checkpoint_seconds=0.0)
    train(broken, recipe, digits, resume=True)
    assert bits(whole) == bits(broken)


def test_a_teacher_that_has_not_finished_is_named(
    tmp_path: Path, quick: Quick, digits: Dataset
) -> None:
    folder = run_of(tmp_path)
    with pytest.raises(UserError, match=r"l0arm train mlp-dense --seed 0 --run-dir .*seed-0"):
        train(folder, quick("mlp-l0-arm", *TAUGHT), digits)
    assert not folder.recipe_file.exists()


def test_a_teacher_that_saw_other_images_is_refused(
    runs: Path, quick: Quick, digits: Dataset
) -> None:
    recipe = quick("mlp-l0-arm", *TAUGHT, "data.held_out=50")
    with pytest.raises(UserError, match="was trained on other data"):
        train(run_of(runs), recipe, digits)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.shift=-1", "data.shift"),
        ("teacher.weight=1.5", "teacher.weight"),
        ("teacher.temperature=0", "teacher.temperature"),
        ("teacher.runs=0", "teacher.runs"),
    ],
)
def test_settings_that_make_no_sense(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe("mlp-l0-arm", [*TAUGHT, override])
