"""``loss(backward=False)``: gates learn from values of the loss, and the model is only read."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.helpers.enumeration import patterns
from torch import Tensor, nn

from l0arm import ConstantObjective, Course, Gated, NonFiniteLoss, plan, sparsify
from l0arm.estimators import ESTIMATORS
from l0arm.gating.constancy import PATIENCE
from l0arm.models import MLP, WideResNet
from l0arm.pruning import decide

pytestmark = pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")

VALUES_ONLY = ["ar", "arm", "arms", "bitflip", "disarm", "exact", "local-expectation", "reinforce"]
VALUES_ONLY += ["reinforce-loo", "relax", "ugc"]
SLOPES = [
    "concrete",
    "disarm-slopes",
    "double-cv",
    "muprop",
    "rebar",
    "reinmax",
    "rodeo",
    "st-gumbel",
    "straight-through",
]


def small(estimator: str = "disarm") -> Gated:
    torch.manual_seed(0)
    return sparsify(MLP((3, 2, 2)), method="l0", lam=0.01, estimator=estimator, initial=0.6)


def digits() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.rand(16, 3, generator=random), torch.arange(16) % 2


def test_the_two_lists_are_those_of_the_estimators() -> None:
    # estimators that are added later name their side here
    assert sorted(VALUES_ONLY + SLOPES) == sorted(ESTIMATORS)


@pytest.mark.parametrize("name", VALUES_ONLY)
def test_phi_gets_the_same_gradient_as_with_a_backward_pass(name: str) -> None:
    (x, y), found = digits(), []
    for backward in (True, False):
        gated = small(name)
        draws = torch.Generator().manual_seed(3)
        loss = gated.loss(lambda g=gated: F.cross_entropy(g(x), y), draws, backward=backward)
        loss.total.backward()
        found.append(gated.phi.grad)
        assert all((p.grad is not None) == backward for p in gated.model.parameters())
    assert torch.equal(*found)


@pytest.mark.parametrize("name", SLOPES)
def test_an_estimator_that_differentiates_the_loss_is_refused(name: str) -> None:
    gated, (x, y) = small(name), digits()
    with pytest.raises(TypeError, match=r"differentiates the loss in the gates.*use an estimator"):
        gated.loss(lambda: F.cross_entropy(gated(x), y), backward=False)


def test_the_mean_over_all_draws_is_the_gradient_of_the_expected_accuracy() -> None:
    """A loss without derivatives: DisARM's mean over its noise, by enumeration of both draws.

    For pi > 1/2 a pair (z, z~) of a gate is (1, 0) or (0, 1) with probability 1 - pi each, and
    (1, 1) with 2 pi - 1.
    """
    gated, random = small(), torch.Generator().manual_seed(5)
    gates = len(gated.phi)
    for weight in gated.model.parameters():
        nn.init.normal_(weight, generator=random)
    x = torch.randn(16, 3, generator=random)
    y = gated.model(x).argmax(1)

    def accuracy() -> float:
        return (gated(x).argmax(1) == y).double().mean().item()

    with torch.no_grad():
        gated.phi.copy_(torch.linspace(0.05, 0.2, gates))
    pi = gated.gates.probs.detach().double()
    noise = torch.stack([(1 - pi) / 2, torch.full_like(pi, 0.5), (1 + pi) / 2])  # of the three
    chances = torch.stack([1 - pi, 2 * pi - 1, 1 - pi])
    mean = torch.zeros(gates, dtype=torch.float64)
    for code in range(3**gates):
        which = torch.tensor([code // 3**gate % 3 for gate in range(gates)])
        u = noise[which, torch.arange(gates)].float()
        value = gated.estimator.at(
            lambda z: gated.phi.new_tensor(at(gated, z, accuracy)), gated.gates, u
        )
        (estimate,) = torch.autograd.grad(value, gated.phi)
        mean += chances[which, torch.arange(gates)].prod() * estimate.double()
    leaf = gated.gates.probs
    expected = torch.zeros((), dtype=torch.float64)
    for z in patterns(1, gates):
        chance = torch.where(z[0] > 0, leaf, 1 - leaf).prod()
        expected = expected + chance * at(gated, z[0].float(), accuracy)
    (exact,) = torch.autograd.grad(expected, gated.phi)
    assert exact.abs().max() > 0.01  # there is something to estimate
    torch.testing.assert_close(mean, exact.double(), atol=2e-6, rtol=0)


def at(gated: Gated, z: Tensor, measure: object) -> float:
    with gated.drawn(z), torch.no_grad():
        return measure()  # type: ignore[operator,no-any-return]


def test_no_tensor_is_saved_for_a_backward_pass() -> None:
    gated, (x, y), saved = small(), digits(), list[Tensor]()

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    def closure() -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return F.cross_entropy(gated(x), y)

    gated.loss(closure)
    assert saved  # the hooks count
    saved.clear()
    loss = gated.loss(closure, backward=False)
    assert not saved
    loss.total.backward()
    assert gated.phi.grad.abs().sum() > 0


@pytest.mark.parametrize("number", [0.5, 1, np.float32(0.5), np.float64(0.5), torch.tensor(0.5)])
def test_the_closure_may_return_any_number(number: object) -> None:
    gated, (x, _) = small(), digits()
    loss = gated.loss(lambda: (gated(x), number)[1], backward=False)
    assert loss.data.item() == float(number)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, None, "0.5", 1j, [0.5], torch.zeros(2), np.zeros(2)])
def test_what_is_not_a_number_is_refused(value: object) -> None:
    gated, (x, _) = small(), digits()
    with pytest.raises(ValueError, match="must return a real scalar tensor or a number, got"):
        gated.loss(lambda: (gated(x), value)[1], backward=False)


def test_a_number_with_a_backward_pass_is_refused_with_the_way_out() -> None:
    gated, (x, _) = small(), digits()
    with pytest.raises(ValueError, match=r"got float; .*plain numbers need backward=False"):
        gated.loss(lambda: (gated(x), 0.5)[1])


def test_nan_is_refused() -> None:
    gated, (x, _) = small(), digits()
    with pytest.raises(NonFiniteLoss, match="the data loss is nan"):
        gated.loss(lambda: (gated(x), float("nan"))[1], backward=False)


def test_a_closure_that_changes_the_weights_is_refused() -> None:
    gated, (x, _) = small(), digits()

    def closure() -> Tensor:
        value = gated(x).sum()
        gated.model.fc1.weight.mul_(0.5)
        return value

    with pytest.raises(RuntimeError, match="changed weights of the model in place"):
        gated.loss(closure, backward=False)


def test_a_loss_that_never_changes_gets_one_warning() -> None:
    gated, (x, _) = small(), digits()
    draws = torch.Generator().manual_seed(0)

    def run() -> None:
        for _ in range(PATIENCE):
            gated.loss(lambda: (gated(x), 0.5)[1], draws, backward=False)

    with pytest.warns(ConstantObjective, match=f"0.5 in all of its {PATIENCE}") as caught:
        run()
    assert [w.category for w in caught].count(ConstantObjective) == 1


def test_one_draw_again_and_again_is_no_reason_to_warn() -> None:
    gated, (x, y) = small(), digits()
    with torch.no_grad():
        gated.phi.fill_(40.0)  # all gates are decided
    for _ in range(2 * PATIENCE):
        gated.loss(lambda: F.cross_entropy(gated(x), y), backward=False)
    assert gated.constancy.count == 1


@pytest.mark.parametrize("samples", [2, 4])
def test_several_draws_share_what_they_have_in_common(samples: int) -> None:
    """All draws agree on the first two groups: the first layer is computed once for all."""
    gated = sparsify(
        MLP((3, 2, 2, 2)), method="l0", estimator="arms", samples=samples, lam=0.0, sharing=True
    )
    with torch.no_grad():
        gated.phi.fill_(40.0)
        gated.phi[-2:] = 0.0
    hidden: list[Tensor] = []
    gated.model.fc1.register_forward_hook(lambda m, i, out: hidden.append(out))
    x, draws = torch.rand(4, 3), torch.Generator().manual_seed(1)
    for _ in range(8):
        hidden.clear()
        gated.loss(lambda: gated(x).sum(), draws, backward=False)
        assert len({id(out) for out in hidden}) == 1
    assert len(hidden) > 1  # several evaluations


def test_running_statistics_are_left_alone_in_training_mode() -> None:
    gated = sparsify(WideResNet(10, 1), lam=0.0).train()
    before = copy.deepcopy(gated.model.state_dict())
    x = torch.rand(2, 3, 32, 32)
    gated.loss(lambda: gated(x).sum(), backward=False)
    assert all(torch.equal(value, before[name]) for name, value in gated.model.state_dict().items())


def test_nothing_is_kept_for_sharing_unless_asked() -> None:
    """What one evaluation computed lives no longer than the evaluation."""
    x, results = torch.rand(4, 3), list[int]()
    for sharing in (None, True):
        gated = sparsify(MLP((3, 2, 2, 2)), method="l0-arm", lam=0.0, sharing=sharing)
        with torch.no_grad():
            gated.phi.fill_(2.0)  # the first two groups of both draws agree: worth sharing
            gated.phi[-2:] = 0.0
        hidden: list[Tensor] = []
        gated.model.fc1.register_forward_hook(lambda m, i, out, h=hidden: h.append(out))
        gated.loss(lambda g=gated: g(x).sum(), torch.Generator().manual_seed(0), backward=False)
        assert len(hidden) == 2  # two evaluations
        results.append(len({id(out) for out in hidden}))
    assert results == [2, 1]  # computed twice, and computed once and kept


def test_a_course_runs_with_phi_alone() -> None:
    gated, (x, y) = small(), digits()
    gated.model.requires_grad_(False)
    optimizer = torch.optim.Adam([gated.phi], lr=0.1)
    course = Course(gated, optimizer, epochs=3)
    before = gated.phi.detach().clone()
    for epoch in range(3):
        course.begin(epoch)
        loss = gated.loss(lambda: F.cross_entropy(gated(x), y), backward=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert not torch.equal(gated.phi, before)


def test_gates_learn_which_unit_counts_from_the_number_of_errors() -> None:
    """Unit 0 of three decides the answer, unit 1 spoils it, unit 2 has no effect and a price."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.Linear(3, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[1].weight.copy_(torch.tensor([[1.0, -3.0, 0.0]]))
    gated = sparsify(
        model.requires_grad_(False),
        example_inputs=torch.ones(1, 1),
        method="l0-disarm",
        lam=0.02,
        initial=0.5,
    )
    x = torch.linspace(0.1, 1.0, 10)[:, None]
    optimizer = torch.optim.Adam([gated.phi], lr=0.05)
    for _ in range(150):
        loss = gated.loss(lambda: (gated(x) <= 0).double().mean().item(), backward=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert gated.deterministic().ne(0).tolist() == [True, False, False]


class Block(nn.Module):
    """Attention and an MLP of a decoder, each with a norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.qkv, self.out = nn.Linear(8, 24, bias=False), nn.Linear(8, 8, bias=False)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        rows, length = x.shape[:2]
        q, k, v = self.qkv(self.norms[0](x)).view(rows, length, 3, -1, 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


@pytest.mark.filterwarnings("ignore::l0arm.BudgetWarning")  # one step, not a whole training
def test_heads_units_stream_and_depth_of_a_frozen_decoder() -> None:
    """The gradient is that with a backward pass, and the compact network equals the gated one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 8), Block(), Block(), nn.LayerNorm(8), nn.Linear(8, 10))
    model.requires_grad_(False).eval()
    ids, found = torch.randint(10, (3, 6)), []
    groups = plan(model, ids, stream=True, depth=True)
    assert sorted(group.units for group in groups.groups if group.norms) == [8]  # the stream
    assert any(group.branches for group in groups.groups)
    others = [g.units for g in groups.groups if not (g.norms or g.branches)]
    assert sorted(others) == [2, 2, 12, 12]  # heads and MLP units
    for backward in (True, False):
        torch.manual_seed(1)  # of the first phi
        gated = sparsify(model, groups, initial=0.7, budget={"flops": "60%"}, example_inputs=ids)
        draws = torch.Generator().manual_seed(2)
        loss = gated.loss(
            lambda g=gated: F.cross_entropy(g(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()),
            draws,
            backward=backward,
        )
        loss.total.backward()
        found.append(gated.phi.grad.clone())
        if not backward:
            z = decide(gated)
            small = gated.compact()
            with gated.drawn(z), torch.no_grad():
                torch.testing.assert_close(small(ids), gated(ids), rtol=0, atol=1e-5)
            assert float(gated.budget.cost(z.double()) / gated.budget.cost.dense) <= 0.6
        gated.release()
    assert found[0].abs().sum() > 0
    torch.testing.assert_close(*found, rtol=0, atol=0)
