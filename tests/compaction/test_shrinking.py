"""The same optimizer object trains a smaller network, and the whole one keeps its size."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.compaction.test_working import NETWORKS, decided
from tests.helpers.two import in_two_processes
from tests.helpers.workers import shrinking_under_ddp
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from l0arm import Course, Gated, architecture, expected_l0, sparsify
from l0arm.compaction.shrinking import Shrinking
from l0arm.models import MLP, LeNet5

Optimizer = torch.optim.Optimizer
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0, fused=True),
}


def steps(gated: Gated, optimizer: Optimizer, x: Tensor, y: Tensor, number: int) -> None:
    for _ in range(number):
        optimizer.zero_grad()
        gated.loss(lambda: F.cross_entropy(gated(x), y)).backward()
        optimizer.step()


def undecided() -> tuple[Gated, Tensor, Tensor]:
    """A third of the gates is closed for good, the others are near 1/2."""
    torch.manual_seed(0)
    gated = sparsify(MLP((30, 20, 20, 3)), method="l0-disarm", lam=1e-3)
    gated.phi.data[::3] = -9.0
    gated.phi.data[1::3] = 0.05
    return gated, torch.rand(7, 30), torch.randint(3, (7,))


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_training_equals_that_of_the_whole_network_with_the_same_gates_closed(
    name: str, make: Callable[..., Optimizer]
) -> None:
    """Momenta of weights that get no gradient decay to what they were times a power: left out."""
    whole, keep, x, y = decided(name)
    reference = copy.deepcopy(whole)
    ours, theirs = make(whole.parameter_groups()), make(reference.parameter_groups())
    course = Course(whole, ours, epochs=3, shrink=True)
    before = [p.detach().clone() for p in whole.parameters()]
    for epoch in range(3):
        course.begin(epoch)
        assert course.gated is not whole
        steps(course.gated, ours, x, y, 2)
        steps(reference, theirs, x, y, 2)
        for one, two in zip(course.whole.parameters(), reference.parameters(), strict=True):
            if one is whole.phi:
                one, two = one[keep], two[keep]
            torch.testing.assert_close(one, two, rtol=0, atol=1e-10)
        for one, two in zip(course.whole.buffers(), reference.buffers(), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-10)
    assert any(not torch.equal(*pair) for pair in zip(before, whole.parameters(), strict=True))


def test_gates_that_are_left_get_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same u for the gates that stay, those of the whole network."""
    gated, x, y = undecided()
    gated, x = gated.double(), x.double()
    keep = torch.arange(70) % 3 != 0
    u = torch.rand(70).double()
    draws = {(70,): u, (int(keep.sum()),): u[keep]}
    monkeypatch.setattr(torch, "rand", lambda shape, **_: draws[tuple(shape)])
    gated.loss(lambda: F.cross_entropy(gated(x), y)).backward()
    assert gated.phi.grad is not None
    expected = gated.phi.grad[keep]
    net = Shrinking(gated, torch.optim.SGD(gated.parameter_groups(lr=0.1))).begin()
    net.loss(lambda: F.cross_entropy(net(x), y)).backward()
    assert net.phi.grad is not None
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(net.phi.grad, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stop", [1, 2, 2.5, 3])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_resumed_training_ends_bit_for_bit_as_an_uninterrupted_one(
    stop: float, make: Callable[..., Optimizer]
) -> None:
    def train(course: Course, first: float, last: float, x: Tensor, y: Tensor) -> None:
        for epoch in range(int(first), 4):
            halves = [h for h in (epoch, epoch + 0.5) if first <= h < last]
            for half in halves:
                if half == halves[0]:
                    course.begin(half)
                steps(course.gated, course.optimizer, x, y, 2)

    def started() -> tuple[Course, Tensor, Tensor]:
        gated, x, y = undecided()
        optimizer = make(gated.parameter_groups())
        return Course(gated, optimizer, 4, shrink=True), x, y

    course, x, y = started()
    train(course, 0, 4, x, y)
    expected, optimizer = course.whole.state_dict(), course.optimizer.state_dict()
    course, x, y = started()
    train(course, 0, stop, x, y)
    saved = [copy.deepcopy(part.state_dict()) for part in (course.whole, course.optimizer, course)]
    random = torch.get_rng_state()
    again, x, y = started()
    for part, state in zip((again.whole, again.optimizer, again), saved, strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(random)
    train(again, stop, 4, x, y)
    assert again.gated is not again.whole
    torch.testing.assert_close(again.whole.state_dict(), expected, rtol=0, atol=0)
    torch.testing.assert_close(again.optimizer.state_dict(), optimizer, rtol=0, atol=0)


def test_both_state_dicts_keep_their_full_size_and_are_up_to_date() -> None:
    gated, x, y = undecided()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    shrinking = Shrinking(gated, optimizer)
    net = shrinking.begin()
    weight = net.model.get_parameter("fc2.weight")
    assert weight.shape == (13, 13)
    steps(net, optimizer, x, y, 1)
    saved = gated.state_dict()["model.fc2.weight"].clone()
    assert saved.shape == (20, 20)
    for value in weight.flatten().tolist():
        assert value in saved
    state = optimizer.state_dict()["state"]
    shapes = [tuple(values["exp_avg"].shape) for values in state.values()]
    assert shapes == [tuple(p.shape) for p in gated.parameter_groups()[0]["params"]] + [(70,)]
    assert optimizer.param_groups[0]["params"][2] is weight  # and the training goes on
    steps(net, optimizer, x, y, 1)
    assert not torch.equal(saved, gated.state_dict()["model.fc2.weight"])


def test_evaluation_of_the_whole_network_sees_what_was_learned() -> None:
    gated, x, y = undecided()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    gated.phi.data[1::3] = 0.3
    net = Shrinking(gated, optimizer).begin()
    steps(net, optimizer, x, y, 3)
    torch.testing.assert_close(gated.eval()(x), net.eval()(x))


def test_steps_of_the_whole_network_are_refused_meanwhile() -> None:
    gated, x, y = undecided()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    shrinking = Shrinking(gated, optimizer)
    shrinking.begin()
    with pytest.raises(RuntimeError, match="a smaller network is trained in the place of this"):
        gated.loss(lambda: F.cross_entropy(gated(x), y))
    with pytest.raises(RuntimeError, match="has no gradient; compute the loss of each step"):
        optimizer.step()
    assert shrinking.end() is gated
    before = gated.phi.detach().clone()
    steps(gated, optimizer, x, y, 1)
    assert not torch.equal(before, gated.phi)


def test_a_state_that_is_loaded_within_an_epoch_trains_on() -> None:
    gated, x, y = undecided()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    course = Course(gated, optimizer, 3, shrink=True)
    course.begin(0)
    net = course.gated
    assert net is not gated
    steps(net, optimizer, x, y, 2)
    gated.load_state_dict(copy.deepcopy(gated.state_dict()))
    assert course.gated is gated
    before = gated.phi.detach().clone()
    steps(course.gated, optimizer, x, y, 2)
    assert not torch.equal(before, gated.phi)
    optimizer.zero_grad()
    net.loss(lambda: F.cross_entropy(net(x), y)).backward()  # the network of before
    with pytest.raises(RuntimeError, match="which changes when an epoch begins and when a state"):
        optimizer.step()
    course.begin(1)
    assert course.gated is not gated
    steps(course.gated, optimizer, x, y, 1)


def test_what_reads_the_gates_of_the_whole_network_brings_it_up_to_date() -> None:
    gated, x, y = undecided()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.01))
    course = Course(gated, optimizer, 2, shrink=True)
    course.begin(0)
    steps(course.gated, optimizer, x, y, 5)
    small = gated.eval().compact()
    torch.testing.assert_close(small(x), course.gated.eval()(x))
    steps(course.gated.train(), optimizer, x, y, 5)
    assert expected_l0(gated) == expected_l0(course.whole)
    course.end()
    assert gated.before_reading is None


