"""Units closed for good leave during training; what stays computes what it computed before."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Gated, Group, HardSigmoid, Slice, architecture, shrink, sparsify
from l0arm.compaction import InputSelection
from l0arm.models import MLP

NETWORKS = ["mlp", "lenet5", "wrn"]


def decided(net: Any) -> Gated:
    """Every third unit closed for good, every fifth undecided, the others open."""
    gated = net.gated()
    number = torch.arange(gated.phi.numel())
    p = torch.where(number % 3 == 0, 0.0, torch.where(number % 5 == 0, 0.5, 1.0))
    gated.phi.data = gated.method.gate.g.inverse(p.to(gated.phi.dtype))
    return gated


def at(gated: Gated, z: Tensor, net: Any) -> dict[str, Tensor]:
    gated.zero_grad()
    with gated.drawn(z):
        output = gated(net.x)
    F.cross_entropy(output, net.y).backward()
    named = gated.model.named_parameters()
    grads = {name.replace("fc1.module.", "fc1."): p.grad for name, p in named}
    return {"output": output.detach(), **grads}


@pytest.mark.parametrize("execution", ["sliced", "masked"])
@pytest.mark.parametrize("name", NETWORKS)
def test_any_draw_of_what_stays_gives_what_it_gave(name: str, execution: str, network: Any) -> None:
    net = network(name)
    gated = decided(net)
    gated.execution = execution
    smaller = shrink(gated, bound=0.1)
    assert smaller.phi.numel() < gated.phi.numel()
    full = torch.zeros_like(gated.phi)
    stays = torch.isin(torch.arange(full.numel()), positions(gated, smaller))
    z = (torch.rand(smaller.phi.shape) < 0.7).to(full.dtype)
    full[stays] = z
    before, after = at(gated, full, net), at(smaller, z, net)
    torch.testing.assert_close(after["output"], before["output"], rtol=1e-10, atol=1e-10)
    for key in after:
        mine, theirs = after[key], before[key]
        torch.testing.assert_close(mine[mine != 0], theirs[theirs != 0], rtol=1e-9, atol=1e-10)


def positions(gated: Gated, smaller: Gated) -> Tensor:
    """Flat numbers of the gates that stayed: by rule, all but the closed ones that can go."""
    numbers = []
    for n, group in enumerate(gated.groups):
        span = gated.layout.span(n)
        flat = torch.arange(span.start, span.stop)
        if group.select is None or len(gated.groups) == 3:  # MLP: nothing makes its inputs
            flat = flat[flat % 3 != 0]
        elif len(gated.groups) == 4:  # LeNet: flattened inputs of filters that went
            filters = torch.arange(20, 70) % 3 != 0
            flat = flat[filters.repeat_interleave(16)]
        numbers.append(flat)
    assert sum(map(len, numbers)) == smaller.phi.numel()
    return torch.cat(numbers)


@pytest.mark.parametrize("name", NETWORKS)
def test_training_goes_on_as_it_would_have(name: str, network: Any) -> None:
    """Deterministic gates: Adam before and after equals Adam without shrinking."""
    outputs = []
    for shrinks in (False, True):
        torch.manual_seed(0)
        net = network(name)
        gated = decided(net)
        gated.phi.data = torch.where(gated.gates.probs > 0.4, 9.0, -9.0).to(gated.phi.dtype)
        optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-3))
        for step in range(6):
            if step == 3 and shrinks:
                gated = shrink(gated, optimizer=optimizer)
            loss = gated.loss(lambda gated=gated, net=net: F.cross_entropy(gated(net.x), net.y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        outputs.append(gated.eval()(net.x).detach())
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-10)


def test_inputs_that_nothing_makes_go_for_good_and_again(network: Any) -> None:
    """Twice shrunk, an MLP reads its remaining inputs by one selection, and steps cut nothing."""
    net = network("mlp")
    gated = net.gated()
    gated.phi.data.fill_(9.0)
    gated.phi.data[:100] = -9.0
    once = shrink(gated)
    once.phi.data[:84] = -9.0
    twice = shrink(once)
    z = torch.ones_like(gated.phi)
    z[:184] = 0.0
    before, after = at(gated, z, net), at(twice, torch.ones_like(twice.phi), net)
    torch.testing.assert_close(after["output"], before["output"], rtol=1e-10, atol=1e-10)
    for key in after:
        expected = before[key][:, 184:] if key == "fc1.weight" else before[key]
        torch.testing.assert_close(after[key], expected, rtol=1e-9, atol=1e-10)
    assert isinstance(twice.model.fc1, InputSelection)
    assert twice.model.fc1.index.tolist() == list(range(184, 784))
    assert isinstance(twice.model.fc1.module, nn.Linear)
    assert twice.groups[0].select == Slice("fc1.module", -1)
    assert architecture(twice) == architecture(once) == "600-300-100"
    small = twice.eval().compact(example_inputs=net.x)
    torch.testing.assert_close(small(net.x), twice(net.x), rtol=1e-10, atol=1e-10)


def test_phi_and_its_state_go_along(network: Any) -> None:
    net = network("lenet5")
    gated = decided(net)
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-3))
    gated.loss(lambda: F.cross_entropy(gated(net.x), net.y)).backward()
    optimizer.step()
    before, state = gated.phi.detach().clone(), optimizer.state[gated.phi]["exp_avg"].clone()
    smaller = shrink(gated, bound=0.1, optimizer=optimizer)
    stays = positions(gated, smaller)
    assert torch.equal(smaller.phi, before[stays])
    assert torch.equal(optimizer.state[smaller.phi]["exp_avg"], state[stays])
    assert optimizer.param_groups[1]["params"] == [smaller.phi]


def test_architecture_and_eval_stay_the_same(network: Any) -> None:
    net = network("wrn")
    gated = decided(net).eval()
    smaller = shrink(gated, bound=0.1)
    assert architecture(smaller) == architecture(gated)
    assert not smaller.training
    torch.testing.assert_close(smaller(net.x), gated(net.x), rtol=1e-10, atol=1e-10)


def test_nothing_closed_changes_nothing(network: Any) -> None:
    gated = network("mlp").gated()
    gated.phi.data.fill_(1.0)
    assert shrink(gated) is gated


def test_a_group_closed_throughout_keeps_its_most_probable_unit(network: Any) -> None:
    gated = network("lenet5").gated()
    gated.phi.data.fill_(-0.4)
    gated.phi.data[3] = -0.39
    smaller = shrink(gated, bound=0.5)
    assert [group.units for group in smaller.groups] == [1, 1, 16, 1]
    assert smaller.phi[0] == gated.phi[3]


class Concatenated(nn.Module):
    """Two producers side by side, read by one layer: their units are parts of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(3, 5), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.cat([self.a(x), self.b(x)], 1))

    def groups(self) -> tuple[Group, ...]:
        return tuple(
            Group(
                name,
                units,
                reads=(Slice("c.weight", 1, index=tuple((first + j,) for j in range(units))),),
                makes=(Slice(f"{name}.weight", 0), Slice(f"{name}.bias", 0)),
            )
            for name, units, first in (("a", 4, 0), ("b", 5, 4))
        )


