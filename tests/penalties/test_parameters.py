"""The price of a unit is what the network would lose with it."""

import copy

import pytest
import torch

from l0arm import Gated, sparsify
from l0arm.models import MLP, LeNet5
from l0arm.penalties import Parameters


def gated_mlp(lam: float = 1.0) -> Gated:
    torch.manual_seed(0)
    return sparsify(MLP((6, 5, 4, 3)), method="l0-best", lam=lam)


def test_the_expected_count_of_an_mlp_by_hand() -> None:
    gated = gated_mlp(0.5)
    torch.nn.init.uniform_(gated.phi, -0.3, 0.3)
    a, b, c = (
        float(p.sum()) for p in torch.split(gated.gates.open_probability.detach(), [6, 5, 4])
    )
    expected = (a * b + b) + (b * c + c) + (c * 3 + 3)
    assert gated.penalty().item() == pytest.approx(0.5 * expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_with_decided_gates_it_counts_the_small_network(seed: int) -> None:
    torch.manual_seed(seed)
    gated = sparsify(LeNet5(), method="l0-best", lam=1.0)
    gated.phi.data = torch.where(torch.rand(gated.phi.shape) < 0.5, 100.0, -100.0)
    left = sum(p.numel() for p in gated.compact().parameters())
    assert gated.penalty().item() == pytest.approx(left, rel=1e-6)


def test_a_unit_costs_less_the_fewer_read_it() -> None:
    """A pixel of the MLP has as many weights as there are open units behind it."""
    gated, prices = gated_mlp(), []
    for open_units in (5, 2):
        gated.phi.data = torch.full_like(gated.phi, 100.0)
        gated.phi.data[6 + open_units : 11] = -100.0
        pi = gated.gates.open_probability.detach().requires_grad_()
        count = gated.extras["parameter_count"](pi)
        prices.append(torch.autograd.grad(count, pi)[0][0].item())
    assert prices == [5.0, 2.0]


def test_a_copy_counts_its_own_gates() -> None:
    gated = gated_mlp()
    twin = copy.deepcopy(gated)
    twin.phi.data.fill_(-100.0)
    assert twin.penalty().item() < gated.penalty().item()


@pytest.mark.parametrize("lam", [-1.0, float("nan"), [0.1, 0.2], "0.1"])
def test_one_price_for_all(lam: object) -> None:
    with pytest.raises(ValueError, match=r"lam must be one number >= 0"):
        Parameters(lam)  # type: ignore[arg-type]
