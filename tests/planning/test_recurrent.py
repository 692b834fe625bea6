"""Hidden units of recurrent layers and cells; embedding bags."""

from typing import Any

import pytest
import torch
from tests.helpers.cut_networks import check_cut, described, doubled
from torch import Tensor, nn

from l0arm import plan


class Tagger(nn.Module):
    """A recurrent layer between linear ones; its last state may be read as well."""

    def __init__(self, kind: type[nn.RNNBase], last: bool = False, **options: Any) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(5, 6), kind(6, 7, **options)
        self.width = 7 * (2 if self.inner.bidirectional else 1)
        self.out, self.last = nn.Linear(self.width, 3), nn.Linear(7, 3) if last else None

    def forward(self, x: Tensor) -> Tensor:
        y, state = self.inner(self.first(x).relu())
        result = self.out(y.tanh()).mean(1 if self.inner.batch_first else 0)
        if self.last is None:
            return result
        return result + self.last((state[0] if isinstance(state, tuple) else state)[-1])


class Steps(nn.Module):
    """A cell in a loop, started from zeros."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(5, 6), kind(6, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in range(x.shape[1]):
            state = self.inner(self.first(x[:, step]).relu(), state)
        return self.out(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"batch_first": False, "last": True},
        {"batch_first": True, "num_layers": 2, "last": True},
        {"batch_first": True, "num_layers": 2, "bidirectional": True, "bias": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_hidden_units_and_inputs_are_cut(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    found = check_cut(*doubled(Tagger(kind, **options), torch.randn(2, 4, 5)))
    assert described(found) == {"first": "6 patched", "inner": "7 patched"}


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_hidden_units_of_cells_are_cut(kind: type[nn.RNNCellBase]) -> None:
    torch.manual_seed(0)
    found = check_cut(*doubled(Steps(kind), torch.randn(2, 4, 5)))
    assert described(found)["inner"] == "7 patched"


def test_a_layer_with_a_projection_stays_and_says_why() -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.hidden = nn.LSTM(5, 7, proj_size=4), nn.Linear(4, 6)
            self.out = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.hidden(self.inner(x)[0]).relu())

    found = plan(Projected(), torch.randn(2, 4, 5))
    reasons = {entry.layer: entry.reason for entry in found.skipped}
    assert "covers only recurrent layers without a projection" in reasons["inner"]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_columns_of_an_embedding_bag_are_cut(mode: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(9, 8, mode=mode), nn.ReLU(), nn.Linear(8, 3))
    found = check_cut(*doubled(model, torch.randint(9, (4, 5))))
    assert described(found) == {"0": "8 as is"}
