"""Recipes have the settings of the paper, and a mistake in one is reported in a sentence."""

import re
from pathlib import Path

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import ScheduleSpec, load_recipe, recipe_names

# Sec. 5.2 and 5.3, typed from the paper: lambda times N.
STRENGTHS = {
    "mlp-l0-arm": 0.1,
    "mlp-l0-arm-separate": [0.1, 0.3, 0.4],
    "lenet5-l0-ar": 0.1,
    "lenet5-l0-ar-separate": [10.0, 0.5, 0.1, 10.0],
    "wrn-cifar10-l0-arm-001": 0.001,
    "wrn-cifar100-l0-ar-002": 0.002,
}
# Tables 2 and 3, typed from the paper: architecture, prune rate, accuracy.
PRINTED = {
    "mlp-l0-ar": ("453-150-68", 70.39, 98.3),
    "mlp-l0-arm": ("143-153-78", 87.00, 98.3),
    "mlp-l0-ar-separate": ("464-114-65", 77.10, 98.2),
    "mlp-l0-arm-separate": ("159-74-73", 92.96, 98.1),
    "lenet5-l0-ar": ("18-28-46-249", 93.73, 98.8),
    "lenet5-l0-arm": ("20-16-32-257", 95.52, 99.1),
    "lenet5-l0-ar-separate": ("5-12-131-22", 98.90, 98.4),
    "lenet5-l0-arm-separate": ("6-10-39-11", 99.49, 98.7),
    "wrn-cifar10-l0-arm-002": ("75-72-78-78-157-165-131-162-336-325-331-343", 49.63, 95.70),
    "wrn-cifar100-l0-ar-001": ("78-78-79-85-168-168-162-164-308-326-319-330", 49.37, 80.50),
    "wrn-cifar100-dropout": ("full model", 0.0, 81.15),
}
OURS = [n for n in recipe_names() if "-l0-ar" in n]


@pytest.mark.parametrize(("name", "lam"), STRENGTHS.items())
def test_the_strength_is_the_papers(name: str, lam: float | list[float]) -> None:
    assert load_recipe(name).method.lam == lam


@pytest.mark.parametrize(("name", "row"), PRINTED.items())
def test_a_recipe_carries_the_row_the_paper_prints(
    name: str, row: tuple[str, float, float]
) -> None:
    paper = load_recipe(name).paper
    assert paper is not None
    assert (paper.architecture, paper.prune_rate, paper.accuracy) == row


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in recipe_names()
        if n.startswith(("mlp-l0-ar", "lenet5-l0-ar")) and "authors" not in n
    ],
)
def test_mnist_is_trained_as_in_section_5_1(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.training.batch, recipe.training.epochs) == (100, 200)
    assert (recipe.optimizer.name, recipe.optimizer.lr) == ("adam", 0.001)
    assert [recipe.schedule.at(epoch) for epoch in (0, 99, 100, 199)] == [1.0, 1.0, 0.5, 0.5]
    assert (recipe.data.held_out, recipe.data.limit, recipe.data.augment) == (0, 0, False)


@pytest.mark.parametrize("name", [n for n in recipe_names() if n.startswith("wrn-")])
def test_cifar_is_trained_as_in_section_5_1(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.training.batch, recipe.training.epochs) == (128, 200)
    assert (recipe.optimizer.name, recipe.optimizer.lr) == ("sgd", 0.1)
    rates = [recipe.optimizer.lr * recipe.schedule.at(e) for e in (59, 60, 119, 120)]
    assert rates == pytest.approx([0.1, 0.02, 0.02, 0.004])
    assert (recipe.model.depth, recipe.model.widen, recipe.data.augment) == (28, 10, True)


@pytest.mark.parametrize("name", OURS)
def test_a_gated_recipe_has_a_control_that_differs_in_lambda_alone(name: str) -> None:
    recipe = load_recipe(name)
    if recipe.control is None:
        assert recipe.method.lam == 0.0
        return
    control = load_recipe(recipe.control)
    assert control.method.lam == 0.0
    same = {"method": recipe.method.model_copy(update={"lam": 0.0})}
    described = {"name", "title", "control", "paper"}
    mine = recipe.model_copy(update=same).model_dump(exclude=described)
    assert mine == control.model_dump(exclude=described)


