"""What both evaluations share is computed once, and nothing changes by it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Gated, Group, Slice, sparsify
from l0arm.gating.draw import Draw
from l0arm.gating.sharing import Agreement, Sharing, pure
from l0arm.models import MLP, LeNet5, WideResNet, pooled_conv


class Awkward(nn.Module):
    """In-place operations, dropout, a residual sum and a layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x), inplace=True)
        x = F.dropout(x, 0.3, self.training) + 1.0
        for _ in range(2):
            y = self.b(x)
            y += 0.1
            x = y.tanh_()
        return self.c(x)

    def groups(self) -> tuple[Group, ...]:
        stream = Group("inner", 8, reads=(Slice("c.weight", 1), Slice("b.weight", 1)))
        inputs = Group("inputs", 6, reads=(Slice("a.weight", 1),), select=Slice("a", -1))
        return inputs, stream


CASES = {
    "mlp": (MLP((20, 12, 8, 3)), (5, 20)),
    "lenet5": (LeNet5(), (16, 1, 28, 28)),
    "wrn": (WideResNet(10, 1), (4, 3, 16, 16)),
    "awkward": (Awkward(), (5, 6)),
}


def polarised(name: str, sharing: bool) -> Gated:
    """Two thirds open, a few gates undecided, the first group decided."""
    model, _ = copy.deepcopy(CASES[name])
    gated = sparsify(model, method="l0-arm", lam=1e-4, sharing=sharing)
    phi = torch.where(torch.arange(gated.phi.numel()) % 3 == 0, -3.0, 3.0)
    first = gated.groups[0].units
    phi[first + 1 :: 5] = 0.0
    gated.phi.data = phi
    return gated


def step(gated: Gated, shape: tuple[int, ...], seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    x, y = torch.rand(shape), torch.randint(3, shape[:1])
    loss = gated.loss(lambda: F.cross_entropy(gated(x), y))
    gated.zero_grad()
    loss.total.backward()
    return [loss.data.detach(), *(p.grad for p in gated.parameters()), *gated.buffers()]


@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_a_shared_step_equals_two_separate_passes_bit_for_bit(name, seed):
    shape = CASES[name][1]
    shared, apart = (step(polarised(name, sharing), shape, seed) for sharing in (True, False))
    assert len(shared) > 3
    assert all(torch.equal(a, b) for a, b in zip(shared, apart, strict=True))


def test_the_random_numbers_after_a_step_are_the_same():
    after = []
    for sharing in (True, False):
        step(polarised("awkward", sharing), (5, 6), 0)
        after.append(torch.rand(()))
    assert after[0] == after[1]


def test_the_prefix_that_agrees_is_not_computed_again(monkeypatch):
    """LeNet-5 with decided filters: conv1 is computed once for both passes."""
    calls, rows = [], pooled_conv.rows_of
    monkeypatch.setattr(pooled_conv, "rows_of", lambda x, k: calls.append(k) or rows(x, k))
    step(polarised("lenet5", sharing=True), (16, 1, 28, 28), 0)
    assert len(calls) == 1
    step(polarised("lenet5", sharing=False), (16, 1, 28, 28), 0)
    assert len(calls) == 3


def test_undecided_gates_are_not_worth_it():
    gated = sparsify(LeNet5(), lam=0.0)
    assert not Agreement(gated.layout).worth_sharing(gated.gates)
    gated.phi.data.fill_(3.0)
    assert Agreement(gated.layout).worth_sharing(gated.gates)


def test_later_steps_go_by_the_draws_that_were_seen():
    gated = sparsify(MLP((4, 3, 2)), lam=0.0)
    gated.phi.data.fill_(3.0)
    agreement, one = Agreement(gated.layout), Draw(gated.layout, torch.ones(7))
    other = Draw(gated.layout, torch.tensor([1.0, 0, 1, 1, 1, 1, 1]))
    assert agreement.worth_sharing(gated.gates)
    for _ in range(10):
        agreement.note(one, other)
    assert not agreement.worth_sharing(gated.gates)
    for _ in range(10):
        agreement.note(other, other)
    assert agreement.worth_sharing(gated.gates)


def test_nothing_is_shared_while_there_is_no_second_evaluation():
    gated = sparsify(MLP((4, 3, 2)), lam=0.0)
    gated.phi.data.fill_(9.0)
    agreement = Agreement(gated.layout)
    for _ in range(30):
        agreement.end_step(1)
    assert not agreement.worth_sharing(gated.gates)
    agreement.end_step(2)
    agreement.end_step(2)
    assert agreement.worth_sharing(gated.gates)


def shared(saved: float, looks: int) -> Sharing:
    sharing = Sharing()
    sharing.saved, sharing.looks = saved, looks
    return sharing


def test_what_saves_less_time_than_it_takes_is_not_shared_unless_it_is_asked_for():
    """10 operations are looked at in both evaluations: 2 * 10 * 15 microseconds."""
    gated = sparsify(MLP((4, 3, 2)), lam=0.0)
    gated.phi.data.fill_(3.0)
    for saved, worth in ((299e3, False), (301e3, True)):
        agreement = Agreement(gated.layout)
        assert agreement.worth_sharing(gated.gates)  # not known yet
        agreement.end_step(2, shared(saved, 10))
        assert agreement.worth_sharing(gated.gates) == worth
        assert agreement.worth_sharing(gated.gates, asked=True)
        for _ in range(63):
            agreement.end_step(2)
        assert agreement.worth_sharing(gated.gates)  # tried again: the batch may have grown


def test_what_is_saved_is_estimated_from_sizes():
    x, weight, sharing = torch.rand(5, 4), torch.rand(3, 4), Sharing()
    with sharing:
        F.relu(F.linear(x, weight))
    sharing.replay()
    with sharing:
        F.relu(F.linear(x, weight))
    assert sharing.looks == 2
    assert sharing.saved == pytest.approx(15 * (0.5 + 0.02 * 4) + 15 * 0.5)


def test_other_inputs_and_changed_inputs_are_computed():
    x, sharing = torch.rand(3), Sharing()
    with sharing:
        first = torch.relu(x)
    sharing.replay()
    with sharing:
        assert torch.relu(x) is first
        assert torch.relu(x.clone()) is not first
        x.add_(1.0)
        assert torch.equal(torch.relu(x), x)


def test_a_result_changed_in_place_is_computed_again():
    x, sharing = torch.rand(3), Sharing()
    with sharing:
        first = torch.sigmoid(x)
        first.mul_(2.0)
    sharing.replay()
    with sharing:
        assert torch.equal(torch.sigmoid(x), 1 / (1 + torch.exp(-x)))


def test_what_is_not_known_to_be_pure_is_not_shared():
    x, sharing = torch.rand(100), Sharing()
    with sharing:
        first = F.dropout(x, 0.5)
    sharing.replay()
    with sharing:
        assert not torch.equal(F.dropout(x, 0.5), first)


def test_a_function_of_ones_own_can_be_marked_pure():
    @pure
    def twice(x: Tensor) -> Tensor:
        return 2 * x

    x, sharing = torch.rand(3), Sharing()
    with sharing:
        first = twice(x)
    sharing.replay()
    with sharing:
        assert twice(x) is first
    assert torch.equal(twice(x), 2 * x)
