"""The replacement of nn.MultiheadAttention computes what the original does."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from l0arm.gating.attention import HeadAttention, exchange, replace_attention

CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
FLOATS = torch.rand(5, 5, dtype=torch.float64)
PER_HEAD = torch.rand(6, 5, 5, dtype=torch.float64)

CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
    "causal": {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    "a mask of floats": {"attn_mask": FLOATS},
    "a mask for each head": {"attn_mask": PER_HEAD},
    "padding": {"key_padding_mask": PADDING},
    "padding and a mask": {"key_padding_mask": PADDING, "attn_mask": CAUSAL, "need_weights": False},
}


def both(**options: Any) -> tuple[nn.MultiheadAttention, HeadAttention]:
    original = nn.MultiheadAttention(8, 2, **{"batch_first": True, **options}).double().eval()
    nn.init.normal_(original.out_proj.bias) if original.out_proj.bias is not None else None
    return original, HeadAttention(original)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("call", CALLS)
def test_it_equals_the_original(call: str) -> None:
    original, new = both()
    x, y = torch.rand(2, 3, 5, 8, dtype=torch.float64)
    want, got = original(x, y, y, **CALLS[call]), new(x, y, y, **CALLS[call])
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{"batch_first": False}, {"bias": False}, {"kdim": 6, "vdim": 4}]
)
def test_in_other_layouts(options: dict[str, Any]) -> None:
    original, new = both(**options)
    x = torch.rand(3, 5, 8, dtype=torch.float64)
    k = torch.rand(3, 5, options.get("kdim", 8), dtype=torch.float64)
    v = torch.rand(3, 5, options.get("vdim", 8), dtype=torch.float64)
    torch.testing.assert_close(new(x, k, v), original(x, k, v), rtol=1e-12, atol=1e-12)


def test_without_a_batch() -> None:
    original, new = both()
    x = torch.rand(5, 8, dtype=torch.float64)
    torch.testing.assert_close(new(x, x, x), original(x, x, x), rtol=1e-12, atol=1e-12)


def test_parameters_are_the_same_under_the_same_names() -> None:
    original, new = both()
    named = dict(new.named_parameters())
    assert all(named[name] is p for name, p in original.named_parameters())
    assert named.keys() == dict(original.named_parameters()).keys()


def test_dropout_acts_in_training_only() -> None:
    original, _ = both(dropout=0.5)
    new = HeadAttention(original.train())
    x = torch.rand(3, 5, 8, dtype=torch.float64)
    assert not torch.equal(new(x, x, x)[0], new(x, x, x)[0])
    assert torch.equal(new.eval()(x, x, x)[0], new(x, x, x)[0])


def test_an_encoder_with_padding_runs_without_the_fused_path() -> None:
    """In eval mode without gradients the original encoder packs its input for fused layers."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).double().eval()
    new = copy.deepcopy(encoder)
    assert replace_attention(new) == ("layers.0.self_attn", "layers.1.self_attn")
    x = torch.rand(3, 5, 8, dtype=torch.float64)
    want, got = encoder(x, src_key_padding_mask=PADDING), None
    with torch.no_grad():
        got = new(x, src_key_padding_mask=PADDING)
    torch.testing.assert_close(got[~PADDING], want[~PADDING], rtol=1e-12, atol=1e-12)


def test_a_shared_module_is_exchanged_everywhere() -> None:
    model = nn.Module()
    model.one = model.two = nn.MultiheadAttention(8, 2)
    exchange(model, "one")
    assert isinstance(model.one, HeadAttention)
    assert model.one is model.two


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_other_kinds_are_not_exchanged(options: dict[str, bool]) -> None:
    model = nn.Sequential(nn.MultiheadAttention(8, 2, **options))
    assert replace_attention(model) == ()


def test_only_attention_can_be_exchanged_and_only_once() -> None:
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 8))
    exchange(model, "0")
    done = model[0]
    exchange(model, "0")
    assert model[0] is done
    with pytest.raises(ValueError, match="replaces '1', which is Linear and not a plain"):
        exchange(model, "1")
    with pytest.raises(ValueError, match="replaces '7', which is NoneType and not"):
        exchange(model, "7")
