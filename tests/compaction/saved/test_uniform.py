"""With one width for all layers, transformers alone loads what was saved."""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.tiny_transformers import (
    bert,
    gpt2,
    llama,
    mistral,
    mixtral,
    qwen2,
    qwen3,
    qwen3_moe,
    t5,
    vit,
)
from torch import nn

import l0arm
from l0arm import Gated, SavedError
from l0arm.compaction import inspect_saved
from l0arm.models import MLP

transformers = pytest.importorskip("transformers")


def gated_mlps(
    make: Callable[[], nn.Module], keep: Callable[[str], bool], method: str = "l0-arm"
) -> Gated:
    """The groups whose name passes; the first layer far narrower than the second."""
    torch.manual_seed(0)
    model = make().eval()
    kwargs = {"input_ids": torch.randint(3, 50, (2, 7)), "return_dict": False}
    found = l0arm.plan(model, (), kwargs)
    found = replace(found, planned=tuple(e for e in found.planned if keep(e.group.name)))
    gated = l0arm.sparsify(model, found, method, lam=0.0)
    gated.phi.data.normal_(0.0, 0.3)
    gated.phi.data[gated.layout.span(0)] -= 0.2
    return gated.eval()


def hard_concrete() -> Gated:
    """A Llama in float64; half of the first layer's gates are exactly 0, all others are open."""
    gated = gated_mlps(llama, is_mlp, "l0-hc").double()
    gated.phi.data.fill_(1.0)
    gated.phi.data[: gated.layout.span(0).stop // 2] = -3.0  # z-bar 0, open probability 0.198
    return gated


def is_mlp(name: str) -> bool:
    return ".mlp." in name or ".intermediate." in name


def first(output: Any) -> torch.Tensor:
    return output[0]


@pytest.mark.parametrize(
    "make",
    [pytest.param(bert, marks=pytest.mark.slow), pytest.param(gpt2, marks=pytest.mark.slow), llama],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformers_alone_loads_it(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    gated = gated_mlps(make, is_mlp)
    original = copy.deepcopy(make())
    open_units = [int(part.sum()) for part in gated.per_group(gated.deterministic() != 0).values()]
    assert open_units[0] < open_units[1]
    folder = l0arm.save(gated, tmp_path / "saved", uniform=True)
    described = inspect_saved(folder)
    assert [len(kept) for kept in described.kept] == [max(open_units)] * 2
    plain = type(original).from_pretrained(folder).eval()
    ours = l0arm.load(folder, lambda: copy.deepcopy(original))
    ids = torch.randint(3, 50, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(first(plain(ids)), first(ours(ids)), rtol=1e-5, atol=1e-6)
    assert plain.num_parameters() == described.parameters[1] < described.parameters[0]


def test_the_reopened_units_are_the_most_probable(tmp_path: Path) -> None:
    gated = gated_mlps(llama, is_mlp)
    pi = gated.gates.open_probability.detach()[gated.layout.span(0)]
    described = inspect_saved(l0arm.save(gated, tmp_path / "saved", uniform=True))
    assert set(described.kept[0]) == set(pi.topk(len(described.kept[0])).indices.tolist())
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["intermediate_size"] == len(described.kept[0])
    assert config["architectures"] == ["LlamaForCausalLM"]


IDS = torch.tensor([[3, 14, 15, 9, 26, 5, 35], [8, 9, 7, 9, 32, 38, 4]])
EXAMPLE = {"input_ids": IDS, "return_dict": False}


def test_hard_concrete_units_are_reopened_without_an_effect(tmp_path: Path) -> None:
    gated = hard_concrete()
    folder = l0arm.save(gated, tmp_path / "saved", uniform=True, example_kwargs=EXAMPLE)
    assert [len(kept) for kept in inspect_saved(folder).kept] == [g.units for g in gated.groups]
    loaded = l0arm.load(folder, llama)
    assert l0arm.certificate(loaded).passed
    with torch.no_grad():
        torch.testing.assert_close(
            first(loaded(**EXAMPLE)), first(gated(**EXAMPLE)), rtol=0, atol=1e-14
        )


def test_bernoulli_units_are_reopened_at_their_probability(tmp_path: Path) -> None:
    """The reference is written down here: z-bar, and g(phi) of the units that are kept besides."""
    gated = gated_mlps(llama, is_mlp).double()
    trained, pi = gated.deterministic(), gated.gates.probs.detach()
    folder = l0arm.save(gated, tmp_path / "saved", uniform=True, example_kwargs=EXAMPLE)
    z = trained.clone()
    for number, kept in enumerate(inspect_saved(folder).kept):
        units = gated.layout.span(number).start + torch.tensor(kept)
        z[units] = torch.where(trained[units] == 0, pi[units], trained[units])
    assert bool((z != trained).any())
    loaded = l0arm.load(folder, llama)
    assert l0arm.certificate(loaded).passed
    gated.execution = "masked"
    with torch.no_grad(), gated.drawn(z):
        want = first(gated(**EXAMPLE))
    with torch.no_grad():
        torch.testing.assert_close(first(loaded(**EXAMPLE)), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [hard_concrete, lambda: gated_mlps(llama, is_mlp)])
def test_the_certificate_notices_units_that_are_reopened_at_other_values(
    make: Callable[[], Gated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drifted(z: torch.Tensor, span: slice, gates: Any, width: int) -> None:
        closed = span.start + (z[span] == 0).nonzero().flatten()
        z[closed[: width - int((z[span] != 0).sum())]] = 0.198

    monkeypatch.setattr("l0arm.compaction.saved.uniform.reopen", drifted)
    gated = make()
    with pytest.raises(l0arm.CertificateError, match=f"because of group '{gated.groups[0].name}'"):
        l0arm.save(gated, tmp_path / "saved", uniform=True, example_kwargs=EXAMPLE)
    assert list(tmp_path.iterdir()) == []


def tied_everything(
    make: Callable[[], nn.Module],
    example: dict[str, Any],
    *,
    outputs: str,
    stream: bool = False,
    depth: bool = False,
    keep: Callable[[str], bool] = lambda name: True,
) -> Gated:
    """A part of every group is closed; of the branches, those of the last layer of every list."""
    torch.manual_seed(0)
    model = make().eval()
    found = l0arm.plan(model, (), example, stream=stream, depth=depth, outputs=outputs)
    found = replace(found, planned=tuple(e for e in found.planned if keep(e.group.name)))
    gated = l0arm.sparsify(model, found, "l0-arm", lam=0.0, example_kwargs=example)
    gated.phi.data.fill_(2.0)
    for number, group in enumerate(gated.groups):
        phi = gated.phi.data[gated.layout.span(number)]
        if group.branches:
            in_last = [bool(re.match(r"\D*\.1\.", b.modules[0])) for b in group.branches]
            phi[torch.tensor(in_last)] = -2.0
        else:
            phi[:: 4 if number % 2 else 3] = -2.0
    return gated.eval()


PIXELS = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16).sin()}
SOURCE = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
WHOLE: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], dict[str, Any]]] = {
    "llama": (lambda: llama(heads=8), {"input_ids": IDS}, {"stream": True}),
    "mistral": (mistral, {"input_ids": IDS}, {"stream": True}),
    "qwen2": (qwen2, {"input_ids": IDS}, {"stream": True}),
    "gpt2": (gpt2, {"input_ids": IDS}, {"keep": lambda name: ".attn" not in name}),
    "vit": (vit, PIXELS, {}),
    "t5": (t5, SOURCE, {}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "llama" else [pytest.mark.slow]) for n in WHOLE]
)
@pytest.mark.filterwarnings("ignore")
def test_widths_and_layers_are_numbers_of_a_plain_configuration(name: str, tmp_path: Path) -> None:
    """Stream, heads and neurons become narrower, and the second layer is gone."""
    make, example, options = WHOLE[name]
    gated: Any = tied_everything(make, example, depth=True, outputs="logits", **options)
    folder = l0arm.save(gated, tmp_path / "saved", uniform=True)
    described = inspect_saved(folder)
    widths: dict[tuple[bool, int], set[int]] = {}
    for group, kept in zip(gated.groups, described.kept, strict=True):
        assert len(kept) < group.units
        if not group.branches and ".1." not in group.name:
            widths.setdefault((bool(group.norms), group.units), set()).add(len(kept))
    assert all(len(found) == 1 for found in widths.values())
    assert described.layers.left
    assert set(described.layers.left.values()) == {(0,)}
    plain = type(gated.model).from_pretrained(folder).eval()
    ours: Any = l0arm.load(folder, make).eval()
    assert l0arm.certificate(ours).passed
    with torch.no_grad():
        want = ours(**example).logits
        torch.testing.assert_close(plain(**example).logits, want, rtol=1e-5, atol=1e-6)
    assert plain.num_parameters() == described.parameters[1] < described.parameters[0]
    if "pixel_values" not in example:
        prompt = {"input_ids": IDS, "max_new_tokens": 4, "do_sample": False}
        assert torch.equal(plain.generate(**prompt), ours.generate(**prompt))


