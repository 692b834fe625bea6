"""A model runs without dropout, wherever its rate is kept and however it is called."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.equality.example import NoDropout, zero_dropout_rates


class Config:
    attention_dropout, hidden_size = 0.1, 8

    def __init__(self) -> None:
        self.attention_dropout, self.hidden_size, self.layerdrop = 0.3, 8, 0.2


@dataclass(frozen=True)
class Frozen:
    dropout: float = 0.3


def test_rates_are_set_to_zero_in_modules_and_configurations() -> None:
    model: Any = nn.Sequential(nn.Dropout(0.5), nn.LSTM(3, 4, 2, dropout=0.4), nn.Dropout2d(1))
    model.config, model[1].config = Config(), Frozen()
    model.drop_prob, model.hidden = 0.1, 0.7
    zero_dropout_rates(model)
    assert (model[0].p, model[1].dropout, model[2].p, model.drop_prob) == (0, 0, 0, 0)
    assert (model.config.attention_dropout, model.config.layerdrop) == (0, 0)
    assert (model.config.hidden_size, model.hidden, model[1].config.dropout) == (8, 0.7, 0.3)


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: F.dropout(input=x, p=0.5, training=True),
        lambda x: F.dropout2d(x, 0.5),
        lambda x: F.alpha_dropout(x, 0.5, True),
        lambda x: torch.dropout(x, 0.5, True),
        lambda x: nn.Dropout(0.5)(x),
    ],
)
def test_dropout_returns_its_input(drop: Any) -> None:
    x = torch.rand(1, 4, 5, 6)
    assert not torch.equal(drop(x), x)
    with NoDropout():
        assert torch.equal(drop(x), x)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positional", [False, True])
def test_attention_keeps_all_its_weights(causal: bool, positional: bool) -> None:
    q, k, v = torch.rand(3, 1, 2, 5, 4)

    def attend(rate: float) -> Tensor:
        if positional:
            return F.scaled_dot_product_attention(q, k, v, None, rate, causal)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=causal)

    want = attend(0.0)
    assert not torch.allclose(attend(0.5), want)
    with NoDropout():
        assert torch.allclose(attend(0.5), want)


@pytest.mark.parametrize("named", [False, True])
def test_grouped_queries_without_a_head_of_keys_are_refused(named: bool) -> None:
    """torch 2.10 divides by the number of heads, which ends the process."""
    q, k = torch.rand(1, 4, 5, 3), torch.rand(1, 0, 5, 3)
    given = {"key": k, "value": k} if named else {}
    with NoDropout(), pytest.raises(ValueError, match="without a head of keys"):
        F.scaled_dot_product_attention(q, *([] if named else [k, k]), **given, enable_gqa=True)


def test_a_configuration_of_the_class_is_left_alone() -> None:
    class Model(nn.Module):
        config = Config()

    zero_dropout_rates(Model())
    assert Model.config.attention_dropout == 0.3
