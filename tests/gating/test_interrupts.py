"""Ctrl-C at any moment of a step or a call leaves no draw in force and every tensor as it was."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.interrupts import Untouched, interrupt, interrupt_everywhere
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from l0arm import Gated, Group, Loss, Slice, sparsify
from l0arm.models import MLP

NORM = ("weight", "bias", "running_mean", "running_var")
GROUP = Group(
    "h",
    6,
    reads=(Slice("b.weight", 1),),
    makes=(Slice("a.weight", 0), Slice("a.bias", 0), *(Slice(f"norm.{k}", 0) for k in NORM)),
)
Z = torch.tensor([1.0, 0, 1, 1, 0, 0])
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


class Chain(nn.Module):
    """a -> norm -> relu -> b, the six hidden units gated."""

    def __init__(self, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.checkpoints = checkpoints

    def forward(self, x: Tensor) -> Tensor:
        return (
            checkpoint(self.layers, x, use_reentrant=False) if self.checkpoints else self.layers(x)
        )

    def layers(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.norm(self.a(x))))


def gate(execution: str = "sliced", method: str = "l0-arm", **options: Any) -> Gated:
    torch.manual_seed(0)
    gated = sparsify(Chain(**options), [GROUP], method, lam=0.1, execution=execution)
    gated.phi.data = torch.tensor([0.1, -0.2, 0.15, 0.05, -0.1, 0.12]).view_as(gated.phi)
    return gated


def step(gated: Gated) -> Callable[[], Loss]:
    def run() -> Loss:
        return gated.loss(lambda: gated(X).square().mean(), torch.Generator().manual_seed(0))

    return run


def set_phi(gated: Gated, phi: float) -> None:
    gated.phi.data = torch.where(gated.phi > 0, phi, -phi).view_as(gated.phi)


# At phi = 1 both evaluations share what they have in common.
@pytest.mark.parametrize(("phi", "execution"), [(None, "sliced"), (1.0, "masked")])
def test_an_interrupt_at_any_line_of_a_loss_leaves_everything_as_it_was(
    phi: float | None, execution: str
) -> None:
    gated = gate(execution)
    if phi is not None:
        set_phi(gated, phi)
    assert interrupt_everywhere(step(gated), Untouched(gated, X).check) > 300


@pytest.mark.usefixtures("alone")
def test_an_interrupt_while_the_hooks_are_off_puts_them_back() -> None:
    """Under a draw that changes nothing, the model is called without hooks."""
    gated = gate()
    gated.phi.data.fill_(9.0)
    untouched, seen = Untouched(gated, X), set[bool]()

    def observe(*_: object) -> None:
        seen.add(gated.engine.hushed)

    handle = gated.model.register_forward_hook(observe)
    assert interrupt_everywhere(step(gated), untouched.check) > 200
    handle.remove()
    assert True in seen


@pytest.mark.parametrize(("execution", "training"), [("sliced", False), ("masked", True)])
def test_an_interrupt_at_any_line_of_a_call_leaves_everything_as_it_was(
    execution: str, training: bool
) -> None:
    gated = gate(execution).train(training)
    # Training writes running statistics, as in every network.
    untouched = Untouched(gated, X, buffers=not training)
    check = untouched.check_state if training else untouched.check

    def run() -> None:
        torch.manual_seed(1)
        gated(X)

    assert interrupt_everywhere(run, check) > 100


@pytest.mark.slow
def test_an_interrupt_at_any_instruction_of_a_loss_leaves_everything_as_it_was() -> None:
    """Except the last one of ``loss``, which returns the result: no signal is handled there."""
    gated = gate()
    check = Untouched(gated, X).check
    assert interrupt_everywhere(step(gated), check, "opcode", skip=("Gated.loss",)) > 3000


def test_an_interrupt_at_any_line_of_a_chosen_draw_leaves_everything_as_it_was() -> None:
    """Python itself calls ``__exit__``, so its first line is the one place that nothing guards."""
    gated = gate().eval()
    untouched = Untouched(gated, X)

    def run() -> None:
        with gated.drawn(Z):
            gated(X)

    interrupt_everywhere(run, untouched.check, skip=("Evaluation.__exit__",))


@pytest.mark.parametrize(("execution", "dense"), [("sliced", False), ("masked", True)])
def test_after_an_interrupt_of_a_recomputation_the_next_call_is_right(
    execution: str, dense: bool
) -> None:
    """Nothing of the library is below ``backward``, so the next use of the model cleans up."""
    gated = gate(execution, checkpoints=True)
    untouched = Untouched(gated, X, buffers=False)
    for points in range(0, 10_000, 3):
        total = step(gated)().total
        gated.model.norm.reset_running_stats()
        if interrupt(points, total.backward) is None:
            break
        expected = untouched.dense if dense else untouched.output
        assert torch.equal(untouched.evaluated(dense=dense), expected)
        untouched.check_state()
    assert points > 50


def test_an_interrupted_loss_with_noise_on_weights_leaves_no_noise() -> None:
    torch.manual_seed(0)
    gated = sparsify(MLP((4, 6, 2)), method="sparse-vd", lam=0.1)
    assert interrupt_everywhere(step(gated), Untouched(gated, X).check) > 300


# Copies


def test_a_copy_made_in_a_closure_is_dense_and_has_no_draw_in_force() -> None:
    gated, copies = gate(), list[Gated]()
    expected = gated.eval()(X).detach()
    gated.train()

    def closure() -> Tensor:
        copies.append(copy.deepcopy(gated))
        copies.append(pickle.loads(pickle.dumps(gated)))
        return gated(X).square().mean()

    gated.loss(closure)
    gated.model.norm.reset_running_stats()
    for twin in copies[:2]:
        assert twin.engine.current is None
        assert torch.equal(twin.eval()(X), expected)
        twin.loss(lambda twin=twin: twin(X).square().mean())  # and it is nobody's turn there


def _use(use: Callable[[Gated], object], gated: Gated, *_: object) -> None:
    use(gated)


@pytest.mark.parametrize(
    "use",
    [
        copy.deepcopy,
        lambda gated: copy.deepcopy(gated.model),
        lambda gated: copy.deepcopy(gated.model.norm),
        lambda gated: pickle.dumps(gated.engine),
        lambda gated: gated.compact(),
    ],
    ids=["gated", "model", "layer", "pickle", "compact"],
)
def test_a_copy_inside_the_call_of_a_module_is_refused(use: Callable[[Gated], object]) -> None:
    gated = gate()
    handle = gated.model.norm.register_forward_pre_hook(partial(_use, use, gated))
    message = r"cannot be copied.*\('norm'\).*between two calls"
    with torch.no_grad(), pytest.raises(RuntimeError, match=message):
        gated(X)
    handle.remove()
    untouched = Untouched(gated, X)
    untouched.check_state()


class Recursive(nn.Module):
    """A module that calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, again: bool = True) -> Tensor:
        inner = self(x, False) if again else x
        return self.b(self.a(inner) * self.weight)


def test_a_module_that_calls_itself_is_refused() -> None:
    made = (Slice("a.weight", 0), Slice("a.bias", 0), Slice("weight", 0))
    group = Group("h", 6, reads=(Slice("b.weight", 1),), makes=made)
    gated = sparsify(Recursive(), [group], "l0-arm", lam=0.0)
    with gated.drawn(Z), pytest.raises(RuntimeError, match="called inside its own forward"):
        gated(X)