@pytest.mark.parametrize("make", [mixtral, qwen3_moe])
@pytest.mark.filterwarnings("ignore")
def test_experts_are_a_number_of_a_plain_configuration(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    """Of four experts one layer keeps two, the other three: so both keep three."""
    torch.manual_seed(0)
    model: Any = make().eval()
    model.set_experts_implementation("batched_mm")
    example = {"input_ids": IDS, "use_cache": False}
    found = l0arm.plan(model, (), example, experts=True, outputs="logits")
    gated = l0arm.sparsify(model, found, "l0-arm", lam=0.0, example_kwargs=example)
    gated.phi.data.fill_(2.0)
    experts = [number for number, group in enumerate(gated.groups) if group.routes]
    for number, group in enumerate(gated.groups):
        if not group.routes:  # heads, and hidden units inside the experts
            gated.phi.data[gated.layout.span(number)][::3] = -2.0
    for number, phi in zip(experts, ([-2.0, 3.0, -1.0, 2.0], [1.0, 2.0, 3.0, -3.0]), strict=True):
        gated.phi.data[gated.layout.span(number)] = torch.tensor(phi)
    folder = l0arm.save(gated.eval(), tmp_path / "saved", uniform=True)
    kept = inspect_saved(folder).kept
    assert [kept[number] for number in experts] == [(1, 2, 3), (0, 1, 2)]
    assert json.loads((folder / "config.json").read_text())["num_local_experts"] == 3
    plain = type(gated.model).from_pretrained(folder).eval()
    ours: Any = l0arm.load(folder, make).eval()
    assert l0arm.certificate(ours).passed
    with torch.no_grad():
        want = ours(**example).logits
        torch.testing.assert_close(plain(**example).logits, want, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_what_no_configuration_says_is_refused_with_the_reason(tmp_path: Path) -> None:
    """BERT's heads have hidden_size / heads dimensions; its LayerNorms divide by a full width."""
    example = {"input_ids": IDS}
    heads = tied_everything(bert, example, outputs="last_hidden_state")
    with pytest.raises(SavedError, match="no plain BertModel has these widths: "):
        l0arm.save(heads, tmp_path / "saved", uniform=True)
    one = gated_mlps(llama, lambda name: is_mlp(name) and ".0." in name)
    with pytest.raises(SavedError, match=r"'model\.layers\.1\.mlp\.gate_proj\.weight' is "):
        l0arm.save(one, tmp_path / "saved", uniform=True)
    everything = gated_mlps(llama, lambda name: True)
    for number, group in enumerate(everything.groups):
        if group.units == 2:  # heads of keys and values
            everything.phi.data[everything.layout.span(number)] = torch.tensor([-9.0, 9.0])
    with pytest.raises(SavedError, match="needs inputs to compare the plain model on"):
        l0arm.save(everything, tmp_path / "saved", uniform=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_stream_with_layer_norms_and_closed_branches_are_refused(tmp_path: Path) -> None:
    example = {"input_ids": IDS}
    gated = tied_everything(gpt2, example, stream=True, outputs="logits")
    with pytest.raises(SavedError, match="A plain LayerNorm cannot"):
        l0arm.save(gated, tmp_path / "saved", uniform=True)
    model = llama()
    found = l0arm.plan(model, (), example, depth=True, outputs="logits")
    deep = l0arm.sparsify(model, found, "l0-arm", lam=0.0, example_kwargs=example)
    deep.phi.data.fill_(9.0)
    deep.phi.data[-1] = -9.0
    left = r"branch of 'model\.layers\.1' is closed, but 'model\.layers\.1\.self_attn\.q_proj"
    with pytest.raises(SavedError, match=left):
        l0arm.save(deep, tmp_path / "saved", uniform=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_epsilon_for_norms_of_different_widths_is_refused(tmp_path: Path) -> None:
    """Qwen3 normalises heads with the epsilon of its stream, which a cut changes."""
    gated = tied_everything(qwen3, {"input_ids": IDS}, stream=True, outputs="logits")
    with pytest.raises(SavedError, match=r"_norm.variance_epsilon' would be"):
        l0arm.save(gated, tmp_path / "saved", uniform=True)


def test_other_models_are_refused(tmp_path: Path) -> None:
    gated = l0arm.sparsify(MLP(), method="l0-arm", lam=0.0)
    with pytest.raises(SavedError, match="configuration of a model of transformers; MLP has none"):
        l0arm.save(gated, tmp_path / "saved", uniform=True)
    assert list(tmp_path.iterdir()) == []
