"""gated.check: dropping equals zeroing, or the group that breaks it is named."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm import CertificateError, Gated, Group, Slice, plan, sparsify
from l0arm.models import MLP, LeNet5, WideResNet


def between(*layers: nn.Module) -> Gated:
    """16 hidden units with something between their producer and their reader."""
    model = nn.Sequential(nn.Linear(8, 16), *layers, nn.Linear(16, 3))
    group = Group(
        "hidden",
        16,
        reads=(Slice(f"{len(model) - 1}.weight", 1),),
        makes=(Slice("0.weight", 0), Slice("0.bias", 0)),
    )
    return sparsify(model, [group], lam=0.0)


@pytest.mark.parametrize(
    ("model", "shape"),
    [(MLP(), (4, 784)), (LeNet5(), (4, 1, 28, 28)), (WideResNet(10, 1), (2, 3, 32, 32))],
)
def test_the_networks_of_the_paper_pass(model, shape):
    gated = sparsify(model, lam=0.0)
    before = {name: value.clone() for name, value in gated.state_dict().items()}
    assert gated.check(torch.rand(shape)) < 1e-5
    assert gated.training
    assert gated.execution == "sliced"
    assert all(torch.equal(value, before[name]) for name, value in gated.state_dict().items())


@pytest.mark.parametrize("mixing", [nn.GroupNorm(1, 16, affine=False), nn.Softmax(-1)])
def test_what_mixes_units_is_found(mixing):
    with pytest.raises(ValueError, match=r"group 'hidden' changes the output .*mixes units"):
        between(nn.ReLU(), mixing).check(torch.randn(32, 8))


def test_what_acts_on_each_unit_alone_passes():
    assert between(nn.ReLU(), nn.Dropout(0.5), nn.Tanh()).check(torch.randn(32, 8)) < 1e-5


def test_a_wrong_order_of_flattening_is_found():
    class ChannelsLast(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(16, 3)

        def forward(self, x):
            return self.fc(self.conv(x).permute(0, 2, 3, 1).flatten(1))

    makes = (Slice("conv.weight", 0), Slice("conv.bias", 0))
    group = Group("filters", 4, reads=(Slice("fc.weight", 1, block=4),), makes=makes)
    with pytest.raises(ValueError, match=r"Slice.block or .index does not fit"):
        sparsify(ChannelsLast(), [group], lam=0.0).check(torch.randn(2, 1, 4, 4))


def test_a_forgotten_tensor_is_hinted_at():
    gated = between(nn.BatchNorm1d(16))
    with pytest.raises(RuntimeError) as caught:
        gated.check(torch.randn(32, 8))
    assert "'hidden' 15 of 16 units" in caught.value.__notes__[0]
    assert "running_mean" in caught.value.__notes__[0]


def test_half_precision_does_not_hide_a_mixing_layer():
    gated = between(nn.ReLU(), nn.GroupNorm(1, 16, affine=False)).bfloat16()
    with pytest.raises(ValueError, match="mixes units"):
        gated.check(torch.randn(32, 8).bfloat16())


def test_outputs_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not finite and cannot be compared"):
        between(nn.ReLU()).check(torch.full((4, 8), torch.nan))


@dataclass
class Answer:
    """Unknown to torch.export and its trees."""

    logits: Tensor
    note: str = "nothing to compare"


class Known:
    """Registered with torch, not a dataclass."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


pytree.register_pytree_node(
    Known,
    lambda known: ([known.logits], None),
    lambda leaves, _: Known(*leaves),
    flatten_with_keys_fn=lambda known: ([(pytree.GetAttrKey("logits"), known.logits)], None),
)


