"""Weights that a forward reads without calling the module that holds them."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.cut_networks import check_cut, described, doubled
from torch import Tensor, nn

from l0arm import plan, sparsify


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


class GatedNorm(nn.Module):
    """An RMSNorm over the heads of every group, of the product with a gate."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.rand(width)), 1e-5
        self.group_size = width // groups

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        x = x if gate is None else x * F.silu(gate)
        y = x.view(*x.shape[:-1], x.shape[-1] // self.group_size, self.group_size)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * y.reshape(x.shape)


class HeadedScan(nn.Module):
    """As Mamba2 writes it: heads share keys by groups, and a convolution is read by F.conv1d."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.n_groups, self.state_size = 6, 2, groups, 3
        self.inner_size = 12
        self.conv_dim = 12 + 2 * groups * 3
        self.in_proj = nn.Linear(6, 12 + self.conv_dim + 6)
        self.conv1d = nn.Conv1d(self.conv_dim, self.conv_dim, 3, groups=self.conv_dim)
        self.decay, self.skip = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(6))
        self.norm, self.out = GatedNorm(12, groups), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        sizes = [self.inner_size, self.conv_dim, self.num_heads]
        gate, mixed, step = self.in_proj(x).split(sizes, dim=-1)
        weight, width = self.conv1d.weight.squeeze(1), mixed.shape[-1]
        mixed = F.pad(mixed.transpose(1, 2), (2, 0))
        mixed = F.silu(F.conv1d(mixed, weight.unsqueeze(1), self.conv1d.bias, groups=width))
        part = self.n_groups * self.state_size
        y, keys, queries = mixed.transpose(1, 2).split([self.inner_size, part, part], dim=-1)
        return self.out(self.norm(self._scanned(y, keys, queries, step), gate))

    def _scanned(self, y: Tensor, keys: Tensor, queries: Tensor, step: Tensor) -> Tensor:
        by_group = (*y.shape[:2], self.n_groups, self.state_size)
        y = y.view(*y.shape[:2], self.num_heads, self.head_dim)
        heads, times = y.shape[2], y.shape[2] // self.n_groups
        keys = keys.view(by_group).repeat_interleave(times, dim=2, output_size=heads)
        queries = queries.view(by_group).repeat_interleave(times, dim=2, output_size=heads)
        past = (F.softplus(step) * -F.softplus(self.decay)).cumsum(1).exp()
        scores = torch.einsum("bihn,bjhn->bhij", queries, keys).tril()
        scores = scores * past.transpose(1, 2).unsqueeze(2)
        mixed = torch.einsum("bhij,bjhd->bihd", scores, y) + self.skip[:, None] * y
        return mixed.contiguous().reshape(*y.shape[:2], -1)


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


@pytest.mark.parametrize(("groups", "units"), [(1, 6), (2, 2)])
def test_heads_of_a_scan_pass_their_norm(groups: int, units: int) -> None:
    """With one group, the norm over all heads goes on dividing by their number; of several groups,
    whole ones are units. Keys that all heads share have no place for a head: any of them can go.
    """
    torch.manual_seed(0)
    model, inputs = doubled(Net(HeadedScan(groups)), torch.randn(2, 4, 5))
    found = check_cut(model, inputs, plan(model, inputs, stream=True))
    assert described(found)["inner.in_proj"] == f"{units} patched"
    group = next(group for group in found.groups if group.name == "inner.in_proj")
    assert [norm.module for norm in group.norms] == (["inner.norm"] if groups == 1 else [])
    assert {loan.tensor for loan in group.borrows} == {"inner.conv1d.weight", "inner.conv1d.bias"}


def test_the_dense_weights_are_back_after_a_call() -> None:
    torch.manual_seed(0)
    model, (x,) = doubled(Net(Both()), torch.randn(2, 4, 5))
    gated = sparsify(model, example_inputs=x, method="l0-arm", lam=0.0).double()
    before = gated.model.inner.up.weight
    gated.phi.data[:4] = -9.0
    gated(x)
    assert gated.model.inner.up.weight is before
    assert gated.engine.lent == set()
