"""Bias where it is known by enumeration, and the loss with each gate flipped."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.enumeration import noise_for, patterns, probability
from torch import Tensor

from l0arm import sparsify
from l0arm.estimators import ESTIMATORS, Exact
from l0arm.estimators._surrogate import antithetic_pair
from l0arm.estimators.comparison import Reference, loss_under, measure
from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError
from l0arm.lab.tables import estimator_table as table
from l0arm.lab.tables.estimator_table import flipped_losses
from l0arm.models import MLP

pytestmark = pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
UNBIASED = sorted(
    name for name in ESTIMATORS if ESTIMATORS[name]().unbiased and name not in table.NEVER
)
X = torch.linspace(-3, 3, 36, dtype=torch.float64).sin().view(9, 4)
Y = torch.arange(9) % 3
PI = torch.tensor([0.8, 0.3, 0.7, 0.9, 0.4, 0.5, 0.6], dtype=torch.float64)


class Small:
    """A net of 4 and 3 gates, whose gradient is the sum over 128 draws."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = MLP((4, 3, 3)).double()
        for layer in (self.model.fc1, self.model.fc2):
            layer.weight.data *= 4  # far from linear in its gates
        self.flips = partial(flipped_losses, self.model, X, Y)

    def f(self, z: Tensor) -> Tensor:
        """Written out, which is faster than a gated network."""
        first, second = self.model.fc1, self.model.fc2
        hidden = F.relu(F.linear(X * z[:4], first.weight, first.bias)) * z[4:]
        return F.cross_entropy(F.linear(hidden, second.weight, second.bias), Y)

    def gradient(self) -> Tensor:
        pi = PI.clone().requires_grad_()
        (exact,) = torch.autograd.grad(Exact()(self.f, pi), pi)
        return exact * PI * (1 - PI)

    def straight_through(self) -> Tensor:
        """Its mean over all draws."""
        return sum(
            probability(z, PI) * estimate_at(self.f, noise_for(z[0], PI), "straight-through")
            for z in patterns(1, len(PI))
        )

    def reference(self, pairs: int, seed: int = 0) -> Reference:
        return table.local_expectations(self.f, self.flips, PI, pairs, seed)


def estimate_at(f, u: Tensor, name: str) -> Tensor:
    pi = PI.clone().requires_grad_()
    (per_pi,) = torch.autograd.grad(ESTIMATORS[name]().at(f, pi, u), pi)
    return per_pi * PI * (1 - PI)


@pytest.fixture(scope="module")
def small() -> Small:
    return Small()


def taken(small: Small, name: str, draws: int, seed: int = 0):
    return measure(
        ESTIMATORS[name](), small.f, PI, draws, torch.Generator().manual_seed(seed), warmup=20
    )


@pytest.mark.parametrize("open_share", [0.5, 0.9, 0.0])
def test_the_loss_with_each_gate_flipped(small: Small, open_share: float) -> None:
    z = (torch.rand(7) < open_share).double()
    gated = sparsify(copy.deepcopy(small.model), method="l0-disarm", lam=0.0).double()
    f = loss_under(gated, lambda: F.cross_entropy(gated(X), Y))
    for j, loss in enumerate(small.flips(z).tolist()):
        flipped = torch.where(torch.arange(7) == j, 1 - z, z)
        assert loss == pytest.approx(f(flipped).item(), abs=1e-12)