def test_a_step_may_compute_its_loss_in_a_closure() -> None:
    gated, x, y = undecided()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    net = Shrinking(gated, optimizer).begin()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = net.loss(lambda: F.cross_entropy(net(x), y)).total
        loss.backward()
        return loss.detach()

    before = net.phi.detach().clone()
    optimizer.step(closure)
    assert not torch.equal(before, net.phi)


def test_averages_and_copies_of_the_whole_network_go_on() -> None:
    gated, x, y = undecided()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    course = Course(gated, optimizer, 2, shrink=True)
    average = AveragedModel(gated)
    for epoch in range(2):
        course.begin(epoch)
        steps(course.gated, optimizer, x, y, 1)
        average.update_parameters(course.whole)
    average.module.train()(x)  # a copy is a network of its own
    assert not torch.equal(average.module.phi, course.whole.phi)


def test_a_further_group_of_the_optimizer_and_its_scheduler_go_on() -> None:
    gated, x, y = undecided()
    other = torch.nn.Parameter(torch.ones(2))
    groups = [*gated.parameter_groups(lr=0.1), {"params": [other], "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    course = Course(gated, optimizer, 2, shrink=True)
    for epoch in range(2):
        course.begin(epoch)
        other.grad = torch.ones(2)
        net = course.gated
        net.loss(lambda net=net: F.cross_entropy(net(x), y)).backward()
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(other.detach(), torch.full((2,), 1 - 0.5 - 0.25 * 1.9))


def test_a_network_with_a_budget_is_trained_as_it_is() -> None:
    gated = sparsify(MLP((8, 6, 5, 3)), budget="50%")
    gated.phi.data[::3] = -9.0
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    course = Course(gated, optimizer, 1, shrink=True)
    course.begin(0)
    assert course.gated is gated
    assert course.state_dict() == {"kept": None}


@pytest.mark.slow
def test_two_processes_shrink_alike(tmp_path: Any) -> None:
    facts = in_two_processes(shrinking_under_ddp, tmp_path)
    assert all(fact["units"] < fact["all"] for fact in facts)
    torch.testing.assert_close(facts[0]["whole"], facts[1]["whole"], rtol=0, atol=0)
    assert not torch.equal(facts[0]["masks"], facts[1]["masks"])


def test_gates_below_the_bound_are_removed() -> None:
    gated = sparsify(MLP((6, 10, 3)), lam=0.0, initial=0.9)
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    gated.phi.data[6:9] = math.log(0.04 / 0.96) / 7  # open with probability 0.04
    assert Shrinking(gated, optimizer).begin() is gated
    small = Shrinking(gated, optimizer, below=0.05).begin()
    assert [group.units for group in small.groups] == [6, 7]


def test_units_that_the_threshold_keeps_are_trained_whatever_the_bound() -> None:
    """Otherwise the whole network would be evaluated with weights that are trained no more."""
    gated = sparsify(MLP((6, 10, 3)), lam=0.0, initial=0.9)
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    gated.phi.data[6:9] = math.log(0.4 / 0.6) / 7  # open with probability 0.4, below tau
    gated.phi.data[9:12] = math.log(0.6 / 0.4) / 7  # and 0.6, above it
    course = Course(gated, optimizer, epochs=2, shrink=True, shrink_below=0.8)
    course.begin(0)
    assert [group.units for group in course.gated.groups] == [6, 7]
    steps(course.gated, optimizer, torch.rand(5, 6), torch.arange(5) % 3, 1)
    x = torch.rand(4, 6)
    torch.testing.assert_close(course.gated.eval()(x), course.whole.eval()(x))


@pytest.mark.parametrize("below", [0.0, 1.0, 5, None, "0.1"])
def test_a_refused_bound_leaves_an_earlier_course_alone(below: Any) -> None:
    gated = sparsify(MLP((6, 10, 3)), lam=0.0)
    optimizer = torch.optim.Adam(gated.parameter_groups())
    course = Course(gated, optimizer, epochs=2)
    with pytest.raises(ValueError, match=r"shrink_below is a probability .* got"):
        Course(gated, optimizer, epochs=2, shrink=True, shrink_below=below)
    assert vars(optimizer)["l0arm_course"] is course
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_a_state_of_another_course_is_refused() -> None:
    gated = sparsify(MLP((6, 10, 3)), lam=0.0)
    optimizer = torch.optim.Adam(gated.parameter_groups())
    course = Course(gated, optimizer, epochs=2, shrink=True)
    for state in ({}, {"kept": torch.ones(9, dtype=torch.bool)}, {"kept": [True] * 16}):
        with pytest.raises(ValueError, match="not the state of a course for a network of 16 gates"):
            course.load_state_dict(state)
    course = Course(gated, optimizer, epochs=2)
    course.load_state_dict({"kept": None})
    with pytest.raises(ValueError, match="make it with shrink=True"):
        course.load_state_dict({"kept": torch.ones(16, dtype=torch.bool)})


def test_units_that_lose_their_path_are_closed_too() -> None:
    """The positions of a removed filter have gates of their own, which nothing would close."""
    gated = sparsify(LeNet5(), method="l0-arm", lam=1e-7)
    gated.phi.data[:70] = 9.0
    gated.phi.data[20:60] = -9.0  # 40 of 50 filters
    gated.phi.data[70:870] = 0.1  # open with probability 0.67
    gated.phi.data[870:] = 9.0
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-3))
    course = Course(gated, optimizer, epochs=1, shrink=True)
    course.begin(0)
    assert [group.units for group in course.gated.groups] == [20, 10, 160, 500]
    assert architecture(course.whole) == "20-10-160-500"
