"""Queries, keys and values of one projection, of several sizes; attention of torch itself."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.cut_networks import check_cut, described, doubled
from torch import Tensor, nn

from l0arm import PlanError, plan


class Fused(nn.Module):
    """Four heads of queries and two of keys and values, taken from one projection."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.size, self.sizes = by, 3, [12, 6, 6]
        self.first, self.norm = nn.Linear(5, 12), nn.LayerNorm(12)
        self.qkv, self.proj, self.head = nn.Linear(12, 24), nn.Linear(12, 12), nn.Linear(12, 4)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.by == "sizes":
            return x.split(self.sizes, dim=-1)
        width = 4 * self.size
        if self.by == "slices":
            return x[..., :width], x[..., width : width + 6], x[..., width + 6 :]
        return torch.split(x, split_size_or_sections=[12, 6, 6], dim=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        shape = (*x.shape[:-1], -1, self.size)
        q, k, v = (y.view(shape).transpose(1, 2) for y in self.parts(self.qkv(self.norm(x))))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.head(x + self.proj(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("by", ["sizes", "slices", "keywords"])
def test_heads_with_their_keys_and_values_are_one_unit(by: str) -> None:
    torch.manual_seed(0)
    found = check_cut(*doubled(Fused(by), torch.randn(2, 4, 5)))
    assert described(found) == {"qkv": "2 patched"}


class Attention(nn.Module):
    """``nn.MultiheadAttention`` between two linear layers."""

    def __init__(self, weights: bool = False, other: int | None = None, **options: Any) -> None:
        super().__init__()
        self.weights = weights
        self.first, self.last = nn.Linear(5, 12), nn.Linear(12, 3)
        self.inner = nn.MultiheadAttention(12, 3, kdim=other, vdim=other, **options)
        self.other = nn.Linear(5, other) if other else None

    def forward(self, x: Tensor) -> Tensor:
        q = self.first(x)
        k = q if self.other is None else self.other(x)
        return self.last(q + self.inner(q, k, k, need_weights=self.weights)[0])


@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"batch_first": False},
        {"batch_first": True, "bias": False},
        {"batch_first": True, "other": 7},
        {"batch_first": False, "other": 7, "bias": False, "weights": True},
        {"batch_first": True, "weights": True},
    ],
    ids=str,
)
def test_heads_of_torch_attention_are_cut_in_every_layout(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    found = check_cut(*doubled(Attention(**options), torch.randn(2, 4, 5)))
    assert "3 replaced" in described(found).values()


def test_heads_of_a_sequence_without_batch_are_cut() -> None:
    torch.manual_seed(0)
    found = check_cut(*doubled(Attention(), torch.randn(4, 5)))
    assert "3 replaced" in described(found).values()


def test_attention_that_adds_keys_stays_and_says_why() -> None:
    with pytest.raises(PlanError, match=r"inner: 'inner' is attention .* replaced \(bias_k"):
        plan(Attention(add_bias_kv=True), torch.randn(2, 4, 5))
