"""How groups are executed: attributes that count heads stay true after compaction."""

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
