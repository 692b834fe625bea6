"""Large weights that act as float64 without a copy in float64."""

import copy

import pytest
import torch
from torch import nn

from l0arm.equality import widened
from l0arm.equality.example import Example
from l0arm.equality.scratch import ScratchModel
from l0arm.equality.widened import Widened, put_back, widen_large
from l0arm.planning import plan


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc, self.out = nn.Embedding(9, 4), nn.Linear(4, 6), nn.Linear(6, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.out(torch.relu(self.fc(self.embed(ids)))))


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widened, "LAZY_FROM", 0)
    monkeypatch.setattr(widened, "LARGE", 4)


def test_values_are_those_of_a_cast_model() -> None:
    model, ids = Tied(), torch.arange(6).view(2, 3)
    expected = copy.deepcopy(model).double()(ids)
    scratch = ScratchModel(model, Example((ids,)))
    assert scratch.dtype == torch.float64
    assert isinstance(model.fc.weight, Widened)
    assert model.head.weight is model.embed.weight
    torch.testing.assert_close(scratch.first["0"], expected, rtol=1e-14, atol=0)


def test_put_back_gives_the_own_weights() -> None:
    model = Tied()
    own = list(model.parameters())
    put_back(model, widen_large(model))
    assert all(one is other for one, other in zip(model.parameters(), own, strict=True))


def test_writing_into_such_a_weight_raises() -> None:
    with pytest.raises(TypeError, match="write into a weight"):
        Widened(torch.ones(2)).add_(1.0)


def test_the_plan_of_a_large_model_is_that_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = Tied(), torch.arange(6).view(2, 3)
    large = plan(model, ids)
    monkeypatch.setattr(widened, "LAZY_FROM", 10**9)
    assert large == plan(model, ids)
    assert [entry.execution for entry in large.planned] == ["as is"] * len(large.planned)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_product_is_cast_in_pieces(
    transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of one or two rows; the last one is shorter."""
    monkeypatch.setattr(widened, "CHUNK", 10)
    narrow = torch.randn(7, 5)
    narrow = narrow.t().contiguous().t() if transposed else narrow
    x, bias = torch.randn(3, 7).double(), torch.randn(5).double()
    want = x @ narrow.double()
    torch.testing.assert_close(x @ Widened(narrow), want, rtol=1e-14, atol=1e-14)
    got = torch.addmm(bias, x, Widened(narrow))
    torch.testing.assert_close(got, want + bias, rtol=1e-14, atol=1e-14)


def test_a_mask_keeps_a_weight_narrow_and_a_fraction_does_not_round_it() -> None:
    narrow = torch.randn(4, 3)
    masked = Widened(narrow) * torch.tensor([1.0, 0.0, 1.0]).double()
    assert isinstance(masked, Widened)
    assert masked.computed
    assert torch.equal(masked.double() + 0.0, narrow.double() * torch.tensor([1.0, 0.0, 1.0]))
    for factor in (torch.tensor([0.3, 0.0, 1.0]).double(), 0.3, Widened(narrow)):
        wide = narrow.double() if isinstance(factor, Widened) else factor
        assert torch.equal(Widened(narrow) * factor, narrow.double() * wide)
