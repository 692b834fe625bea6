"""Activation checkpointing: backward recomputes every pass under the draw it was made with."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from l0arm import Gated, Group, Slice, sparsify
from l0arm.gating import recomputation

WIDTH = 12
NORM = ("weight", "bias", "running_mean", "running_var")
GROUP = Group(
    "h",
    WIDTH,
    reads=(Slice("b.weight", 1),),
    makes=(Slice("a.weight", 0), Slice("a.bias", 0), *(Slice(f"norm.{k}", 0) for k in NORM)),
    initial=0.6,
)
checkpointings = pytest.mark.parametrize("reentrant", [False, True])
executions = pytest.mark.parametrize("execution", ["sliced", "masked"])


class Checkpointed(nn.Module):
    """a -> norm -> relu -> b in one or more nested checkpoints; ``reentrant=None``: in none."""

    def __init__(self, reentrant: bool | None, depth: int = 1) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)
        self.reentrant, self.depth = reentrant, depth

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        if self.reentrant is None or depth == self.depth:
            return self.b(F.relu(self.norm(self.a(x))))
        return checkpoint(self.forward, x, depth + 1, use_reentrant=self.reentrant)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loss(gated: Gated, x: Tensor, seed: int) -> Tensor:
    return gated.loss(lambda: gated(x).square().mean(), generator(seed)).total


def one_loss(gated: Gated, x: Tensor) -> None:
    loss(gated, x, 1).backward()


def two_losses_summed(gated: Gated, x: Tensor) -> None:
    (loss(gated, x, 1) + loss(gated, 2 * x, 2)).backward()


def a_call_before_backward(gated: Gated, x: Tensor) -> None:
    total = loss(gated, x, 1)
    gated(x)  # say, to log an accuracy
    total.backward()


def backward_inside_a_draw(gated: Gated, x: Tensor) -> None:
    with gated.drawn(torch.arange(WIDTH).double() % 2):
        gated(x).square().mean().backward()


def a_second_backward(gated: Gated, x: Tensor) -> None:
    total = loss(gated, x, 1)
    total.backward(retain_graph=True)
    loss(gated, x, 2)
    total.backward()


def result(
    run: Callable[[Gated, Tensor], None], execution: str, model: nn.Module
) -> dict[str, Tensor]:
    """Gradients and buffers after the run."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    gated = sparsify(model, [GROUP], "l0-arm", lam=0.1, execution=execution).double()
    run(gated, torch.randn(8, 4).double().requires_grad_())
    gradients = {k: p.grad for k, p in gated.named_parameters()}
    return gradients | dict(gated.model.named_buffers())


@executions
@checkpointings
@pytest.mark.parametrize(
    "run",
    [
        one_loss,
        two_losses_summed,
        a_call_before_backward,
        backward_inside_a_draw,
        a_second_backward,
    ],
)
def test_checkpointing_changes_no_gradient_and_no_buffer(
    run: Callable[[Gated, Tensor], None], reentrant: bool, execution: str
) -> None:
    came = result(run, execution, Checkpointed(reentrant))
    expected = result(run, execution, Checkpointed(None))
    assert_close(came, expected, rtol=1e-12, atol=1e-12)


@executions
@checkpointings
def test_a_checkpoint_in_a_checkpoint_changes_nothing(reentrant: bool, execution: str) -> None:
    came = result(two_losses_summed, execution, Checkpointed(reentrant, depth=2))
    expected = result(two_losses_summed, execution, Checkpointed(None))
    assert_close(came, expected, rtol=1e-12, atol=1e-12)


@executions
@checkpointings
@pytest.mark.parametrize("depth", [0, 1])
def test_the_gated_model_itself_may_be_checkpointed(
    depth: int, reentrant: bool, execution: str
) -> None:
    def whole(gated: Gated, x: Tensor) -> None:
        def closure() -> Tensor:
            return checkpoint(gated, x, use_reentrant=reentrant).square().mean()

        (gated.loss(closure, generator(1)).total + loss(gated, x, 2)).backward()

    def plain(gated: Gated, x: Tensor) -> None:
        (loss(gated, x, 1) + loss(gated, x, 2)).backward()

    came = result(whole, execution, Checkpointed(reentrant, depth))
    expected = result(plain, execution, Checkpointed(None))
    assert_close(came, expected, rtol=1e-12, atol=1e-12)


@executions
@checkpointings
def test_the_dense_model_is_recomputed_dense(reentrant: bool, execution: str) -> None:
    def dense_after_a_loss(gated: Gated, x: Tensor) -> None:
        loss(gated, x, 1).backward()
        gated.zero_grad(set_to_none=False)
        gated.model(x).square().mean().backward()

    came = result(dense_after_a_loss, execution, Checkpointed(reentrant))
    expected = result(dense_after_a_loss, execution, Checkpointed(None))
    for key in ("model.a.weight", "model.b.weight", "model.norm.weight"):
        assert_close(came[key], expected[key], rtol=1e-12, atol=1e-12)


def test_a_pass_too_long_ago_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputation, "REMEMBERED", 2)
    gated = sparsify(Checkpointed(False), [GROUP], "l0-arm", lam=0.1)
    total = loss(gated, torch.randn(8, 4), 1)
    for seed in range(3):
        loss(gated, torch.randn(8, 4), seed)
    with pytest.raises(RuntimeError, match=r"no longer known; call backward\(\) sooner"):
        total.backward()


class Numbering(Checkpointed):
    """Makes a node of its own also without gradients, as checkpoints of torch 2.10 do."""

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        with torch.enable_grad():
            self.a.weight.sum()
        return super().forward(x, depth)


@pytest.mark.parametrize("kind", [Checkpointed, Numbering])
def test_passes_without_gradients_are_forgotten_first(kind: type[Checkpointed]) -> None:
    gated = sparsify(kind(False), [GROUP], "l0-arm", lam=0.1)
    total = loss(gated, torch.randn(8, 4), 1)
    with torch.no_grad():
        for _ in range(2 * recomputation.REMEMBERED):
            gated(torch.randn(8, 4))
    total.backward()
    assert gated.phi.grad is not None


@executions
@checkpointings
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # the second pass
def test_one_checkpointed_block_of_a_wide_resnet_changes_nothing(
    reentrant: bool, execution: str, network: Any
) -> None:
    net = network("wrn")

    def after_a_loss(use_checkpoint: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        gated = net.gated(execution=execution)
        block = gated.model.blocks[1]
        forward = block.forward
        if use_checkpoint:
            block.forward = lambda x: checkpoint(forward, x, use_reentrant=reentrant)
        loss = gated.loss(lambda: F.cross_entropy(gated(net.x), net.y), generator(1))
        loss.total.backward()
        return {k: p.grad for k, p in gated.named_parameters()} | dict(gated.named_buffers())

    assert_close(after_a_loss(True), after_a_loss(False), rtol=1e-12, atol=1e-12)
