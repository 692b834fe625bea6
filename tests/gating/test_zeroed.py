"""A group whose units nobody can stop sending: zeroed where they are read, nothing dropped."""

import pytest
import torch

from l0arm import Gated, Group, HardSigmoid, Slice, sparsify
from l0arm.models import MLP


@pytest.fixture
def gated() -> Gated:
    reads_only = Group("inputs", 4, reads=(Slice("fc1.weight", 1),))
    hidden = Group(
        "hidden",
        3,
        reads=(Slice("fc2.weight", 1),),
        makes=(Slice("fc1.weight", 0), Slice("fc1.bias", 0)),
    )
    return sparsify(MLP((4, 3, 2)), [reads_only, hidden], lam=0.0, gate=HardSigmoid())


def test_closed_units_are_zeroed(gated: Gated) -> None:
    x = torch.rand(5, 4)
    with gated.drawn(torch.tensor([1.0, 0, 1, 0, 1, 0, 1])):
        out = gated(x)
    model = gated.model
    hidden = torch.relu(model.fc1(x * torch.tensor([1.0, 0, 1, 0]))) * torch.tensor([1.0, 0, 1])
    assert torch.allclose(out, model.fc2(hidden), atol=1e-6)


def test_compaction_keeps_their_columns_as_zeros(gated: Gated) -> None:
    gated.phi.data = torch.tensor([1.0, -1, 1, -1, 1, -1, 1])
    small, x = gated.eval().compact(), torch.rand(5, 4)
    assert small.fc1.weight.shape == (2, 4)
    assert small.fc1.weight[:, [1, 3]].count_nonzero() == 0
    assert torch.allclose(small(x), gated(x), atol=1e-6)


def test_a_closure_that_never_calls_the_model_is_refused(gated: Gated) -> None:
    gated.phi.data.fill_(1.0)
    logits = gated(torch.rand(5, 4))
    with pytest.raises(ValueError, match=r"did not call the gated model.*inside it"):
        gated.loss(lambda: logits.sum())
