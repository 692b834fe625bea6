"""A loss that is not finite leaves everything as it was; a Loss can be sent backward itself."""

import pytest
import torch
import torch.nn.functional as F

from l0arm import NonFiniteLoss, sparsify
from l0arm.models import MLP, WideResNet


def test_a_nan_batch_leaves_the_running_statistics_alone():
    gated = sparsify(WideResNet(10, 1), lam=0.0)
    before = {name: value.clone() for name, value in gated.state_dict().items()}
    x, y = torch.full((2, 3, 32, 32), torch.nan), torch.tensor([0, 1])
    with pytest.raises(NonFiniteLoss, match="the data loss is nan; parameters and buffers"):
        gated.loss(lambda: F.cross_entropy(gated(x), y))
    assert all(torch.equal(value, before[name]) for name, value in gated.state_dict().items())


def test_a_tensor_in_place_of_a_closure_is_refused():
    gated = sparsify(MLP((40, 30, 2)), lam=0.1)
    with pytest.raises(TypeError, match=r"takes a function .*got Tensor; write gated.loss\(lambda"):
        gated.loss(gated(torch.rand(1, 40)).sum())


def test_backward_of_a_loss_is_that_of_its_total():
    gated = sparsify(MLP((40, 30, 2)), lam=0.1)
    x, grads = torch.rand(3, 40), []
    for send in (lambda loss: loss.backward(), lambda loss: loss.total.backward()):
        gated.zero_grad()
        send(gated.loss(lambda: gated(x).sum(), torch.Generator().manual_seed(0)))
        grads.append(gated.phi.grad.clone())
    assert torch.equal(*grads)


def test_phi_is_saved_by_group_and_loaded_by_name():
    model = MLP((4, 3, 2))
    gated = sparsify(model, lam=0.1)
    saved = gated.state_dict()
    assert saved["phi.fc2"].shape == (3,)
    other = sparsify(MLP((4, 3, 2)), model.groups()[::-1], lam=0.1)
    other.load_state_dict(saved)
    assert torch.equal(other.per_group(other.phi)["fc1"], gated.per_group(gated.phi)["fc1"])
    assert torch.equal(other.phi[:3], gated.phi[4:])


def test_phi_of_other_groups_is_refused():
    saved = sparsify(MLP((4, 3, 2)), lam=0.1).state_dict()
    saved["phi.other"] = saved.pop("phi.fc1")
    with pytest.raises(RuntimeError, match="phi"):
        sparsify(MLP((4, 3, 2)), lam=0.1).load_state_dict(saved)


def test_a_nan_in_the_second_evaluation_puts_the_buffers_back_too():
    gated = sparsify(WideResNet(10, 1), method="l0-arm", lam=0.0)
    before = {name: value.clone() for name, value in gated.state_dict().items()}
    x, calls = torch.rand(2, 3, 32, 32), []

    def closure():
        calls.append(len(calls))
        return gated(x).sum() * (1.0 if len(calls) == 1 else torch.nan)

    with pytest.raises(NonFiniteLoss):
        gated.loss(closure)
    assert calls == [0, 1]
    assert all(torch.equal(value, before[name]) for name, value in gated.state_dict().items())


def test_the_gradient_of_phi_stays_in_float32_with_phi():
    gated = sparsify(MLP((40, 30, 2)), lam=0.1)
    x = torch.rand(3, 40)
    gated.loss(lambda: gated(x).sum()).backward()
    gated.bfloat16()
    assert gated.phi.dtype == gated.phi.grad.dtype == torch.float32
