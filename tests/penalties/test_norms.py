"""L0, L1 and L2 are the expected norms of theta (.) z, summed here over all 2^V draws."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from l0arm.estimators import Exact
from l0arm.gates import Bernoulli, GateFunction, HardSigmoid, ScaledSigmoid
from l0arm.gating import Gated, Group, Slice
from l0arm.gating.settings import Settings
from l0arm.methods import Method
from l0arm.penalties import L0, L1, L2, Strength

NORMS = {L0: lambda theta: (theta != 0).double(), L1: torch.abs, L2: torch.square}
every_norm = pytest.mark.parametrize("penalty", NORMS, ids=lambda norm: norm.__name__)

# The gate of every column of a.weight (4 x 3) and b.weight (2 x 4), of every element of c.weight.
GATE_OF = {"a.weight": [0, 1, 2], "b.weight": [3, 3, 4, 4], "c.weight": [5, 6]}
SHUFFLED = {**GATE_OF, "b.weight": [3, 4, 4, 3]}
SIZES = [4, 4, 4, 4, 4, 1, 1]  # |g|
LAM = {"inputs": 0.5, "hidden": 2.0, "weights": 7.0}
LAM_OF_GATE = [0.5, 0.5, 0.5, 2.0, 2.0, 7.0, 7.0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).relu())


def network(g: GateFunction = ScaledSigmoid(), shuffled: bool = False) -> Gated:
    """Units of one column, of blocks or lists of columns, and of single elements."""
    a, c = Slice("a.weight", 1), Slice("c.weight", None)
    b = Slice("b.weight", -1, index=((0, 3), (1, 2))) if shuffled else Slice("b.weight", 1, 2)
    groups = [
        Group("inputs", 3, reads=(a,), counts=(a,)),
        Group("hidden", 2, reads=(b,), counts=(b,)),
        Group("weights", 2, reads=(c,), counts=(c,)),
    ]
    method = Method("test", Bernoulli(g), Exact())
    gated = Gated(Net(), groups, method, settings=Settings(execution="masked")).double()
    nn.init.uniform_(gated.phi, -0.4, 0.4)
    return gated


def applied(penalty: Any, gated: Gated) -> Tensor:
    return penalty(gated, gated.gates)


def expected_norm(
    gated: Gated, norm: Callable[[Tensor], Tensor], gate_of: dict[str, list[int]]
) -> Tensor:
    """sum_z p(z) sum_j lambda_j norm(theta_j z_j), draw by draw."""
    pi, strength = gated.gates.probs, torch.tensor(LAM_OF_GATE)
    total = pi.new_zeros(())
    for bits in product((0.0, 1.0), repeat=7):
        z = pi.new_tensor(bits)
        weight = torch.where(z == 1, pi, 1 - pi).prod()
        for name, gates in gate_of.items():
            theta = gated.model.get_parameter(name) * z[gates]
            total = total + weight * (strength[gates] * norm(theta)).sum()
    return total


@every_norm
@pytest.mark.parametrize("g", [ScaledSigmoid(7), HardSigmoid(7)], ids=str)
@pytest.mark.parametrize("shuffled", [False, True], ids=["block", "index"])
def test_it_is_the_expectation_over_all_draws(
    penalty: type, g: GateFunction, shuffled: bool
) -> None:
    gated = network(g, shuffled)
    exact = expected_norm(gated, NORMS[penalty], SHUFFLED if shuffled else GATE_OF)
    torch.testing.assert_close(penalty(LAM)(gated, gated.gates), exact)


@every_norm
def test_its_gradient_is_that_of_the_expectation(penalty: type) -> None:
    gated = network()
    found = torch.autograd.grad(penalty(LAM)(gated, gated.gates), gated.phi)
    exact = torch.autograd.grad(expected_norm(gated, NORMS[penalty], GATE_OF), gated.phi)
    torch.testing.assert_close(found, exact)


@every_norm
def test_a_sequence_and_a_mapping_agree(penalty: type) -> None:
    gated = network()
    reordered = dict(sorted(LAM.items()))
    assert penalty(list(LAM.values()))(gated, gated.gates) == penalty(reordered)(gated, gated.gates)


@every_norm
def test_one_strength_is_the_same_for_every_group(penalty: type) -> None:
    gated = network()
    assert penalty(0.3)(gated, gated.gates) == penalty([0.3, 0.3, 0.3])(gated, gated.gates)


@every_norm
def test_it_is_linear_in_lambda(penalty: type) -> None:
    gated = network()
    single = [{**dict.fromkeys(LAM, 0.0), name: LAM[name]} for name in LAM]
    alone = [penalty(lam)(gated, gated.gates) for lam in single]
    torch.testing.assert_close(penalty(LAM)(gated, gated.gates), sum(alone))


@every_norm
@pytest.mark.parametrize("lam", [0.0, 0, [0.0] * 3], ids=str)
def test_lambda_0_costs_exactly_0(penalty: type, lam: Strength) -> None:
    assert applied(penalty(lam), network()).item() == 0.0


@pytest.mark.parametrize("shuffled", [False, True], ids=["block", "index"])
def test_sizes_count_the_weights_of_each_gate(shuffled: bool) -> None:
    assert network(shuffled=shuffled).sizes.tolist() == SIZES


@pytest.mark.parametrize("g", [ScaledSigmoid(3), HardSigmoid(3)], ids=str)
def test_l0_pulls_phi_by_lambda_times_size_times_slope(g: GateFunction) -> None:
    gated = network(g)
    pi = gated.gates.probs.detach()
    slope = 3 * pi * (1 - pi) if isinstance(g, ScaledSigmoid) else torch.full_like(pi, 3 / 7)
    (found,) = torch.autograd.grad(L0(LAM)(gated, gated.gates), gated.phi)
    torch.testing.assert_close(found, slope * pi.new_tensor(SIZES) * pi.new_tensor(LAM_OF_GATE))


def test_l0_takes_gates_of_another_precision() -> None:
    gated = network()
    single = Bernoulli(ScaledSigmoid())(gated.phi.float())
    expected = sum(
        lam * n * p for lam, n, p in zip(LAM_OF_GATE, SIZES, single.probs.tolist(), strict=True)
    )
    assert L0(LAM)(gated, single).item() == pytest.approx(expected, rel=1e-6)


def test_l0_does_not_pull_a_saturated_gate() -> None:
    gated = network(HardSigmoid(7))
    nn.init.constant_(gated.phi, -0.9)
    (found,) = torch.autograd.grad(L0(LAM)(gated, gated.gates), gated.phi)
    assert found.tolist() == [0.0] * 7


def test_l2_decays_a_weight_by_its_keep_probability() -> None:
    gated = network()
    weight = gated.model.a.weight
    (found,) = torch.autograd.grad(L2(0.5)(gated, gated.gates), weight)
    torch.testing.assert_close(found, gated.gates.probs[:3] * weight)  # 2 lam pi theta


def test_what_is_not_counted_costs_nothing() -> None:
    gated = network()
    L2(1.0)(gated, gated.gates).backward()
    assert gated.model.a.bias.grad is None


@every_norm
def test_several_counted_tensors_add_up_even_vectors(penalty: type) -> None:
    weight, scale = Slice("0.weight", 0), Slice("1.weight", 0)
    group = Group("norm", 3, reads=(Slice("2.weight", 1),), counts=(weight, scale))
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    gated = Gated(model, [group], Method("test", Bernoulli(), Exact()))
    per_unit = torch.cat([model[0].weight, model[1].weight[:, None]], dim=1)
    expected = (gated.gates.probs[:, None] * NORMS[penalty](per_unit)).sum()
    torch.testing.assert_close(penalty(1.0)(gated, gated.gates), expected, check_dtype=False)


@every_norm
@pytest.mark.parametrize("lam", [[0.1], {"inputs": 0.1}], ids=str)
def test_strengths_that_do_not_fit_the_groups_are_refused(penalty: type, lam: Strength) -> None:
    with pytest.raises(ValueError, match="give one number for each of them"):
        applied(penalty(lam), network())
