"""A smaller network that trains in the place of a whole one: equal steps, and nothing lost."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Gated, Group, Slice, sparsify
from l0arm.compaction.working import Working, replaceable
from l0arm.methods import Method, l0
from l0arm.models import MLP


def conv_net() -> Gated:
    """A convolution with batch norm, whose channels are gated, and a linear reader."""
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )
    makes = ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")
    channels = Group(
        "channels",
        6,
        reads=(Slice("4.weight", 1, block=4),),
        makes=tuple(Slice(name, 0) for name in makes),
    )
    return sparsify(model, groups=[channels], method="l0-arm", lam=1e-3)


def mlp() -> Gated:
    return sparsify(MLP((8, 6, 5, 3)), method="l0-arm", lam=1e-3)


NETWORKS = {"mlp": (mlp, (7, 8)), "conv": (conv_net, (7, 2, 4, 4))}


def decided(name: str) -> tuple[Gated, Tensor, Tensor, Tensor]:
    """A network in float64 in which two of three gates are open for sure, the others closed."""
    torch.manual_seed(0)
    make, size = NETWORKS[name]
    gated = make().double()
    keep = torch.arange(gated.layout.gates) % 3 != 0
    gated.phi.data = torch.where(keep, 9.0, -9.0).double()
    return gated, keep, torch.rand(size, dtype=torch.float64), torch.randint(3, (7,))


def sgd(gated: Gated) -> torch.optim.Optimizer:
    return torch.optim.SGD(gated.parameter_groups(lr=0.1, gate_lr=0.01), momentum=0.9)


def steps(gated: Gated, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, n: int) -> None:
    for _ in range(n):
        optimizer.zero_grad()
        gated.loss(lambda: F.cross_entropy(gated(x), y)).backward()
        optimizer.step()


@pytest.mark.parametrize("name", NETWORKS)
def test_its_steps_are_those_of_the_whole_network_with_the_same_gates_closed(name: str) -> None:
    """A closed unit has no gradient, so plain SGD leaves its weights alone."""
    whole, keep, x, y = decided(name)
    reference, optimizer = copy.deepcopy(whole), sgd(whole)
    theirs = sgd(reference)
    steps(reference, theirs, x, y, 5)
    steps(whole, optimizer, x, y, 2)  # the optimizer has a state when the network becomes smaller
    working = Working(whole, keep)
    small = sgd(working.gated)
    working.take(optimizer.state, small.state)
    steps(working.gated, small, x, y, 3)
    working.write_back(small.state, optimizer.state)
    for ours, expected in zip(whole.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
        momenta = optimizer.state[ours], theirs.state[expected]
        torch.testing.assert_close(*(m["momentum_buffer"] for m in momenta), rtol=0, atol=1e-12)
    for ours, expected in zip(whole.model.buffers(), reference.model.buffers(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(whole.phi[keep], reference.phi[keep], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_written_back_and_cut_again_is_the_same_bit_for_bit(name: str) -> None:
    whole, keep, x, y = decided(name)
    optimizer = torch.optim.Adam(whole.parameter_groups(lr=1e-2))
    working = Working(whole, keep)
    small = torch.optim.Adam(working.gated.parameter_groups(lr=1e-2))
    working.take(optimizer.state, small.state)
    steps(working.gated, small, x, y, 2)
    working.write_back(small.state, optimizer.state)
    again = Working(whole, keep)
    resumed = torch.optim.Adam(again.gated.parameter_groups(lr=1e-2))
    again.take(optimizer.state, resumed.state)
    states = working.gated.state_dict(), again.gated.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for one, two in zip(small.state.values(), resumed.state.values(), strict=True):
        assert one.keys() == two.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_removed_units_keep_their_weights() -> None:
    whole, keep, *_ = decided("mlp")
    before = whole.model.fc1.weight.detach().clone()
    working = Working(whole, keep)
    working.gated.model.get_parameter("fc1.module.weight").data.fill_(5.0)
    working.write_back(sgd(working.gated).state, sgd(whole).state)
    rows, columns = keep[8:14], keep[:8]
    written = rows[:, None] & columns
    assert torch.equal(whole.model.fc1.weight == 5.0, written)
    assert torch.equal(whole.model.fc1.weight[~written], before[~written])


def test_cutting_draws_no_random_numbers() -> None:
    whole, keep, *_ = decided("mlp")
    before = torch.get_rng_state()
    Working(whole, keep)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("method", "replaced"),
    [
        ("l0-arm", True),
        ("l0-disarm", True),
        (l0(1e-3, l2=1e-4), False),
        ("group-lasso", False),
        ("l0-hc", False),
    ],
)
def test_methods_that_know_the_full_size_are_not_replaced(
    method: str | Method, replaced: bool
) -> None:
    strength = {"lam": 1e-3} if isinstance(method, str) else {}
    assert replaceable(sparsify(MLP((8, 6, 3)), method=method, **strength)) == replaced


def test_the_penalty_of_a_gate_stays_the_same() -> None:
    """The whole network's gradient of lambda |g| pi, although fewer weights of g are trained."""
    whole, keep, *_ = decided("mlp")
    whole.phi.data[keep] = 0.1
    small = Working(whole, keep).gated
    whole.penalty().backward()
    small.penalty().backward()
    assert torch.equal(small.phi.grad, whole.phi.grad[keep])
    assert float(small.phi.grad.min()) > 0
