"""Positions within heads of models of the transformers library, with all other kinds of units."""

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

from l0arm import SavedError, certificate, compact, load, plan, save, sparsify

transformers = pytest.importorskip("transformers")

# By model: how to make it, and the positions of an attention.
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "bert": (tiny_transformers.bert_classifier, 8),
    "gpt2": (tiny_transformers.gpt2, 8),
    "llama": (tiny_transformers.llama, 4),  # pairs, which are rotated together
    "qwen3": (tiny_transformers.qwen3, 4),  # its queries and keys have norms over their positions
    "t5": (tiny_transformers.t5, 8),
    "vit": (tiny_transformers.vit, 8),
}
QUICK = ("llama", "vit")
TOLERANCE = {"llama": 1e-5, "qwen3": 1e-5, "t5": 1e-5}  # RMSNorms compute in float32
named = [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in MODELS]


def inputs(name: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, dtype=dtype)}
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


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("name", named)
@pytest.mark.parametrize("everything", [False, True])
def test_positions_go_with_heads_neurons_stream_and_depth(
    name: str, everything: bool, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    make, positions = MODELS[name]
    model = without_dropout(make()).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    kwargs, limit = inputs(name), TOLERANCE.get(name, 1e-11)
    options = {"stream": everything, "depth": everything}
    found = plan(model, (), kwargs, outputs="logits", head_dims=True, **options)
    own = [entry for entry in found.planned if entry.group.name.endswith("#dims")]
    assert len(own) == (6 if name == "t5" else 2)  # queries, keys and values of every attention
    assert {entry.group.units for entry in own} == {positions}
    assert all(entry.execution != "masked" for entry in found.planned)
    dense = copy.deepcopy(model)
    gated: Any = sparsify(model, found, "l0-arm", lam=1e-4, example_kwargs=kwargs).double()
    z = (torch.rand(gated.layout.gates) < 0.6).double()
    oracle = with_zeros(dense, found.groups, z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the heads of a layer may be closed whole
        gated.loss(lambda: gated(**kwargs).logits.square().mean()).total.backward()
        gated.phi.data = torch.where(z > 0, 9.0, -9.0).double()
        for mode in (True, False):
            want = oracle.train(mode)(**kwargs).logits
            with gated.train(mode).drawn(z):
                assert difference(gated(**kwargs).logits, want) < limit
        small: Any = compact(gated).eval()
        save(small, tmp_path / "small")
    assert all(p.grad is not None for p in gated.model.parameters() if p.requires_grad)
    assert certificate(small).passed
    assert difference(small(**kwargs).logits, want) < limit
    loaded = load(tmp_path / "small", lambda: make().double())
    assert torch.equal(loaded(**kwargs).logits, small(**kwargs).logits)
    if name in ("llama", "qwen3", "gpt2", "t5"):
        prompt = {"input_ids": kwargs["input_ids"], "max_new_tokens": 5, "do_sample": False}
        assert torch.equal(small.generate(**prompt), oracle.generate(**prompt))


def closed_alike(name: str) -> tuple[Any, dict[str, Tensor]]:
    """A gated model with one quarter of all positions closed, and its inputs."""
    torch.manual_seed(4)
    model, kwargs = MODELS[name][0]().eval(), inputs(name, torch.float32)
    found = plan(model, (), kwargs, outputs="logits", head_dims=True)
    gated: Any = sparsify(model, found, "l0-arm", lam=0.0, example_kwargs=kwargs)
    gated.phi.data.fill_(9.0)
    for number, group in enumerate(found.groups):
        if group.dots:
            gated.phi.data[gated.layout.span(number)][: group.units // 4] = -9.0
    return gated, kwargs


@pytest.mark.slow
def test_a_t5_with_narrower_heads_is_a_plain_t5(tmp_path: Path) -> None:
    """It does not scale its scores: ``d_kv`` says everything."""
    gated, kwargs = closed_alike("t5")
    save(gated, tmp_path / "plain", uniform=True, example_kwargs=kwargs)
    plain: Any = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "plain").eval()
    loaded: Any = load(tmp_path / "plain", MODELS["t5"][0])
    assert plain.config.d_kv == 6
    with torch.no_grad():
        assert torch.equal(plain(**kwargs).logits, loaded.eval()(**kwargs).logits)


def test_a_llama_with_narrower_heads_is_none() -> None:
    """A plain one would scale its scores by the new width."""
    gated, kwargs = closed_alike("llama")
    with pytest.raises(SavedError, match=r"scaling' would be 0\.408248 instead of 0\.353553"):
        save(gated, "never written", uniform=True, example_kwargs=kwargs)