def test_milestones_and_steps_multiply() -> None:
    schedule = ScheduleSpec(factor=0.5, every=10, milestones=[5])
    assert [schedule.at(epoch) for epoch in (4, 5, 9, 10)] == [1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=3", "unknown field 'training.epoch'; did you mean 'epochs'?"),
        ("trainig.epochs=3", "unknown field 'trainig'; did you mean 'training'?"),
        ("training.epochs=many", "'training.epochs': input should be a valid integer"),
        ("training.epochs=0", "'training.epochs': input should be greater than or equal to 1"),
        ("method.lam=-1", "'method.lam': input should be greater than or equal to 0; got -1"),
        ("optimizer.lr=nan", "'optimizer.lr'"),
        ("model.depth=16", "'model': mlp has no depth; remove it"),
        ("model.name=vgg", "'model.name': input should be 'mlp', 'lenet5' or 'wide-resnet'"),
        ("optimizer.momentum=0.9", "'optimizer': adam has no momentum; remove it, or name sgd"),
        ("paper.tabel=2", "unknown field 'paper.tabel'; did you mean 'table'?"),
        ("training.epochs", "write table.field=value"),
        ("title.x=1", "'title' in 'title.x=1' is a value, not a table"),
    ],
)
def test_a_mistake_is_reported_in_a_sentence(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("mlp-l0-arm", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        (
            "mlp-l0-best",
            "teacher.temprature=2",
            "'teacher.temprature'; did you mean 'temperature'?",
        ),
        (
            "mlp-dense",
            "method.lam=5",
            "'method': dense has neither lam nor initial nor options; remove them",
        ),
        (
            "mlp-dense",
            "method.options.k=1",
            "'method': dense has neither lam nor initial nor options",
        ),
        ("mlp-dense", "optimizer.gate_lr=0.1", "recipe 'mlp-dense': a dense network has no gates"),
    ],
)
def test_settings_without_an_effect_are_refused(recipe: str, override: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load_recipe(recipe, [override])


def test_an_unknown_recipe_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(UserError, match="no recipe 'lenet5-l0arm'; did you mean 'lenet5-l0-arm'"):
        load_recipe("lenet5-l0arm")


def test_a_recipe_can_be_a_file_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[model]\nname = "mlp"\n[data]\nname = "mnist"\n[method]\nname = "dense"\n')
    recipe = load_recipe(str(path))
    assert (recipe.name, recipe.training.epochs, recipe.gated) == ("mine", 200, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model", "recipe 'mine' is not valid TOML"),
        ('[model]\nname = "mlp"\n', "recipe 'mine' lacks 'data'; add it"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        load_recipe(str(path))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UserError, match=r"cannot read the recipe nowhere.toml: No such file"):
        load_recipe("nowhere.toml")


def test_an_override_is_toml_and_else_text() -> None:
    recipe = load_recipe("mlp-l0-arm", ["method.lam=[1.0, 2.0, 3]", "data.name=fashion-mnist"])
    assert (recipe.method.lam, recipe.data.name) == ([1.0, 2.0, 3.0], "fashion-mnist")


def test_an_override_without_a_value_takes_a_setting_away() -> None:
    recipe = load_recipe("mlp-l0-best", ["teacher=", "optimizer.gate_lr=", "schedule.every="])
    assert recipe.teacher is None
    assert recipe.optimizer.gate_lr is None
    with pytest.raises(UserError, match=r"lacks 'method\.name'"):
        load_recipe("mlp-l0-best", ["method.name="])


def test_images_move_in_one_way() -> None:
    with pytest.raises(UserError, match="augment moves images already"):
        load_recipe("mlp-l0-arm", ["data.augment=true", "data.shift=2"])
