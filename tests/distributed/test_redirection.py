"""A loss inside a wrapper around the gated model; the model is as before afterwards."""

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.workers import gated_network
from torch import Tensor, nn

from l0arm.distributed.redirection import loss_through, unwrapped


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.inside = module, False

    def forward(self, *args: Tensor) -> object:
        self.inside = True
        try:
            return self.module(*args)
        finally:
            self.inside = False


def test_the_closure_runs_inside_the_wrapper_and_gives_the_same_loss() -> None:
    gated = gated_network()
    wrapper, seen = Wrapper(gated), []
    x, y = torch.rand(4, 1, 6, 6), torch.arange(4) % 3

    def closure() -> Tensor:
        seen.append(wrapper.inside)
        return F.cross_entropy(gated(x), y)

    torch.manual_seed(1)
    loss = loss_through(wrapper, gated, closure)
    torch.manual_seed(1)
    assert torch.equal(loss.total, gated_again(x, y))
    assert seen == [True, True]
    assert not loss.data.requires_grad
    assert "forward" not in vars(gated)


def gated_again(x: Tensor, y: Tensor) -> Tensor:
    gated = gated_network()
    torch.manual_seed(1)
    return gated.loss(lambda: F.cross_entropy(gated(x), y)).total


def test_a_forward_of_the_trainers_own_is_used_and_kept() -> None:
    gated = gated_network()
    calls, original = [], gated.forward
    gated.forward = own = lambda *args: calls.append(args) or original(*args)
    x = torch.rand(4, 1, 6, 6)
    loss_through(gated, gated, lambda: gated(x).square().mean()).total.backward()
    assert len(calls) == 2
    assert vars(gated)["forward"] is own


def test_the_model_is_put_back_when_the_loss_fails() -> None:
    gated = gated_network()
    with pytest.raises(ZeroDivisionError):
        loss_through(gated, gated, lambda: 1 / 0)
    assert "forward" not in vars(gated)


def test_unwrapped_looks_inside_wrappers() -> None:
    gated = gated_network()
    assert unwrapped(Wrapper(Wrapper(gated))) is gated
    with pytest.raises(TypeError, match="expected a Gated, bare or wrapped, got Linear"):
        unwrapped(nn.Linear(1, 1))
