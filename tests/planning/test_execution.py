"""How groups are executed: attributes that count heads stay true after compaction."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.plans import Network
from torch import Tensor, nn

from l0arm import Patch, sparsify
from l0arm.planning import plan


class Attention(nn.Module):
    """Heads found by their size. The forward does not use the attributes that count them."""

    def __init__(self, forward_uses_it: bool) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.all_head_size = 4, 2, 8
        self.n_heads = 4  # the forward may use it as a scale, not as a count
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.uses_it = forward_uses_it

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).view(*x.shape[:2], -1, self.head_size).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.o(out) / (self.n_heads if self.uses_it else 4)


@pytest.mark.parametrize("forward_uses_it", [False, True])
def test_counters_are_kept_true_unless_that_changes_a_value(forward_uses_it: bool) -> None:
    model = Attention(forward_uses_it)
    found = plan(model, torch.rand(2, 3, 8))
    assert [entry.execution for entry in found.planned] == ["as is"]
    if forward_uses_it:  # patched, n_heads would change the scale
        assert found.groups[0].patches == ()
        return
    names = {(p.attribute, p.per_unit) for p in found.groups[0].patches}
    assert names == {("num_heads", 1), ("n_heads", 1), ("all_head_size", 2)}
    gated = sparsify(model, found, "l0-arm", lam=0.0)
    gated.phi.data = torch.tensor([9.0, -9.0, 9.0, 9.0])
    small: Any = gated.compact()
    assert (small.num_heads, small.all_head_size, small.head_size) == (3, 6, 2)
    assert (model.num_heads, model.all_head_size) == (4, 8)


def test_a_patch_that_is_there_is_not_added_again(network: Network) -> None:
    found = plan(*network("attention, counted view"))
    assert found.planned[0].execution == "patched"
    assert found.groups[0].patches.count(Patch("attention", "heads", 1)) == 1


class Window(nn.Module):
    """Attention to near positions only. The window is as wide as all heads together."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.heads, self.window = 16, 2, 16
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.heads, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        i = torch.arange(n)
        near = (i[:, None] - i).abs() < self.window
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        return self.o(y.transpose(1, 2).reshape(b, n, self.embed))


def test_an_attribute_that_has_the_value_of_a_size_by_chance_stays() -> None:
    """On eight positions a window of 8 changes nothing. On 40 it does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Window(), nn.Linear(16, 3)).double()
    x = torch.randn(2, 8, 8, dtype=torch.float64)
    found = plan(model, x)
    (heads,) = [group for group in found.groups if group.name == "1.q"]
    assert {(p.attribute, p.per_unit) for p in heads.patches} == {("heads", 1), ("embed", 8)}
    zeroed = copy.deepcopy(model).eval()
    zeroed[1].o.weight.data[:, :8] = 0.0
    gated = sparsify(model, found, "l0-arm", lam=0.0)
    gated.phi.data.fill_(9.0)
    gated.per_group(gated.phi.data)["1.q"][0] = -9.0
    x = torch.randn(2, 40, 8, dtype=torch.float64)
    torch.testing.assert_close(gated.compact().eval()(x), zeroed(x), rtol=1e-12, atol=1e-12)
