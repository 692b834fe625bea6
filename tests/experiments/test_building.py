"""The optimizer that a recipe asks for."""

import pytest
import torch

from l0arm.data import load_dataset
from l0arm.experiments.building import build_optimizer, build_trainee
from l0arm.experiments.recipe import load_recipe
from l0arm.groups import Gated

ZERO_GRADIENT_STEP = {  # what a step without any gradient leaves of a weight
    "adamw": 1 - 0.1 * 0.5,
    "sgd": 1 - 0.1 * 0.5,
    "adam": None,  # the decay is a gradient: the step is one of size lr, however small it is
}


@pytest.mark.parametrize(("name", "factor"), ZERO_GRADIENT_STEP.items())
def test_decay_reaches_the_weights_and_not_phi(name: str, factor: float | None) -> None:
    settings = [f"optimizer.name={name}", "optimizer.lr=0.1", "optimizer.weight_decay=0.5"]
    recipe = load_recipe("mlp-l0-best", ["data.name=mnist-mini", *settings])
    gated = build_trainee(recipe, load_dataset("mnist-mini"))
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