class Counting(nn.Module):
    """Divides by the number of its units: dropping one is not zeroing it."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.wrap = nn.Linear(4, 8), nn.Linear(8, 2), wrap

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.a(x))
        return self.wrap(self.b(h / h.shape[1]))


def counting(wrap: Callable[[Tensor], Any]) -> Gated:
    makes = (Slice("a.weight", 0), Slice("a.bias", 0))
    group = Group("hidden", 8, reads=(Slice("b.weight", 1),), makes=makes)
    return sparsify(Counting(wrap), [group], lam=0.0)


WRAPS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda y: y,
    "dataclass": Answer,
    "in a list": lambda y: [{"out": Answer(y)}],
    "class registered with torch": Known,
    "complex": lambda y: torch.complex(y, y),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_outputs_of_any_kind_are_compared(wrap: Callable[[Tensor], Any]) -> None:
    with pytest.raises(ValueError, match="group 'hidden' changes the output"):
        counting(wrap).check(torch.randn(3, 4))


@pytest.mark.parametrize("wrap", [SimpleNamespace, lambda y: y.argmax(1), lambda y: y[:0]])
def test_an_output_with_nothing_to_compare_is_refused(wrap: Callable[..., Any]) -> None:
    gated = counting(lambda y: wrap(y=y) if wrap is SimpleNamespace else wrap(y))
    with pytest.raises(ValueError, match="no number that could be compared"):
        gated.check(torch.randn(3, 4))


def test_an_output_that_loses_units_is_found() -> None:
    makes = (Slice("0.weight", 0), Slice("0.bias", 0))
    group = Group("out", 8, reads=(Slice("1.weight", 1),), makes=makes)

    class Both(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            h = self[0](x)
            return {"logits": self[1](h), "hidden": h}

    gated = sparsify(Both(nn.Linear(4, 8), nn.Linear(8, 2)), [group], lam=0.0)
    with pytest.raises(ValueError, match="group 'out' changes the output by inf"):
        gated.check(torch.randn(3, 4))
    gated.outputs = ("logits",)
    assert gated.check(torch.randn(3, 4)) < 1e-5


class Forbidding(nn.Module):
    """Some choices are ruled out by a fill value; the hidden units may be mixed by their mean."""

    def __init__(self, fill: float, *, mixes: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 6)
        self.mixes, self.fill = mixes, fill

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        y = self.last(h - h.mean(-1, keepdim=True) if self.mixes else h)
        return y.masked_fill(torch.arange(6) > 3, self.fill)


HIDDEN = Group(
    "hidden",
    16,
    reads=(Slice("last.weight", 1),),
    makes=(Slice("first.weight", 0), Slice("first.bias", 0)),
)


@pytest.mark.parametrize("fill", [-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf])
def test_fill_values_do_not_hide_a_mixing_layer(fill: float):
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    gated = sparsify(Forbidding(fill, mixes=True), [HIDDEN], lam=0.0)
    with pytest.raises(ValueError, match="mixes units"):
        gated.check(x)
    with pytest.raises(CertificateError, match="because of group 'hidden'"):
        gated.compact(example_inputs=x)
    gated = sparsify(Forbidding(fill, mixes=False), [HIDDEN], lam=0.0)
    assert gated.check(x) < 1e-5
    (entry,) = plan(Forbidding(fill, mixes=False), x).planned
    assert entry.execution == "as is"


@pytest.mark.parametrize("fill", [-1e5, -1e9, torch.finfo(torch.float32).min])
def test_a_single_fill_value_hides_nothing(fill: float):
    """One row, one choice that is ruled out."""

    class OneChoice(Forbidding):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, :5]

    torch.manual_seed(0)
    x = torch.randn(1, 8)
    gated = sparsify(OneChoice(fill, mixes=True), [HIDDEN], lam=0.0)
    with pytest.raises(ValueError, match="mixes units"):
        gated.check(x)
    with pytest.raises(CertificateError, match="because of group 'hidden'"):
        gated.compact(example_inputs=x)
    assert sparsify(OneChoice(fill, mixes=False), [HIDDEN], lam=0.0).check(x) < 1e-5


def test_a_forward_that_writes_into_its_input_is_compared_on_the_same_input():
    class Centering(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.sub_(0.5))

    torch.manual_seed(0)
    model = Centering(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    hidden = Group(
        "hidden", 8, reads=(Slice("2.weight", 1),), makes=(Slice("0.weight", 0), Slice("0.bias", 0))
    )
    x = torch.rand(3, 4)
    before = x.clone()
    assert sparsify(model, [hidden], lam=0.0).check(x) < 1e-5
    assert torch.equal(x, before)