def test_the_reference_is_made_of_local_expectations_at_antithetic_draws(small: Small) -> None:
    reference = small.reference(2, seed=4)
    random = torch.Generator().manual_seed(4)
    for draws, estimates in zip(reference.draws, reference.estimates, strict=True):
        u = torch.rand(7, generator=random, dtype=torch.float64)
        torch.testing.assert_close(draws, torch.stack(antithetic_pair(u, PI)))
        expected = [estimate_at(small.f, noise, "local-expectation") for noise in (u, 1 - u)]
        torch.testing.assert_close(estimates, torch.stack(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(reference.gradient, reference.estimates.mean((0, 1)))


@pytest.mark.parametrize("against", ["the exact gradient", "local expectations"])
@pytest.mark.parametrize("name", UNBIASED)
def test_an_unbiased_estimator_shows_no_bias(small: Small, name: str, against: str) -> None:
    exact = against == "the exact gradient"
    reference = Reference(small.gradient()) if exact else small.reference(40)
    bias = taken(small, name, 200).relative_bias(reference)
    assert not bias.shown
    assert bias.squared > -3 * bias.squared_error
    assert bias.squared_error > 0


@pytest.mark.parametrize("pairs", [10, 50, 500])
def test_the_bias_of_straight_through_is_the_enumerated_one(small: Small, pairs: int) -> None:
    exact = small.gradient()
    true = float(((small.straight_through() - exact).norm() / exact.norm()) ** 2)
    assert true > 0.01
    bias = taken(small, "straight-through", pairs).relative_bias(small.reference(pairs))
    assert abs(bias.squared - true) < 3 * bias.squared_error
    if pairs == 500:
        assert bias.shown
        assert abs(bias.size - true**0.5) < 3 * bias.error
        assert bias.error < 0.2 * bias.size


def scores(small: Small, name: str, true: float, pairs: int) -> Tensor:
    """Errors of the squared bias in many repetitions, in standard errors."""
    found = []
    for seed in range(40):
        bias = taken(small, name, 30, seed).relative_bias(small.reference(pairs, seed))
        found.append((bias.squared - true) / bias.squared_error)
    return torch.tensor(found)


@pytest.mark.parametrize("name", ["disarm", "straight-through"])
def test_the_stated_error_is_that_of_repeated_measurements(small: Small, name: str) -> None:
    """The mean of 40 scores is 0 within three of its errors, and their spread 1 within a third."""
    exact = small.gradient()
    true = small.straight_through() if name == "straight-through" else exact
    size = float(((true - exact).norm() / exact.norm()) ** 2)
    found = scores(small, name, size, pairs=15)
    assert found.mean().abs() < 0.48
    assert 0.65 < found.std() < 1.35


def test_common_draws_take_noise_away(small: Small) -> None:
    """The same seed, the same draws; another seed, none in common."""
    reference = small.reference(40)
    same, other = (
        taken(small, "straight-through", 40, seed).relative_bias(reference) for seed in (0, 99)
    )
    assert same.squared_error < 0.8 * other.squared_error


def test_a_bias_against_a_known_gradient_without_noise() -> None:
    gradient = torch.tensor([3.0, 4.0], dtype=torch.float64)
    bias = Reference(gradient).bias_of((1.1 * gradient).expand(5, 2), torch.zeros(5, 2))
    assert bias.shown
    assert (bias.size, bias.error) == (pytest.approx(0.1), pytest.approx(0, abs=1e-9))
    assert not Reference(gradient).bias_of(gradient.expand(5, 2), torch.zeros(5, 2)).shown


def test_every_figure_has_its_error(small: Small) -> None:
    points = {"start": PI}
    problem = table.Problem("small", small.f, points, {"start": small.reference(20)})
    arm, disarm = table.compare(problem, ["arm", "disarm"], 100)
    assert (arm.ratio, arm.ratio_error) == (1, pytest.approx(0, abs=1e-12))
    assert disarm.ratio == disarm.variance / arm.variance
    for error in ("variance_error", "ratio_error", "bias_error", "seconds_spread"):
        assert getattr(disarm, error) > 0
    assert 1 < disarm.evaluations <= 2
    # Common noise is counted: as if independent, the error would be larger.
    separate = [line.variance_error / line.variance for line in (arm, disarm)]
    assert disarm.ratio_error < disarm.ratio * torch.tensor(separate).norm()


@pytest.mark.parametrize(("shape", "classes"), [((3, 8, 8), 10), ((1, 28, 28), 11)])
def test_images_that_do_not_fit_the_mlp_are_refused(shape: tuple[int, ...], classes: int) -> None:
    images, labels = torch.zeros(4, *shape, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
    data = Dataset("other", images, labels, images, labels, classes, "here")
    with pytest.raises(UserError, match=f"{' x '.join(map(str, shape))}, in {classes} classes; ta"):
        table.mlp_problem(data)
