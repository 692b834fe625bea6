"""After removal a transformer still works: certificate, forward, loss, backward, generate()."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import l0arm
from l0arm import Certificate

transformers = pytest.importorskip("transformers")

TINY = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"intermediate_size": 48, "max_position_embeddings": 32}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
Made = tuple[nn.Module, dict[str, Tensor]]


def tokens() -> dict[str, Tensor]:
    padding = torch.ones(2, 7, dtype=torch.long)
    padding[1, 5:] = 0
    ids = torch.randint(3, 50, (2, 7))
    return {"input_ids": ids, "attention_mask": padding, "labels": ids}


def llama() -> Made:
    config = transformers.LlamaConfig(**TINY, **SPECIAL, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), tokens()


def gpt2() -> Made:
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32, **SPECIAL
    )
    return transformers.GPT2LMHeadModel(config), tokens()


def bert() -> Made:
    return transformers.BertForMaskedLM(transformers.BertConfig(**TINY)), tokens()


def vit() -> Made:
    sizes = {"image_size": 16, "patch_size": 4}
    config = transformers.ViTConfig(**{**TINY, **sizes}, num_labels=3)
    pixels = torch.rand(2, 3, 16, 16)
    return transformers.ViTForImageClassification(config), {
        "pixel_values": pixels,
        "labels": torch.tensor([0, 2]),
    }


DECODERS = (llama, gpt2)
EXACT = (bert, vit)  # norms of Llama and the loss of GPT-2 compute in float32
one_quick = [
    pytest.param(make, marks=[] if make is llama else [pytest.mark.slow], id=make.__name__)
    for make in (llama, gpt2, bert, vit)
]


def compacted(make: Callable[[], Made]) -> tuple[Any, Any, Certificate, dict[str, Tensor]]:
    """A third of the units closed, whole heads among them; gated and small, with what shows it."""
    model, kwargs = make()
    gated = l0arm.sparsify(model, example_kwargs=kwargs, method="l0-arm", lam=0.0)
    gated.phi.data = torch.where(torch.arange(gated.layout.gates) % 3 > 0, 9.0, -9.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = l0arm.compact(gated)
    return gated, small, l0arm.certificate(small), kwargs


@pytest.mark.parametrize("make", one_quick)
def test_it_is_certified_and_trains_on(make: Callable[[], Made]) -> None:
    gated, small, certificate, kwargs = compacted(make)
    assert certificate.passed
    assert certificate.dtype == (torch.float64 if make in EXACT else torch.float32)
    assert {j.mode for j in certificate.comparisons} == {"eval", "train"}
    assert sum(p.numel() for p in small.parameters()) < sum(
        p.numel() for p in gated.model.parameters()
    )
    optimizer = torch.optim.SGD(small.train().parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        torch.manual_seed(0)  # the same dropout
        loss = small(**kwargs).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in small.parameters() if p.requires_grad)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("make", [p for p in one_quick if p.values[0] in DECODERS])
def test_it_generates_with_its_cache_what_the_gated_network_does(make: Callable[[], Made]) -> None:
    """Token by token with a cache, without one, and the dense-shaped network with zeros."""
    gated, small, _, kwargs = compacted(make)
    start = kwargs["input_ids"][:, :5]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "min_new_tokens": 6}
    options |= {"attention_mask": torch.ones_like(start)}
    cached = small.eval().generate(start, use_cache=True, **options)
    assert cached.shape == (2, 11)
    assert torch.equal(cached, small.generate(start, use_cache=False, **options))
    dense: Any = l0arm.expand(small, gated)
    assert torch.equal(cached, dense.generate(start, use_cache=True, **options))


@pytest.mark.slow
def test_attributes_that_count_heads_are_true() -> None:
    _, small, _, _ = compacted(bert)
    for layer in small.bert.encoder.layer:
        inner = layer.attention.self
        assert inner.query.out_features == inner.all_head_size < 32
        assert inner.num_attention_heads * inner.attention_head_size == inner.all_head_size
    _, small, _, _ = compacted(gpt2)
    for block in small.transformer.h:
        attention = block.attn
        assert attention.c_attn.nf == attention.c_attn.weight.shape[1] == 3 * attention.split_size
        assert attention.num_heads * attention.head_dim == attention.split_size
        for layer in (attention.c_attn, attention.c_proj, block.mlp.c_fc, block.mlp.c_proj):
            assert (layer.nx, layer.nf) == layer.weight.shape
