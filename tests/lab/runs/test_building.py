"""The method and the optimizer of a recipe."""

from typing import Any

import pytest
import torch

from l0arm.estimators import ARMS
from l0arm.gating import Gated
from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import MethodSpec, load_recipe
from l0arm.lab.runs.building import build_method, build_optimizer, build_trainee

ZERO_GRADIENT_STEP = {  # what a step without any gradient leaves of a weight
    "adamw": 1 - 0.1 * 0.5,
    "sgd": 1 - 0.1 * 0.5,
    "adam": None,  # the decay is a gradient: the step is one of size lr, however small it is
}


@pytest.mark.parametrize(("name", "factor"), ZERO_GRADIENT_STEP.items())
def test_decay_reaches_the_weights_and_not_phi(
    digits: Dataset, name: str, factor: float | None
) -> None:
    settings = [f"optimizer.name={name}", "optimizer.lr=0.1", "optimizer.weight_decay=0.5"]
    recipe = load_recipe("mlp-l0-best", ["data.name=mnist-mini", *settings])
    gated = build_trainee(recipe, digits)
    assert isinstance(gated, Gated)
    optimizer = build_optimizer(recipe, gated)
    weight = gated.model.get_parameter("fc2.weight")
    before, phi = weight.detach().clone(), gated.phi.detach().clone()
    for parameter in gated.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    expected = before - 0.1 * before.sign() if factor is None else before * factor
    clear = before.abs() > 0.01  # far above the epsilon of Adam
    torch.testing.assert_close(weight.detach()[clear], expected[clear], atol=1e-6, rtol=1e-5)
    assert torch.equal(gated.phi, phi)


@pytest.mark.parametrize("name", ["l0", "l0-best", "generalized-dropout"])
def test_a_recipe_names_the_estimator_and_its_options(name: str) -> None:
    spec = MethodSpec(name=name, lam=0.1, options={"estimator": "arms", "samples": 3})
    assert build_method(spec, 100).estimator == ARMS(samples=3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sparse-vd", {"lam": [1.0, 2.0]}, "sparse-vd takes one strength for all layers"),
        ("bc-gnj", {"lam": [1.0, 2.0]}, "bc-gnj takes one strength for all layers"),
        ("bc-ghs", {"lam": [1.0, 2.0]}, "bc-ghs takes one strength for all layers"),
        ("bc-gnj", {"options": {"held_out": 2.0}}, "held_out is a share of the training images"),
        ("magnitude", {"options": {"train": 1.5}}, "train is a share of the epochs"),
        ("l0", {"options": {"estimator": "arms", "samples": 1}}, "'reinforce' or 'ar'"),
        ("l0-best", {"options": {"setle": 0.5}}, "the method itself takes settle"),
        ("generalized-dropout", {"options": {"samples": 4}}, "has no option samples"),
    ],
)
def test_what_a_method_refuses_is_reported_in_one_line(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"^method '{name}': .*{message}") as caught:
        build_method(MethodSpec(name=name, **settings), 100)
    assert "\n" not in str(caught.value)
