"""Every member of ESTIMATORS trains a gated network, and gives phi the gradient it should."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Gated, Group, Slice, shrink, sparsify
from l0arm.estimators import ESTIMATORS
from l0arm.gates import Bernoulli, ScaledSigmoid
from l0arm.methods import l0
from l0arm.models import MLP

pytestmark = pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")  # small layers
every_estimator = pytest.mark.parametrize("name", sorted(ESTIMATORS))
DENSE = sorted(name for name in ESTIMATORS if not ESTIMATORS[name]().drops)
X = torch.linspace(-1, 1, 20, dtype=torch.float64).sin().view(5, 4)
Y = torch.tensor([0, 1, 1, 0, 1])


def gated_mlp(name: str, execution: str = "sliced") -> Gated:
    torch.manual_seed(3)
    method = l0(1e-3, estimator=name)
    return sparsify(MLP((4, 3, 2)).double(), method=method, execution=execution).double()


def closure(gated: Gated) -> Callable[[], Tensor]:
    return lambda: F.cross_entropy(gated(X), Y)


def by_hand(model: MLP, phi: Tensor, name: str, seed: int) -> tuple[Tensor, Tensor]:
    """Value and gradient in phi from the network written out, its gates on the activations."""

    def f(z: Tensor) -> Tensor:
        hidden = F.relu((X * z[:4]) @ model.fc1.weight.T + model.fc1.bias) * z[4:]
        return F.cross_entropy(hidden @ model.fc2.weight.T + model.fc2.bias, Y)

    leaf = phi.detach().clone().requires_grad_()
    gates = Bernoulli(ScaledSigmoid())(leaf)
    value = ESTIMATORS[name]()(f, gates, torch.Generator().manual_seed(seed))
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


@every_estimator
@pytest.mark.parametrize("execution", ["sliced", "masked"])
def test_the_gradient_in_phi_is_that_of_the_network_written_out(name: str, execution: str) -> None:
    for seed in range(3):
        gated = gated_mlp(name, execution)
        data = gated.loss(closure(gated), torch.Generator().manual_seed(seed)).data
        data.backward()
        value, gradient = by_hand(gated.model, gated.phi, name, seed)
        torch.testing.assert_close(data.detach(), value, rtol=0, atol=1e-12)
        torch.testing.assert_close(gated.phi.grad, gradient, rtol=0, atol=1e-10)


@every_estimator
def test_theta_gets_the_same_gradient_sliced_and_masked(name: str) -> None:
    found = []
    for execution in ("sliced", "masked"):
        gated = gated_mlp(name, execution)
        gated.loss(closure(gated), torch.Generator().manual_seed(1)).data.backward()
        found.append(torch.cat([p.grad.flatten() for p in gated.model.parameters()]))
    assert found[0].abs().sum() > 0
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def train(gated: Gated, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        loss = gated.loss(closure(gated), random)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()


@every_estimator
def test_training_goes_on_from_a_saved_state_bit_for_bit(name: str) -> None:
    first = gated_mlp(name)
    start = first.phi.detach().clone()
    optimizer = torch.optim.Adam(first.parameter_groups(lr=1e-2))
    train(first, optimizer, steps=4, seed=0)
    assert (first.phi != start).any()
    second = gated_mlp(name)
    other = torch.optim.Adam(second.parameter_groups(lr=1e-2))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(first, optimizer, steps=4, seed=1)
    train(second, other, steps=4, seed=1)
    saved, again = first.state_dict(), second.state_dict()
    assert saved.keys() == again.keys()
    assert all(torch.equal(saved[key], again[key]) for key in saved)


@every_estimator
def test_a_step_under_bfloat16_autocast(name: str) -> None:
    gated = gated_mlp(name).float()
    start = gated.phi.detach().clone()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2))
    random = torch.Generator().manual_seed(0)
    for _ in range(2):  # the second with what the first left to remember
        with torch.autocast("cpu", torch.bfloat16):
            loss = gated.loss(lambda: F.cross_entropy(gated(X.float()), Y), random)
        optimizer.zero_grad()
        loss.data.backward()
        assert loss.data.dtype == gated.phi.grad.dtype == torch.float32
        optimizer.step()
    assert loss.data.isfinite()
    assert all(tensor.isfinite().all() for tensor in gated.state_dict().values())
    assert (gated.phi != start).any()


@every_estimator
def test_a_deep_copy_goes_its_own_way(name: str) -> None:
    """It starts with what was remembered, and gives nothing back."""
    gated = gated_mlp(name)
    train(gated, torch.optim.Adam(gated.parameter_groups(lr=1e-2)), steps=2, seed=0)
    before = copy.deepcopy(gated.state_dict())
    twin = copy.deepcopy(gated)
    assert twin.estimator is not gated.estimator or not getattr(gated.estimator, "state", None)
    copied = copy.deepcopy(twin.state_dict())
    assert all(torch.equal(copied[key], before[key]) for key in before)
    train(twin, torch.optim.Adam(twin.parameter_groups(lr=1e-2)), steps=3, seed=1)
    after = gated.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    changed = {k for k, v in twin.state_dict().items() if not torch.equal(v, before[k])}
    assert {"phi.fc1", "model.fc1.weight"} <= changed
    remembered = {key for key in before if key.startswith("estimator_state.")}
    assert not remembered or changed & remembered


def test_what_an_estimator_remembers_belongs_to_its_model() -> None:
    method = l0(1e-3, estimator="reinforce")
    one, two = (sparsify(MLP((4, 3, 2)).double(), method=method) for _ in range(2))
    one.loss(closure(one)).total.backward()
    assert one.state_dict()["estimator_state.steps"] == 1
    assert two.state_dict()["estimator_state.steps"] == 0
    assert method.estimator.state["steps"] == 0


def test_what_an_estimator_remembers_is_no_parameter() -> None:
    names = [name for name, _ in gated_mlp("relax").named_parameters()]
    assert names == ["phi", *(f"model.fc{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias"))]


def test_what_an_estimator_remembers_stays_in_float32() -> None:
    gated = gated_mlp("reinforce").float()
    gated.estimator_state["mean"] = torch.tensor(1.001)
    gated.bfloat16()
    mean = gated.estimator.state["mean"]
    assert mean.dtype == torch.float32
    assert mean.item() == pytest.approx(1.001, rel=1e-6)


@pytest.mark.parametrize("name", ["reinforce", "rebar", "relax"])
def test_shrink_carries_over_what_is_remembered(name: str) -> None:
    gated = gated_mlp(name)
    gated.loss(closure(gated)).total.backward()
    gated.phi.data[4] = -3.0
    smaller = shrink(gated)
    assert smaller.phi.numel() == gated.phi.numel() - 1
    assert smaller.state_dict()["estimator_state.steps"] == 1
    smaller.loss(closure(smaller)).total.backward()
    assert smaller.phi.grad.isfinite().all()
    assert smaller.state_dict()["estimator_state.steps"] == 2


def test_a_loss_that_is_not_finite_is_not_remembered() -> None:
    gated = gated_mlp("rebar")
    before = copy.deepcopy(gated.state_dict())
    with pytest.raises(ValueError, match="data loss is nan"):
        gated.loss(lambda: F.cross_entropy(gated(X), Y) * float("nan"))
    after = gated.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


class Tied(nn.Module):
    """An embedding and the head that reads it, one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(x)))

    def groups(self) -> list[Group]:
        return [Group("width", 4, (Slice("head.weight", 1),), makes=(Slice("embed.weight", 1),))]


