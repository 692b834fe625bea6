"""Constants and inputs in sums and products with units: what meets closed units is left out."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.cut_networks import check_cut, described, doubled
from torch import Tensor, nn


class Slopes(nn.Module):
    """As Bloom: distances times a slope for each head, heads in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.size = 3, 2
        self.qkv, self.proj = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        slopes = 2.0 ** -torch.arange(1.0, 4.0).to(x)
        bias = (slopes[:, None, None] * torch.arange(n).to(x)).repeat(b, 1, 1)
        q, k, v = self.qkv(x).view(b, n, self.heads, 3, self.size).unbind(3)
        q, k, v = (t.transpose(1, 2).reshape(b * self.heads, n, self.size) for t in (q, k, v))
        scores = bias.baddbmm(batch1=q, batch2=k.mT, beta=0.5, alpha=0.7).softmax(-1)
        y = (scores @ v).view(b, self.heads, n, self.size).transpose(1, 2)
        return self.proj(y.reshape(b, n, self.heads * self.size))


class Biases(nn.Module):
    """As LeViT: a learned bias per head and distance."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 3
        self.qkv, self.proj = nn.Linear(6, 18), nn.Linear(6, 6)
        self.biases = nn.Parameter(torch.rand(3, 7))
        self.register_buffer("index", torch.arange(4)[:, None] - torch.arange(4) + 3)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = (q @ k.mT + self.biases[:, self.index]).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class Recurrence(nn.Module):
    """As Mamba: a state that starts as zeros, at a size written in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.rate, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)
        self.width = 8

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), self.width).to(x)
        for step in range(x.shape[1]):
            state = self.rate(x[:, step]).sigmoid() * state + self.up(x[:, step])
        return self.down(state).unsqueeze(1)


class Net(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.inner = nn.Linear(5, 6), nn.LayerNorm(6), inner
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x + self.inner(self.norm(x)))


class Inputs(nn.Module):
    """An input is added to units, and another multiplied with them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.c(F.relu(self.b(x + self.a(x))) * mask)


def sequence() -> Tensor:
    return torch.randn(2, 4, 5)


@pytest.mark.parametrize(
    ("kind", "group"),
    [(Slopes, "inner.qkv: 3"), (Biases, "inner: 3"), (Recurrence, "inner.up: 8")],
)
def test_units_that_meet_constants_are_cut(kind: Callable[[], nn.Module], group: str) -> None:
    torch.manual_seed(0)
    found = check_cut(*doubled(Net(kind()), sequence()))
    name, _, units = group.partition(": ")
    assert described(found)[name] in (f"{units} as is", f"{units} patched")


def test_units_that_meet_inputs_are_cut() -> None:
    torch.manual_seed(0)
    found = check_cut(*doubled(Inputs(), torch.randn(3, 5), torch.rand(3, 6)))
    assert described(found) == {"a": "5 as is", "b": "6 as is"}
    assert [len(group.picks) for group in found.groups] == [1, 1]


def test_a_mask_that_is_the_same_for_all_units_meets_nothing() -> None:
    torch.manual_seed(0)
    found = check_cut(*doubled(Inputs(), torch.randn(3, 5), torch.rand(3, 1)))
    assert [len(group.picks) for group in found.groups] == [1, 0]
