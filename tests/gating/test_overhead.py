"""What a step does beside the network's own arithmetic: counted in operations, not in time."""

import copy
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from l0arm import Gated, HardSigmoid, sparsify
from l0arm.models import MLP, WideResNet

pytestmark = pytest.mark.usefixtures("alone")

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
    assert counts.total() - dense.counts.total() <= 19


def calls(run: Callable[[], object]) -> int:
    """How many Python functions of the library and of torch a run calls."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        # Comprehensions are calls in some versions of Python, and none in others.
        count += event == "call" and not frame.f_code.co_name.startswith("<")

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
@pytest.mark.parametrize(("phi", "limit"), [(9.0, 160), (0.0, 410)])
def test_a_loss_stays_within_its_python_calls(phi, limit):
    gated = gated_mlp(phi)
    for _ in range(70):
        gated.loss(lambda: F.cross_entropy(gated(X), Y))
    assert calls(lambda: gated.loss(lambda: F.cross_entropy(gated(X), Y))) <= limit


def test_a_step_with_undecided_gates_stays_within_its_operations():
    counts = operations(gated_mlp(0.0))
    assert counts["addmm"] == 6
    assert counts["index_select"] == 16  # each tensor of each pass, once per cut dimension
    assert counts.total() <= 80


@pytest.mark.parametrize("called_before", [False, True])  # then the hooks are off in the step
@pytest.mark.parametrize("model", [MLP((20, 12, 8, 3)), WideResNet(10, 1)])
def test_a_step_with_all_gates_open_is_the_plain_step_bit_for_bit(model, called_before):
    x = X if isinstance(model, MLP) else torch.rand(4, 3, 16, 16)
    y = Y[: len(x)]
    plain = copy.deepcopy(model)
    F.cross_entropy(plain(x), y).backward()
    gated = sparsify(copy.deepcopy(model), method="l0-arm", lam=1e-3)
    gated.phi.data.fill_(9.0)
    if called_before:
        gated.eval()(x)
        gated.train()
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


def hooks_seen(gated: Gated, use: Callable[[], object]) -> set[bool]:
    """Whether fc2 had hooks of its own when it was called."""
    seen, inner = set(), gated.model.fc2

    def forward(x):
        seen.add(bool(inner._forward_pre_hooks))
        return nn.Linear.forward(inner, x)

    inner.forward = forward
    use()
    del inner.forward
    return seen


def test_hooks_are_off_only_where_a_draw_changes_nothing_and_no_one_else_needs_them():
    gated = gated_mlp(9.0)
    x = torch.rand(5, 20)
    assert hooks_seen(gated, lambda: gated(x)) == {True}  # the first call counts what is called
    assert hooks_seen(gated, lambda: gated(x)) == {False}
    assert hooks_seen(gated, lambda: gated.model(x)) == {True}  # they are on again

    def closed():
        with gated.drawn((torch.arange(40) > 0).float()):
            gated(x)

    assert hooks_seen(gated, closed) == {True}
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    assert hooks_seen(gated, lambda: gated(x)) == {True}  # hooks let other threads wait
    done.set()
    other.join()
    handle = gated.model.fc2.register_forward_pre_hook(lambda module, args: None)
    assert hooks_seen(gated, lambda: gated(x)) == {True}  # the user's hook is called
    handle.remove()
    assert hooks_seen(gated, lambda: gated(x)) == {False}


def test_a_draw_inside_a_call_without_hooks_is_in_force():
    gated = gated_mlp(9.0)
    closed = (torch.arange(40) > 0).float()
    with gated.drawn(closed):
        expected = gated(X)
    found = []

    def draw_again(module, args, output):
        if not found:
            found.append(torch.empty(0))
            with gated.drawn(closed):
                found[0] = gated(X)

    # Hooks of other modules keep ours on: this one is on the model, which has none.
    handle = gated.model.register_forward_hook(draw_again)
    dense = gated(X)
    handle.remove()
    assert torch.equal(found[0], expected)
    assert torch.equal(dense, gated(X))
    assert not torch.equal(dense, expected)


def test_an_error_in_the_forward_puts_the_hooks_back():
    gated = gated_mlp(9.0)
    gated(X)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        gated(torch.rand(5, 19))
    assert not gated.engine.hushed
    with gated.drawn((torch.arange(40) > 0).float()):
        closed = gated(X)
    assert not torch.equal(closed, gated.model(X))


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