@pytest.mark.parametrize("name", DENSE)
def test_weights_that_a_group_makes_and_reads_refuse_derivatives_in_z(name: str) -> None:
    with pytest.raises(ValueError, match=r"needs the derivative .* group 'width' reads and makes"):
        sparsify(Tied(), method=l0(1e-3, estimator=name))


def test_weights_that_a_group_makes_and_reads_take_the_others() -> None:
    gated = sparsify(Tied(), method=l0(1e-3, estimator="arms"))
    gated.loss(lambda: F.cross_entropy(gated(torch.arange(6)), torch.arange(6))).total.backward()
    assert gated.phi.grad.isfinite().all()


@pytest.mark.parametrize("name", DENSE)
def test_a_gate_for_each_weight_works_too(name: str) -> None:
    model = nn.Linear(4, 2).double()
    group = Group("weights", 8, reads=(Slice("weight", None),))
    gated = sparsify(model, [group], method=l0(1e-3, estimator=name)).double()
    gated.loss(lambda: F.cross_entropy(gated(X), Y)).data.backward()
    assert gated.phi.grad.shape == (8,)
    assert (gated.phi.grad != 0).all()


class WithNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.norm(self.fc1(x))))

    def groups(self) -> list[Group]:
        makes = ("fc1.weight", "fc1.bias", "norm.weight", "norm.bias")
        buffers = ("norm.running_mean", "norm.running_var")
        pieces = tuple(Slice(key, 0) for key in makes + buffers)
        return [Group("fc2", 5, (Slice("fc2.weight", 1),), pieces)]


@every_estimator
def test_running_statistics_are_written_once(name: str) -> None:
    gated = sparsify(WithNorm().double(), method=l0(1e-3, estimator=name)).double()
    gated.loss(closure(gated)).total.backward()
    assert gated.model.norm.num_batches_tracked == 1
