"""Units chosen by score per cost, in rounds; the dense network as teacher."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import l0arm
from l0arm.pruning.choosing import choose, score_per_cost
from l0arm.pruning.teaching import Taught, distance

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).long()
BATCHES = [(X[i : i + 16], Y[i : i + 16]) for i in range(0, 64, 16)]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 200), nn.ReLU(), nn.Linear(200, 40), nn.ReLU(), nn.Linear(40, 2)
    )


def gated_network() -> l0arm.Gated:
    return l0arm.sparsify(network(), example_inputs=X[:4], budget={"flops": "30%"})


def test_the_price_of_a_unit_is_what_closing_it_saves() -> None:
    gated = gated_network()
    z = torch.ones(gated.layout.gates)
    found = 1 / score_per_cost(gated, z, torch.ones_like(z))
    dense = 8 * 200 + 200 * 40 + 40 * 2
    first, second = (8 + 40) / dense, (200 + 2) / dense
    wanted = torch.tensor([first] * 200 + [second] * 40, dtype=torch.float64)
    torch.testing.assert_close(found.sort().values, wanted.sort().values)


def test_the_best_units_stay_and_the_budget_is_met() -> None:
    gated = gated_network()
    scores = torch.rand(gated.layout.gates, generator=torch.Generator().manual_seed(1))
    z = choose(gated, torch.ones_like(scores), scores, left=0.0)
    assert gated.budget.fits(z)
    value = score_per_cost(gated, torch.ones_like(z), scores)
    assert value[z > 0].min() > value[z == 0].max()
    half = choose(gated, torch.ones_like(scores), scores, left=0.5)
    share = gated.budget.shares(half)["FLOPs" if "FLOPs" in gated.budget.shares(half) else "flops"]
    assert 0.3 < share[0] <= math.sqrt(0.3)
    assert bool((half >= z).all())


def test_the_distance_to_the_teacher_is_the_divergence_by_hand() -> None:
    student, teacher = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5, 2.0]])
    p = (teacher / 2).softmax(1)
    q = (student / 2).softmax(1)
    wanted = 4 * (p * (p / q).log()).sum()
    torch.testing.assert_close(distance(student, teacher, temperature=2.0), wanted)


def test_a_teacher_acts_on_class_scores_only() -> None:
    model, teacher, x = nn.Linear(8, 2), nn.Linear(8, 2), X[:4]
    output = model(x)
    taught = Taught(F.cross_entropy, teacher, 0.3)(model, (x, Y[:4]))
    wanted = 0.7 * F.cross_entropy(output, Y[:4]) + 0.3 * distance(output, teacher(x))
    torch.testing.assert_close(taught, wanted)
    target = torch.zeros(4, 2)
    plain = Taught(F.mse_loss, teacher, 0.3)(model, (x, target))
    torch.testing.assert_close(plain, F.mse_loss(output, target))


@pytest.mark.parametrize("steps", [4, 30, 90])
def test_rounds_meet_the_budget_from_below_with_a_certificate(steps: int) -> None:
    torch.manual_seed(0)
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"budget": {"flops": "30%"}, "steps": steps, "seed": 1, "quiet": True}
    result = l0arm.prune(model, BATCHES, F.cross_entropy, choice="scores", teacher=0.5, **options)
    assert 0.297 <= result.small.macs / result.dense.macs <= 0.30
    assert result.certificate.passed
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    again = l0arm.prune(model, BATCHES, F.cross_entropy, choice="scores", teacher=0.5, **options)
    assert torch.equal(result.model(X), again.model(X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choice": "luck"}, "choice must be one of scores, gates"),
        ({"choice": "scores", "scores": None}, "choice='scores' needs scores"),
        ({"teacher": 1.5}, "teacher is a weight between 0 and 1"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        l0arm.prune(network(), BATCHES, F.cross_entropy, budget="50%", steps=9, **options)
