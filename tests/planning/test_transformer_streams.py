"""Stream, depth, head and MLP gates together on models of the transformers library."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import tiny_transformers
from tests.helpers.closing import with_zeros
from torch import Tensor, nn

from l0arm import EmptyGroupWarning, certificate, compact, load, plan, save, sparsify

transformers = pytest.importorskip("transformers")

MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": tiny_transformers.llama,
    "gpt2": tiny_transformers.gpt2,
    "bert": tiny_transformers.bert_classifier,
    "vit": tiny_transformers.vit,
    "t5": tiny_transformers.t5,
}
named = [pytest.param(n, marks=[] if n in ("llama", "vit") else [pytest.mark.slow]) for n in MODELS]


def inputs(name: str) -> dict[str, Tensor]:
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16).double()}
    ids = {"input_ids": torch.randint(3, 50, (2, 7))}
    return {**ids, "decoder_input_ids": torch.randint(3, 50, (2, 5))} if name == "t5" else ids


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for key, value in vars(module).items():
            if isinstance(module, nn.Dropout) and key == "p":
                module.p = 0.0
            elif "dropout" in key and isinstance(value, float):
                setattr(module, key, 0.0)
    return model


@pytest.mark.parametrize("name", named)
def test_stream_depth_heads_and_neurons_go_together(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = without_dropout(MODELS[name]()).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    kwargs = inputs(name)
    found = plan(model, (), kwargs, stream=True, depth=True, outputs="logits")
    assert sum(group.units for group in found.groups if group.norms) == 32
    assert found.groups[-1].name == "depth"
    assert found.groups[-1].units >= 3  # of two attentions and two MLPs, or more
    assert len(found.groups) >= 5  # heads and neurons of two layers, or heads of a whole stack
    assert all(entry.execution != "masked" for entry in found.planned)
    dense = copy.deepcopy(model)
    gated: Any = sparsify(model, found, "l0-arm", lam=1e-4, example_kwargs=kwargs).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyGroupWarning)  # a layer's heads may be closed whole
        gated.loss(lambda: gated(**kwargs).logits.square().mean()).total.backward()
    assert all(p.grad is not None for p in gated.model.parameters() if p.requires_grad)
    z = (torch.rand(gated.layout.gates) < 0.6).double()
    z[gated.layout.span(len(found.groups) - 1)][0] = 0.0  # one branch at least
    gated.phi.data = torch.where(z > 0, 9.0, -9.0).double()
    oracle = with_zeros(dense, found.groups, z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a layer's heads may be closed whole
        for mode in (True, False):
            want = oracle.train(mode)(**kwargs).logits
            with gated.train(mode).drawn(z):
                assert _difference(gated(**kwargs).logits, want) < tolerance(name)
        small = compact(gated).eval()
        save(small, tmp_path / "small")
    assert certificate(small).passed
    assert _difference(small(**kwargs).logits, want) < tolerance(name)
    loaded = load(tmp_path / "small", lambda: MODELS[name]().double())
    assert torch.equal(loaded(**kwargs).logits, small(**kwargs).logits)
    if name in ("llama", "gpt2", "t5"):
        prompt = {"input_ids": kwargs["input_ids"], "max_new_tokens": 5, "do_sample": False}
        assert torch.equal(small.generate(**prompt), oracle.generate(**prompt))


def tolerance(name: str) -> float:
    """The RMSNorms of Llama and T5 compute in float32."""
    return 1e-5 if name in ("llama", "t5") else 1e-11


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def test_a_llama_with_a_narrower_stream_is_a_plain_llama(tmp_path: Path) -> None:
    """Its RMSNorms stay plain: two numbers of the configuration say everything."""
    torch.manual_seed(4)
    model: Any = tiny_transformers.llama().eval()
    kwargs = inputs("llama")
    found = plan(model, (), kwargs, stream=True, outputs="logits")
    gated: Any = sparsify(model, found, "l0-arm", lam=0.0, example_kwargs=kwargs)
    gated.phi.data.fill_(9.0)
    stream = next(n for n, group in enumerate(found.groups) if group.norms)
    gated.phi.data[gated.layout.span(stream)][::4] = -9.0  # 24 of 32 are left
    small: Any = compact(gated).eval()
    small.config.update({"hidden_size": 24, "head_dim": 8})
    small.config.rms_norm_eps = small.model.norm.variance_epsilon
    small.save_pretrained(tmp_path)
    plain = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(plain(**kwargs).logits, small(**kwargs).logits)