@pytest.mark.parametrize("closed", [[1], [6, 8], [0, 3, 5]])
def test_units_that_are_parts_of_an_input_move_to_their_new_places(closed: list[int]) -> None:
    gated = sparsify(Concatenated(), lam=0.0, gate=HardSigmoid())
    gated.phi.data.fill_(1.0)
    gated.phi.data[closed] = -1.0
    smaller, x = shrink(gated), torch.rand(6, 3)
    assert smaller.phi.numel() == 9 - len(closed)
    assert torch.allclose(smaller.eval()(x), gated.eval()(x), atol=1e-6)
    z = torch.ones(9)
    z[closed] = 0.0
    staying = z.nonzero().squeeze(1)
    z[staying[::2]] = 0.0
    with gated.drawn(z), smaller.drawn(z[staying]):
        assert torch.allclose(smaller(x), gated(x), atol=1e-6)


@pytest.mark.parametrize("bound", [0.0, 1.0, -0.1])
def test_a_bound_that_is_no_probability_is_refused(bound: float, network: Any) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1; got"):
        shrink(network("mlp").gated(), bound=bound)


def test_a_group_keeps_as_many_units_as_its_floor() -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 1))
    makes = (Slice("0.weight", 0), Slice("0.bias", 0))
    group = Group("g", 5, reads=(Slice("1.weight", 1),), makes=makes, floor=3)
    gated = sparsify(net, [group], "l0-arm", lam=0.0)
    gated.phi.data = torch.tensor([-2.0, -1.5, -3.0, -1.0, -2.5])  # all below the bound
    smaller = shrink(gated)
    assert smaller.phi.tolist() == [-2.0, -1.5, -1.0]
    assert smaller.groups[0].floor == 3


def test_what_was_set_on_the_gates_goes_along() -> None:
    gated = sparsify(MLP((6, 5, 3)), lam=1e-3)
    gated.penalty_weight, gated.averaged_elsewhere, gated.width_multiple = 0.25, True, 2
    gated.phi.data[6] = -10.0
    smaller = shrink(gated)
    assert smaller is not gated
    assert (smaller.penalty_weight, smaller.averaged_elsewhere) == (0.25, True)
    assert smaller.width_multiple == 2
