"""Copies of models that hold what torch will not copy."""

import threading

import pytest
import torch
from torch import Tensor, nn

import l0arm
from l0arm.gating.cutting import copy_model


class Keeps(nn.Module):
    """Keeps an activation, alone and inside other things."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.last: Tensor | None = None
        self.history: list[dict[str, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.relu(self.a(x))
        self.history = [{"last": self.last}]
        out: Tensor = self.b(self.last)
        return out


def test_a_kept_activation_is_detached_in_the_copy() -> None:
    model, x = Keeps(), torch.randn(3, 4)
    model(x)
    last = model.last
    assert last is not None
    twin = copy_model(model)
    assert twin.last is not None
    assert twin.last.is_leaf
    assert not twin.last.requires_grad
    assert torch.equal(twin.last, last)
    assert twin.history[0]["last"] is twin.last
    assert twin.last.data_ptr() != last.data_ptr()
    assert model.last is last
    assert last.requires_grad
    assert all(p.requires_grad for p in twin.parameters())


def test_shared_objects_are_not_copied() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.config = config = {"a": 1}  # type: ignore[assignment]
    assert copy_model(model).config == config
    assert copy_model(model).config is not config
    assert copy_model(model, {id(config): config}).config is config


@pytest.mark.parametrize("method", ["l0-arm", "l0-disarm", "l0-hc"])
def test_a_model_that_keeps_an_activation_goes_the_whole_way(method: str) -> None:
    model, x = Keeps(), torch.randn(3, 4)
    model(x)
    gated = l0arm.sparsify(model, example_inputs=x, method=method, lam=1e-3)
    gated.loss(lambda: gated(x).square().mean()).total.backward()
    gated.phi.data = torch.tensor([9.0, -9.0] * 4)
    gated.eval()
    gated(x).sum().backward()
    small = gated.compact()
    assert small.a.out_features == 4
    assert torch.allclose(small(x), gated(x), atol=1e-6)


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize("held", [threading.Lock(), [threading.Lock()], Holder()])
def test_what_cannot_be_copied_is_named(held: object) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU()), nn.Linear(8, 2))
    model[1].guard = held
    message = r"Sequential cannot be copied because of '1\.guard'.*cannot pickle '_thread\.lock'"
    with pytest.raises(ValueError, match=message) as caught:
        copy_model(model)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(l0arm.planning.PlanError, match=message):
        l0arm.plan(model, torch.randn(1, 4))


def test_a_lock_is_named_at_compaction_and_the_gates_stay() -> None:
    model = l0arm.models.MLP((4, 3, 2))
    model.guard = threading.Lock()  # type: ignore[assignment]
    gated = l0arm.sparsify(model, lam=0.0)
    with pytest.raises(ValueError, match=r"MLP cannot be copied because of 'guard'"):
        gated.compact()
    assert gated.engine.attached
