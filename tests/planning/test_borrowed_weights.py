"""Weights that a forward reads without calling the module that holds them."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.cut_networks import check_cut, described, doubled
from torch import Tensor, nn

from l0arm import sparsify


class Scan(nn.Module):
    """As Mamba writes it: a projection by its weight alone, a convolution by F.conv1d."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.rank = nn.Linear(6, 8), nn.Linear(8, 3)
        self.conv1d = nn.Conv1d(8, 8, 3, groups=8, padding=2)
        self.dt_proj, self.out = nn.Linear(3, 8), nn.Linear(8, 6)
        self.decay = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x).transpose(1, 2)
        y = F.conv1d(y, self.conv1d.weight, self.conv1d.bias, padding=2, groups=y.shape[1])
        y = F.silu(y[..., : x.shape[1]]).transpose(1, 2)
        step = F.softplus(self.rank(y) @ self.dt_proj.weight.t() + self.dt_proj.bias)
        return self.out(y * torch.exp(-step * F.softplus(self.decay)))


class Window(nn.Module):
    """As torchvision's Swin: a function is given all weights; positions have a bias per head."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.qkv, self.proj = nn.Linear(6, 18), nn.Linear(6, 6)
        self.table = nn.Parameter(torch.rand(7, 3))
        self.register_buffer("index", (torch.arange(4)[:, None] - torch.arange(4) + 3).view(-1))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.table[self.index].view(4, 4, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        return (
            windowed(x, self.qkv.weight, self.qkv.bias, self.proj.weight, bias, self.num_heads)
            + self.proj.bias
        )


def windowed(
    x: Tensor, qkv: Tensor, shift: Tensor, proj: Tensor, bias: Tensor, heads: int
) -> Tensor:
    b, n, c = x.shape
    y = F.linear(x, qkv, shift).reshape(b, n, 3, heads, c // heads)
    q, k, v = y.permute(2, 0, 3, 1, 4)
    y = ((q @ k.mT) * (c // heads) ** -0.5 + bias).softmax(-1) @ v
    return F.linear(y.transpose(1, 2).reshape(b, n, c), proj)


class Both(nn.Module):
    """The same weight, by a call of its module and by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        once = self.down(F.relu(self.up(x)))
        return self.down(F.relu(F.linear(once, self.up.weight, self.up.bias)))


class Net(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.inner = nn.Linear(5, 6), nn.LayerNorm(6), inner
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x + self.inner(self.norm(x)))


@pytest.mark.parametrize(
    ("kind", "group"),
    [(Scan, "inner.inner: 8"), (Window, "inner: 3"), (Both, "inner.up: 8")],
)
def test_units_of_borrowed_weights_are_cut(kind: type[nn.Module], group: str) -> None:
    torch.manual_seed(0)
    model, inputs = doubled(Net(kind()), torch.randn(2, 4, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no word of tensors whose module was not called
        found = check_cut(model, inputs)
    name, _, units = group.partition(": ")
    assert described(found)[name] in (f"{units} as is", f"{units} patched")


def test_the_dense_weights_are_back_after_a_call() -> None:
    torch.manual_seed(0)
    model, (x,) = doubled(Net(Both()), torch.randn(2, 4, 5))
    gated = sparsify(model, example_inputs=x, method="l0-arm", lam=0.0).double()
    before = gated.model.inner.up.weight
    gated.phi.data[:4] = -9.0
    gated(x)
    assert gated.model.inner.up.weight is before
    assert gated.engine.lent == set()
