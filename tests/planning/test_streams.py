"""The residual stream: units that norms mix are closed where they are made, and cut exactly."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.closing import with_zeros
from torch import Tensor, nn

from l0arm import Gated, Plan, compact, plan, sparsify
from l0arm.gating.norms import FullWidthLayerNorm
from l0arm.planning.streams import prepared_norms

Made = tuple[nn.Module, tuple[Any, ...]]


class OwnRMSNorm(nn.Module):
    """As many write it, the parameter under another name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.epsilon = nn.Parameter(torch.rand(width)), 1e-4

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.scale


class Block(nn.Module):
    """A residual branch with a learned scale, before or after the norm."""

    def __init__(self, norm: nn.Module, post: bool) -> None:
        super().__init__()
        self.norm, self.post = norm, post
        self.up, self.down = nn.Linear(12, 10), nn.Linear(10, 12)
        self.scale = nn.Parameter(torch.rand(12))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            return self.norm(x + self.scale * self.down(F.gelu(self.up(x))))
        return x + self.scale * self.down(F.gelu(self.up(self.norm(x))))


class Stream(nn.Module):
    """Patches, a class token, positions, blocks, a last norm and a head."""

    def __init__(self, norm: Callable[[], nn.Module], post: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 12, 2, 2)
        self.token = nn.Parameter(torch.rand(1, 1, 12))
        self.positions = nn.Parameter(torch.rand(1, 5, 12))
        self.register_buffer("waves", torch.rand(5, 12))
        self.blocks = nn.ModuleList(Block(norm(), post) for _ in range(2))
        self.last, self.head = norm(), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions + self.waves
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x)[:, 0])


