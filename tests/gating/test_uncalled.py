"""A cut tensor whose module is never called: the gates might not be seen, so the user is told."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Group, Slice, sparsify


class Borrowed(nn.Module):
    """Uses ``b.weight`` without calling ``b``."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.a(x), self.b.weight)


def test_a_warning_names_the_tensor_once():
    group = Group("hidden", 4, reads=(Slice("b.weight", 1),), initial=0.99)
    gated = sparsify(Borrowed(), [group], lam=0.0)
    with pytest.warns(UserWarning, match=r"cut 'b.weight', but .* did not call the modules"):
        gated(torch.rand(1, 3))
    gated(torch.rand(1, 3))  # warnings are errors here: none the second time
    assert gated.engine.current is None
