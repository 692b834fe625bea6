"""Stages in any training loop: entered once, with their rates, penalties and steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from l0arm import Course, Gated, shrink, sparsify
from l0arm.methods import Method, Stage, l0_best, l0_disarm
from l0arm.methods.stages import Ramp, half_cosine, never
from l0arm.models import MLP

X = torch.rand(32, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0.5).long()


def staged(log: list[str], **settings: Any) -> Method:
    """L0-DisARM with three stages that log when they are entered."""

    def enter(name: str) -> Any:
        return lambda gated, validate: log.append(name)

    stages = (
        Stage("one", 0.5, enter=enter("one"), penalty=Ramp(0.0, 1.0)),
        Stage("two", 0.25, enter=enter("two"), lr=3.0, gate_lr=0.0, penalty=never),
        Stage("three", 0.25, enter=enter("three"), anneal=half_cosine),
    )
    return replace(l0_disarm(1e-3), stages=stages, **settings)


def training(method: Any, **options: Any) -> tuple[Gated, torch.optim.Optimizer]:
    torch.manual_seed(0)
    gated = sparsify(MLP((6, 5, 2)), method=method, initial=0.9, **options)
    return gated, torch.optim.Adam(gated.parameter_groups(lr=0.1, gate_lr=0.2))


def step(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    gated.loss(lambda: F.cross_entropy(gated(X), Y)).backward()
    optimizer.step()


def test_every_stage_is_entered_once_and_sets_the_weight_of_the_penalties() -> None:
    log: list[str] = []
    gated, optimizer = training(staged(log))
    course = Course(gated, optimizer, 8)
    weights = []
    for epoch in range(8):
        course.begin(epoch)
        course.begin(epoch)  # again: nothing new
        weights.append(gated.penalty_weight)
    assert log == ["one", "two", "three"]
    assert weights == [0.0, 0.25, 0.5, 0.75, 0.0, 0.0, 1.0, 1.0]


def test_rates_are_multiplied_within_a_step_and_left_to_the_scheduler() -> None:
    seen: list[list[float]] = []

    def watch(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
        seen.append([group["lr"] for group in optimizer.param_groups])

    gated, optimizer = training(staged([], after_step=watch))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    course = Course(gated, optimizer, 4)
    for epoch in range(4):
        course.begin(epoch)
        step(gated, optimizer)
        assert [group["lr"] for group in optimizer.param_groups] == schedule.get_last_lr()
        schedule.step()
    assert_close(seen, [[0.1, 0.2], [0.05, 0.1], [0.075, 0.0], [0.0125, 0.025]])


def test_the_factor_of_a_parameter_group_depends_on_what_it_holds() -> None:
    gated, _ = training(staged([]))
    weights, gates = gated.parameter_groups(lr=0.1, gate_lr=0.2)
    halves = [
        {**weights, "params": half} for half in (weights["params"][:2], weights["params"][2:])
    ]
    optimizer = torch.optim.SGD([gates, *halves])
    course = Course(gated, optimizer, 4)
    course.begin(0)
    course.begin(2)  # lr 3, gate_lr 0
    before = [p.detach().clone() for p in gated.parameters()]
    gated.penalty_weight = 1.0
    step(gated, optimizer)
    for old, new in zip(before, gated.parameters(), strict=True):
        assert torch.equal(old, new) == (new is gated.phi)
        assert new is gated.phi or new.grad is not None
        if new is not gated.phi and new.grad is not None:
            assert_close(new.detach(), old - 0.3 * new.grad)


def test_a_new_stage_clears_the_state_of_the_optimizer() -> None:
    gated, optimizer = training(staged([]))
    course = Course(gated, optimizer, 4)
    course.begin(0)
    step(gated, optimizer)
    course.begin(1)
    assert optimizer.state
    course.begin(2)
    assert not optimizer.state


@pytest.mark.parametrize(
    ("epoch", "entered"), [(0, ["one"]), (3, []), (4, ["two"]), (4.5, []), (5, []), (6, ["three"])]
)
def test_a_resumed_run_enters_new_stages_only(epoch: float, entered: list[str]) -> None:
    log: list[str] = []
    gated, optimizer = training(staged(log))
    Course(gated, optimizer, 8).begin(epoch)
    assert log == entered


def test_a_stage_can_validate() -> None:
    seen: list[float] = []

    def enter(gated: Gated, validate: Any) -> None:
        seen.append(validate())

    method = replace(l0_disarm(1e-3), stages=(Stage("choose", enter=enter),))
    gated, optimizer = training(method)
    Course(gated, optimizer, 2, validate=lambda: 91.5).begin(0)
    assert seen == [91.5]


def test_l0_best_in_a_plain_loop_fixes_gates_averages_weights_and_trims() -> None:
    gated, optimizer = training(l0_best(1e-4, at_most=0.5))
    course = Course(gated, optimizer, 8)
    for epoch in range(8):
        course.begin(epoch)
        step(gated, optimizer)
    assert set(gated.gates.probs.tolist()) == {0.0, 1.0}
    assert int(gated.extras["average"].steps) == -1  # taken
    left = sum(p.numel() for p in gated.compact().parameters())
    assert left <= 0.5 * sum(p.numel() for p in gated.model.parameters())


def test_group_lasso_shrinks_units_to_zero() -> None:
    gated, optimizer = training("group-lasso", lam=10.0)
    course = Course(gated, optimizer, 4)
    for epoch in range(2):
        course.begin(epoch)
        step(gated, optimizer)
    assert float(gated.deterministic().sum()) == 0.0


def test_after_the_end_of_a_course_steps_are_plain() -> None:
    calls: list[int] = []
    gated, optimizer = training(staged([], after_step=lambda gated, optimizer: calls.append(1)))
    course = Course(gated, optimizer, 4)
    course.begin(0)
    step(gated, optimizer)
    course.end()
    step(gated, optimizer)
    assert calls == [1]


def test_rates_are_restored_after_a_step_that_failed() -> None:
    gated, _ = training(staged([]))

    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("no step")

    optimizer = Failing(gated.parameter_groups(lr=0.1, gate_lr=0.2))
    course = Course(gated, optimizer, 4)
    course.begin(2)
    factors = []
    optimizer.register_step_pre_hook(lambda *_: factors.append(optimizer.param_groups[0]["lr"]))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no step"):
            optimizer.step()
    assert_close(factors, [0.1 * 3.0] * 2)  # not 0.9 the second time
    course.begin(2)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    with pytest.raises(RuntimeError, match="no step"):
        optimizer.step()
    course.end()
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


def test_wrong_numbers_of_epochs_are_refused() -> None:
    gated, optimizer = training(staged([]))
    with pytest.raises(ValueError, match=r"3 stages .* need at least as many epochs; got 2"):
        Course(gated, optimizer, 2)
    with pytest.raises(
        ValueError, match=r"has stages \(one, two, three\), which are shares of the"
    ):
        Course(gated, optimizer, None)
    with pytest.raises(ValueError, match="epoch 8 is outside of the 8 epochs that the stages"):
        Course(gated, optimizer, 8).begin(8)


def test_a_method_without_stages_needs_no_number_of_epochs() -> None:
    gated, optimizer = training("l0-disarm", lam=1e-3)
    course = Course(gated, optimizer, None)
    for epoch in (0, 1000):
        course.begin(epoch)
        step(gated, optimizer)
    assert gated.penalty_weight == 1.0


def test_a_second_course_replaces_the_first() -> None:
    seen: list[float] = []

    def watch(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
        seen.append(optimizer.param_groups[0]["lr"])

    gated, optimizer = training(staged([], after_step=watch))
    for _ in range(3):  # as when a notebook cell is run again
        course = Course(gated, optimizer, 4)
        course.begin(2)
        step(gated, optimizer)
    assert_close(seen, [0.3] * 3)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_parameter_group_of_gates_and_weights_is_refused() -> None:
    gated, _ = training(staged([]))
    together = torch.optim.Adam(gated.parameters())
    with pytest.raises(ValueError, match="holds phi and weights, but the method's stages"):
        Course(gated, together, 4)
    gated, _ = training("l0-disarm", lam=1e-3)
    Course(gated, torch.optim.Adam(gated.parameters()), 4).begin(0)  # one rate for all


def test_after_shrink_a_course_continues_with_the_smaller_network() -> None:
    entered: list[Gated] = []
    stages = (Stage("one"), Stage("two", enter=lambda gated, validate: entered.append(gated)))
    gated, optimizer = training(replace(l0_disarm(1e-3), stages=stages))
    course = Course(gated, optimizer, 2)
    course.begin(0)
    step(gated, optimizer)
    gated.phi.data[6:9] = -100.0
    smaller = shrink(gated, optimizer=optimizer)
    assert smaller is not gated
    with pytest.raises(ValueError, match=r"after shrink set course.gated to what it returned"):
        course.begin(1)
    course.gated = smaller
    course.begin(1)
    assert entered == [smaller]


def test_a_method_without_stages_is_refused() -> None:
    with pytest.raises(ValueError, match="has no stages; leave them out for plain training"):
        replace(l0_disarm(1e-3), stages=())