class Tied(nn.Module):
    """A language model whose output weights are those of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block = nn.Embedding(20, 12), Block(nn.LayerNorm(12), False)
        self.last, self.head = nn.RMSNorm(12), nn.Linear(12, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.last(self.block(self.embedding(tokens))))


class Encoder(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True, norm_first=first)
        self.embedding, self.head = nn.Linear(4, 12), nn.Linear(12, 3)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)))


def images() -> tuple[Tensor]:
    return (torch.randn(4, 2, 4, 4),)


NETWORKS: dict[str, Callable[[], Made]] = {
    "pre-norm": lambda: (Stream(lambda: nn.LayerNorm(12)), images()),
    "post-norm": lambda: (Stream(lambda: nn.LayerNorm(12), post=True), images()),
    "no bias": lambda: (Stream(lambda: nn.LayerNorm(12, bias=False)), images()),
    "no weights": lambda: (Stream(lambda: nn.LayerNorm(12, elementwise_affine=False)), images()),
    "nn.RMSNorm": lambda: (Stream(lambda: nn.RMSNorm(12), post=True), images()),
    "own RMSNorm": lambda: (Stream(lambda: OwnRMSNorm(12)), images()),
    "tied": lambda: (Tied(), (torch.randint(20, (3, 6)),)),
    "encoder, pre-norm": lambda: (Encoder(True), (torch.randn(2, 5, 4),)),
    "encoder, post-norm": lambda: (Encoder(False), (torch.randn(2, 5, 4),)),
}


def doubled(made: Made) -> Made:
    model, inputs = made
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.double(), tuple(x.double() if x.is_floating_point() else x for x in inputs)


def gated_by(model: nn.Module, found: Plan, z: Tensor, **options: Any) -> Gated:
    gated = sparsify(model, found, "l0-arm", lam=0.0, **options).double()
    gated.phi.data = torch.where(z > 0, 9.0, -9.0).to(gated.phi)
    return gated


def masks(found: Plan) -> list[Tensor]:
    """Most units open; one unit of the stream closed; the whole stream closed."""
    sizes = [group.units for group in found.groups]
    stream = next(n for n, group in enumerate(found.groups) if group.norms)
    start = sum(sizes[:stream])
    single, none = torch.ones(sum(sizes)), torch.ones(sum(sizes))
    single[start] = 0.0
    none[start : start + sizes[stream]] = 0.0
    return [(torch.rand(sum(sizes)) < 0.6).float(), single, none]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_stream_is_cut_and_equals_the_network_with_zeros(name: str) -> None:
    torch.manual_seed(1)
    model, inputs = doubled(NETWORKS[name]())
    found = plan(model, inputs, stream=True)
    (stream,) = [entry for entry in found.planned if entry.group.norms]
    assert stream.group.units == 12
    assert stream.execution != "masked"
    original = copy.deepcopy(model)
    for z in masks(found):
        oracle = with_zeros(original, found.groups, z)
        gated = gated_by(copy.deepcopy(model), found, z)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the whole stream may be closed
            for mode in (True, False):
                want = oracle.train(mode)(*inputs)
                gated.train(mode)
                with gated.drawn(z.to(gated.phi)):
                    torch.testing.assert_close(gated(*inputs), want, rtol=0, atol=1e-12)
            small = compact(gated, example_inputs=inputs)
            torch.testing.assert_close(small(*inputs), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["post-norm", "own RMSNorm", "tied"])
def test_gradients_are_those_of_the_network_with_zeros(name: str) -> None:
    torch.manual_seed(2)
    model, inputs = doubled(NETWORKS[name]())
    found = plan(model, inputs, stream=True)
    z = masks(found)[0]
    oracle = with_zeros(model, found.groups, z)
    oracle(*inputs).square().sum().backward()
    gated = gated_by(model, found, z).train()
    with gated.drawn(z.to(gated.phi)):
        gated(*inputs).square().sum().backward()
    kept = with_zeros(_ones(oracle), found.groups, z)  # what is closed has no gradient here
    for (key, own), other, ones in zip(
        gated.model.named_parameters(), oracle.parameters(), kept.parameters(), strict=True
    ):
        assert own.grad is not None, key
        assert other.grad is not None, key
        torch.testing.assert_close(own.grad, other.grad * ones, rtol=1e-9, atol=1e-11)


def _ones(model: nn.Module) -> nn.Module:
    ones = copy.deepcopy(model)
    for parameter in ones.parameters():
        parameter.data.fill_(1.0)
    return ones


def test_a_stream_that_leaves_the_model_stays_unless_outputs_say_otherwise() -> None:
    class Both(Encoder):
        def forward(self, x: Tensor) -> Any:
            hidden = self.encoder(self.embedding(x))
            return {"logits": self.head(hidden), "hidden": hidden}

    model, x = Both(True), torch.randn(2, 5, 4)
    pinned = plan(model, x, stream=True)
    assert not any(group.norms for group in pinned.groups)
    reasons = {entry.layer: entry.reason for entry in pinned.skipped}
    assert reasons["embedding"] == "an output of the model keeps its shape"
    assert any(group.norms for group in plan(model, x, stream=True, outputs="logits").groups)
    assert not any(group.norms for group in plan(model, x, outputs="logits").groups)


def test_a_stream_through_what_moves_zeros_is_refused_with_the_reason() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.norm(torch.cos(self.a(x))))

    found = plan(nn.Sequential(nn.Linear(3, 4), Shifted()), torch.randn(3, 3), stream=True)
    assert [group.name for group in found.groups] == ["0"]
    reason = {entry.layer: entry.reason for entry in found.skipped}["1.a"]
    assert reason.startswith("'1.norm' mixes the units, and dropping its units gives other values")


def test_only_true_rms_norms_are_found() -> None:
    class Centred(OwnRMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(-1, keepdim=True))

    class Offset(OwnRMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return (
                x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * (1 + self.scale)
            )

    model = nn.Sequential(OwnRMSNorm(6), Centred(6), Offset(6), nn.PReLU(6), nn.LayerNorm((6, 6)))
    found = prepared_norms(model)
    assert [(n.module, n.epsilon, n.offset) for n in found.values()] == [
        ("0", "epsilon", 0.0),
        ("2", "epsilon", 1.0),
    ]


def test_smooth_gates_are_refused_with_the_norm_and_the_way_out() -> None:
    model, x = Encoder(True), torch.randn(2, 5, 4)
    found = plan(model, x, stream=True)
    with pytest.raises(ValueError, match=r"'encoder.layers.0.norm1' mixes them.*stream=True"):
        sparsify(model, found, "l0-hc", lam=0.0)
    assert not any(isinstance(module, FullWidthLayerNorm) for module in model.modules())


def test_a_plan_with_norms_survives_json() -> None:
    model, x = Stream(lambda: OwnRMSNorm(12)), images()
    found = plan(model, x, stream=True)
    assert Plan.from_json(found.to_json()) == found
