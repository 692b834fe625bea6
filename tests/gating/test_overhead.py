"""What a step does beside the network's own arithmetic: counted in operations, not in time."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from l0arm import Gated, HardSigmoid, sparsify
from l0arm.models import MLP, WideResNet

X, Y = torch.rand(5, 20), torch.randint(3, (5,))


class Operations(TorchDispatchMode):
    """Counts the operations that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.name().removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def gated_mlp(phi: float = 0.0, method: str = "l0-arm") -> Gated:
    torch.manual_seed(0)
    gated = sparsify(MLP((20, 12, 8, 3)), method=method, lam=1e-3)
    gated.phi.data.fill_(phi)
    return gated


def operations(gated: Gated) -> Counter[str]:
    for _ in range(2):  # what is computed once is computed now
        gated.loss(lambda: F.cross_entropy(gated(X), Y)).total.backward()
    with Operations() as operations:
        gated.loss(lambda: F.cross_entropy(gated(X), Y))
    return operations.counts


@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
@pytest.mark.parametrize("method", ["l0-arm", "l0-disarm"])
@pytest.mark.parametrize("phi", [0.0, 9.0])
def test_a_step_reads_one_number(method, phi):
    assert operations(gated_mlp(phi, method))["_local_scalar_dense"] == 1


def test_a_step_with_decided_gates_evaluates_once_and_cuts_nothing():
    counts = operations(gated_mlp(9.0))
    assert counts["addmm"] == 3  # one forward pass
    assert counts["index_select"] == 0
    plain = MLP((20, 12, 8, 3))
    with Operations() as dense:
        F.cross_entropy(plain(X), Y)
    assert counts.total() - dense.counts.total() <= 22


def test_a_step_with_undecided_gates_stays_within_its_operations():
    counts = operations(gated_mlp(0.0))
    assert counts["addmm"] == 6
    assert counts["index_select"] == 16  # each tensor of each pass, once per cut dimension
    assert counts.total() <= 90


@pytest.mark.parametrize("model", [MLP((20, 12, 8, 3)), WideResNet(10, 1)])
def test_a_step_with_all_gates_open_is_the_plain_step_bit_for_bit(model):
    x = X if isinstance(model, MLP) else torch.rand(4, 3, 16, 16)
    y = Y[: len(x)]
    plain = copy.deepcopy(model)
    F.cross_entropy(plain(x), y).backward()
    gated = sparsify(copy.deepcopy(model), method="l0-arm", lam=1e-3)
    gated.phi.data.fill_(9.0)
    gated.loss(lambda: F.cross_entropy(gated(x), y)).total.backward()
    for ours, theirs in zip(gated.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    for ours, theirs in zip(gated.model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("decided", [False, True])
def test_positions_of_the_last_draw_are_reused_only_where_the_gates_agree(decided):
    """Steps that reuse positions equal steps that compute them anew, bit for bit."""
    reusing, fresh = gated_mlp(0.2), gated_mlp(0.2)
    for gated in (reusing, fresh) if decided else ():
        gated.phi.data = torch.where(torch.arange(40) % 3 == 0, -9.0, 9.0)
    for seed in range(5):
        for gated in (reusing, fresh):
            torch.manual_seed(seed)
            if gated is fresh:
                gated.engine.recent = ()
            gated.loss(lambda gated=gated: F.cross_entropy(gated(X), Y)).total.backward()
        for ours, theirs in zip(reusing.parameters(), fresh.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)


def test_a_draw_that_repeats_the_last_one_computes_no_positions():
    gated = gated_mlp(9.0)
    gated.phi.data[::3] = -9.0
    gated.loss(lambda: F.cross_entropy(gated(X), Y))
    (first,) = gated.engine.recent
    gated.loss(lambda: F.cross_entropy(gated(X), Y))
    assert gated.engine.recent[0] is not first
    assert gated.engine.recent[0]._memo is first._memo  # the same position tensors
    gated.phi.data[:3] = torch.tensor([9.0, -9.0, 9.0])
    gated.loss(lambda: F.cross_entropy(gated(X), Y))
    assert gated.engine.recent[0]._memo is not first._memo


def test_a_vector_changed_in_place_is_another_draw():
    """On a CPU a draw sees the caller's own memory."""
    gated = gated_mlp(9.0)
    z = torch.ones(40)
    z[0] = 0.0
    with gated.drawn(z) as first:
        gated(X)
    z[1] = 0.0
    with gated.drawn(z) as second:
        gated(X)
    assert (first.counts[0], second.counts[0]) == (19, 18)


def test_constants_follow_the_network_to_another_precision():
    gated = gated_mlp(0.0)
    single = gated.penalty().item()
    gated.double()
    assert gated.penalty().dtype == torch.float64
    assert gated.penalty().item() == pytest.approx(single, rel=1e-6)


def test_positions_from_inference_mode_are_not_reused_in_training():
    """Autograd cannot save tensors of inference mode."""
    gated = sparsify(MLP((20, 12, 8, 3)), method="l0-arm", gate=HardSigmoid(), lam=1e-3)
    gated.phi.data = torch.where(torch.arange(40) % 3 == 0, -9.0, 9.0)  # z-bar is 0 or 1
    with torch.inference_mode():
        gated.eval()(X)
    gated.train().loss(lambda: F.cross_entropy(gated(X), Y)).total.backward()
    assert gated.model.fc1.weight.grad.abs().sum() > 0


def test_no_graph_outlives_its_step():
    gated = sparsify(MLP((20, 12, 8, 3)), method="l0-hc", lam=1e-3)
    gated.loss(lambda: F.cross_entropy(gated(X), Y)).total.backward()
    assert gated.engine.recent == ()
