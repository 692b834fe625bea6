"""An optimizer carried through compaction goes on as if nothing had happened."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from l0arm import Gated, expand

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
}


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, net: Any, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        F.cross_entropy(model(net.x), net.y).backward()
        optimizer.step()


def saturated(net: Any, **options: Any) -> Gated:
    """Half of the gates at 1 and half at 0, for certain: a draw is always the same."""
    gated = net.gated(**options)
    gated.phi.data = net.gates(0) * 2 - 1
    return gated


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "lenet5", "wrn"])
def test_training_goes_on_as_under_frozen_gates(name: str, make: Any, network: Any) -> None:
    net = network(name)
    masked, sliced = saturated(net, execution="masked"), saturated(net)
    reference, optimizer = (make(g.parameter_groups(lr=0.01)) for g in (masked, sliced))
    steps(masked, reference, net, 20)
    steps(sliced, optimizer, net, 10)
    small = sliced.compact(optimizer=optimizer)
    steps(small, optimizer, net, 10)
    assert_close(small.eval()(net.x), masked.eval()(net.x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_training_in_float32_goes_on_as_under_frozen_gates(name: str, network: Any) -> None:
    """Parameters and outputs within 1e-5 of the masked run, three steps before and after.

    Adam divides by the size of a gradient, so that each step enlarges what rounding did before it.
    """
    net, make = network("wrn", torch.float32), OPTIMIZERS[name]
    masked, sliced = saturated(net, execution="masked"), saturated(net)
    groups = [g.parameter_groups(lr=0.01) for g in (masked, sliced)]
    reference, optimizer = map(make, groups)
    steps(masked, reference, net, 3)
    steps(sliced, optimizer, net, 3)
    small = sliced.compact(optimizer=optimizer, example_inputs=net.x)
    steps(small, optimizer, net, 3)
    steps(masked, reference, net, 3)
    with torch.no_grad():
        wide = expand(small, sliced).parameters()
        for got, want in zip(wide, masked.model.parameters(), strict=True):
            kept = got != 0
            assert bool(kept.any())
            assert_close(got[kept], want[kept], rtol=0, atol=1e-5 * float(want.abs().max()))
        got, want = small.eval()(net.x), masked.eval()(net.x)
    assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))


def test_the_state_is_that_of_the_open_units(network: Any) -> None:
    net = network("lenet5")
    gated = saturated(net)
    optimizer = torch.optim.Adam(gated.parameter_groups())
    steps(gated, optimizer, net, 2)
    before = optimizer.state[gated.model.conv2.weight]["exp_avg"].clone()
    small = gated.compact(optimizer=optimizer)
    z = net.gates(0) != 0
    after = optimizer.state[small.conv2.weight]["exp_avg"]
    assert_close(after, before[z[20:70]][:, z[:20]], rtol=0, atol=0)


def test_averages_of_gradients_are_not_scaled_by_z_bar(network: Any) -> None:
    net = network("lenet5")
    gated = net.gated()
    optimizer = torch.optim.SGD(gated.parameter_groups(), momentum=0.9)
    steps(gated, optimizer, net, 1)
    before = optimizer.state[gated.model.fc2.weight]["momentum_buffer"].clone()
    gated.phi.data = net.gates(0, fractional=True) - 0.5
    small = gated.compact(optimizer=optimizer)
    after = optimizer.state[small.fc2.weight]["momentum_buffer"]
    assert_close(after, before[:, net.gates(0)[870:] != 0], rtol=0, atol=0)


def test_phi_is_gone(network: Any) -> None:
    net = network("mlp")
    gated = saturated(net)
    optimizer = torch.optim.Adam([*gated.model.parameters(), gated.phi])
    steps(gated, optimizer, net, 1)
    small = gated.compact(optimizer=optimizer)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert list(map(id, held)) == list(map(id, small.parameters()))
    assert {id(p) for p in optimizer.state} <= {id(p) for p in held}


def test_parameter_names_follow(network: Any) -> None:
    gated = saturated(network("mlp"))
    optimizer = torch.optim.Adam(gated.named_parameters())
    gated.compact(optimizer=optimizer)
    (group,) = optimizer.param_groups
    assert group["param_names"] == [f"model.{k}" for k, _ in gated.model.named_parameters()]


@pytest.mark.parametrize("phi_first", [False, True])
def test_the_group_of_phi_goes(phi_first: bool, network: Any) -> None:
    net = network("mlp")
    gated = saturated(net)
    groups = gated.parameter_groups(lr=0.1, gate_lr=7.0)
    optimizer = torch.optim.SGD(groups[::-1] if phi_first else groups)
    small = gated.compact(optimizer=optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1]
    later = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)  # sees the weights alone
    steps(small, optimizer, net, 1)
    later.step()
    assert later.get_last_lr() == [0.05]


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, [lambda n: 0.5**n] * 2),
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 3),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, [0.1, 7.0], total_steps=9),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9),
    "Chained": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [3],
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("phi_first", [False, True])
def test_a_scheduler_goes_on_as_without_compaction(
    phi_first: bool, make: Any, network: Any
) -> None:
    net = network("mlp")

    def rates(compacts: bool) -> list[float]:
        gated: Any = saturated(net)
        groups = gated.parameter_groups(lr=0.1, gate_lr=7.0)
        optimizer = torch.optim.SGD(groups[::-1] if phi_first else groups, momentum=0.9)
        scheduler, seen = make(optimizer), []
        for step in range(7):
            if step == 4 and compacts:
                gated = gated.compact(optimizer=optimizer)
            steps(gated, optimizer, net, 1)
            scheduler.step()
            seen.append(optimizer.param_groups[int(phi_first)]["lr"])
        return seen

    assert rates(compacts=True) == rates(compacts=False)


def test_a_scheduler_that_waits_for_a_plateau_goes_on(network: Any) -> None:
    """It leaves no mark, but counts anew."""
    gated = saturated(network("mlp"))
    optimizer = torch.optim.SGD(gated.parameter_groups(lr=0.1))
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    gated.compact(optimizer=optimizer)
    for loss in (1.0, 1.0, 1.0):
        scheduler.step(loss)
    assert [group["lr"] for group in optimizer.param_groups] == [0.025]


def test_options_of_a_group_stay(network: Any) -> None:
    gated = saturated(network("mlp"))
    optimizer = torch.optim.AdamW(gated.parameter_groups(lr=0.3, weight_decay=0.2))
    gated.compact(optimizer=optimizer)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (
        0.3,
        0.2,
    )


def contents(optimizer: torch.optim.Optimizer) -> Any:
    return copy.deepcopy(optimizer.state_dict()), [
        [id(p) for p in group["params"]] for group in optimizer.param_groups
    ]


def test_a_foreign_parameter_is_refused_and_the_optimizer_untouched(network: Any) -> None:
    net = network("mlp")
    gated = saturated(net)
    optimizer = torch.optim.Adam([*gated.parameters(), nn.Parameter(torch.ones(3, 4))])
    steps(gated, optimizer, net, 1)
    before = contents(optimizer)
    with pytest.raises(ValueError, match=r"holds a parameter of shape \(3, 4\) that is not the"):
        gated.compact(optimizer=optimizer)
    assert_close(contents(optimizer), before, rtol=0, atol=0)


@pytest.mark.parametrize("state", [torch.ones(5), [torch.ones(300, 784)], {"factor": 1.0}])
def test_state_that_cannot_be_cut_is_refused_and_the_optimizer_untouched(
    state: Any, network: Any
) -> None:
    net = network("mlp")
    gated = saturated(net)
    optimizer = torch.optim.Adam(gated.parameter_groups())
    steps(gated, optimizer, net, 1)
    optimizer.state[gated.model.fc1.weight]["odd"] = state
    before = contents(optimizer)
    with pytest.raises(ValueError, match=r"cannot cut the optimizer state 'odd'.* new optimizer"):
        gated.compact(optimizer=optimizer)
    assert_close(contents(optimizer), before, rtol=0, atol=0)


def test_an_optimizer_that_never_stepped_has_nothing_to_cut(network: Any) -> None:
    net = network("mlp")
    gated = saturated(net)
    optimizer = torch.optim.Adam(gated.parameter_groups())
    small = gated.compact(optimizer=optimizer)
    steps(small, optimizer, net, 1)
    assert len(optimizer.state) == 6


def test_what_is_no_optimizer_is_refused(network: Any) -> None:
    net = network("mlp")
    gated = saturated(net)
    optimizer = torch.optim.Adam(gated.parameter_groups())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer, got StepLR"):
        gated.compact(optimizer=scheduler)


@pytest.mark.parametrize("phi_first", [True, False])
def test_state_of_all_parameters_in_one_is_refused(phi_first: bool, network: Any) -> None:
    net = network("mlp")
    gated = saturated(net)
    parameters = sorted(gated.parameters(), key=lambda p: (p is gated.phi) != phi_first)
    optimizer = torch.optim.LBFGS(parameters, max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(gated(net.x), net.y)
        loss.backward()
        return loss

    optimizer.step(closure)
    before = contents(optimizer)
    with pytest.raises(ValueError, match=r"cannot cut the optimizer state '.*new optimizer"):
        gated.compact(optimizer=optimizer)
    assert_close(contents(optimizer), before, rtol=0, atol=0)
