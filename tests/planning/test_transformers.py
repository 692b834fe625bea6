"""Models of the transformers library, small, from their configurations, with random weights."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import tiny_transformers
from torch import Tensor, nn

from l0arm import certificate, sparsify
from l0arm.planning import Plan, plan

transformers = pytest.importorskip("transformers")

Made = tuple[nn.Module, dict[str, Tensor]]
Oracle = Callable[[nn.Module, Plan, Tensor], nn.Module]


def ids() -> dict[str, Tensor]:
    padding = torch.ones(2, 7, dtype=torch.long)
    padding[1, 5:] = 0
    return {"input_ids": torch.randint(3, 50, (2, 7)), "attention_mask": padding}


def bert() -> Made:
    return tiny_transformers.bert(), ids()


def gpt2() -> Made:
    return tiny_transformers.gpt2(), ids()


def llama() -> Made:
    return tiny_transformers.llama(heads=8), ids()


def vit() -> Made:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
    )
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.rand(2, 3, 16, 16)
    }


# The units of attention and MLP in both layers, and how they are executed.
EXPECTED = {
    bert: "4 as is, 48 as is",
    gpt2: "4 patched, 128 patched",
    llama: "4 as is, 48 as is",  # a key head goes with its two query heads
    vit: "4 as is, 48 as is",
}
quick_and_slow = [
    pytest.param(make, marks=[] if make is llama else [pytest.mark.slow], id=make.__name__)
    for make in EXPECTED
]


def doubled(make: Callable[[], Made]) -> Made:
    model, inputs = make()
    kwargs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    return model.double().eval(), kwargs


@pytest.mark.parametrize("make", quick_and_slow)
def test_heads_and_neurons_are_found_and_removed(make: Callable[[], Made], zeroed: Oracle) -> None:
    model, kwargs = doubled(make)
    found = plan(model, (), kwargs)
    described = [f"{e.group.units} {e.execution}" for e in found.planned]
    assert ", ".join(described) == ", ".join([EXPECTED[make]] * 2)
    gated = sparsify(model, found, "l0-arm", lam=0.0).double().eval()
    units = gated.layout.gates
    single = torch.ones(units)
    single[[gated.layout.span(n).start for n in range(len(found.groups))]] = 0
    for z in ((torch.rand(units) < 0.6).double(), single):
        gated.phi.data = torch.where(z > 0, 9.0, -9.0).double()
        small, oracle = compacted(gated), unhooked(gated, found, z, zeroed)
        with torch.no_grad():
            want, got = oracle(**kwargs)[0], small(**kwargs)[0]
        assert float((want - got).abs().max() / want.abs().max()) < 1e-10


@pytest.mark.slow
def test_attributes_that_count_are_patched_and_others_are_not() -> None:
    """The width of the residual stream has the same value as that of all heads together."""
    model, kwargs = doubled(gpt2)
    patched = {
        (p.module, p.attribute): p.per_unit for p in plan(model, (), kwargs).groups[0].patches
    }
    layer = "transformer.h.0.attn"
    assert patched == {
        (f"{layer}.c_attn", "nf"): 24,
        (layer, "split_size"): 8,
        (layer, "num_heads"): 1,
    }


def compacted(gated: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a layer's heads may be closed whole
        return gated.compact().eval()


def unhooked(gated: Any, found: Plan, z: Tensor, zeroed: Oracle) -> nn.Module:
    gated.engine.detach()
    try:
        return zeroed(gated.model, found, z)
    finally:
        gated.engine.attach(gated.model)


def test_a_cache_among_the_outputs_pins_nothing_and_stays_on() -> None:
    model, kwargs = doubled(llama)
    assert model.config.use_cache
    assert len(plan(model, (), kwargs).groups) == 4
    assert model.config.use_cache


def test_a_small_decoder_still_generates_with_its_cache() -> None:
    """Token by token with a cache as in one pass without."""
    model, kwargs = doubled(llama)
    gated = sparsify(model, example_kwargs=kwargs, method="l0-arm", lam=0.0).double()
    gated.phi.data = torch.where(torch.arange(gated.layout.gates) % 4 > 0, 9.0, -9.0).double()
    small = gated.compact().eval()
    start = kwargs["input_ids"][:1]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(start)
    cached = small.generate(start, use_cache=True, **options)
    assert cached.shape == (1, 12)
    assert torch.equal(cached, small.generate(start, use_cache=False, **options))


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "heads"), [(1, 6), (2, 2)])
def test_heads_of_mamba2_are_cut(groups: int, heads: int) -> None:
    """Its convolution is read outside of its module. Heads that share keys pass their norm."""
    torch.manual_seed(0)
    model, kwargs = tiny_transformers.mamba2(groups), {**ids(), "use_cache": False}
    found = plan(model, (), kwargs, stream=True, outputs="logits")
    described = [f"{e.group.name}: {e.group.units} {e.execution}" for e in found.planned]
    assert described == [
        "backbone.embeddings: 24 as is",
        f"backbone.layers.0.mixer.conv1d: {heads} patched",
        f"backbone.layers.1.mixer.conv1d: {heads} patched",
    ]
    gated = sparsify(model, found, "l0-arm", lam=0.0, example_kwargs=kwargs)
    gated.phi.data = torch.where(torch.arange(gated.layout.gates) % 2 > 0, 9.0, -9.0)
    small: Any = gated.eval().compact()
    assert certificate(small).passed
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    prompt = kwargs["input_ids"]
    options |= {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
    cached = small.generate(use_cache=True, **options)
    assert torch.equal(cached, small.generate(use_cache=False, **options))
