"""Heads whose number or width comes from shapes: the sizes in the forward are scaled."""

import copy
import io
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.cut_networks import check_cut, cut, described, doubled
from torch import Tensor, nn

from l0arm import Gated, load, plan, save, sparsify
from l0arm.gating.resizing import Resized


class Vision(nn.Module):
    """One projection for queries, keys and values; C of the stream counts positions of heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = (q @ k.mT * self.scale).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class ClassAttention(nn.Module):
    """Only the first position asks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        size = c // self.num_heads
        q = self.q(x[:, 0]).unsqueeze(1).reshape(b, 1, self.num_heads, size).permute(0, 2, 1, 3)
        k, v = (
            p(x).reshape(b, n, self.num_heads, size).permute(0, 2, 1, 3) for p in (self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, 1, c)
        return torch.cat([self.proj(y), x[:, 1:]], 1)


class TalkingHeads(Vision):
    """Linear layers over the heads, before and after softmax: their rows and columns are heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.before, self.after = nn.Linear(heads, heads), nn.Linear(heads, heads)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = self.before((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        scores = self.after(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.proj((scores @ v).transpose(1, 2).reshape(b, n, c))


class CrossCovariance(nn.Module):
    """Attention over the positions of a head, with a temperature for each head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.temperature = heads, nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 4, 1)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.temperature
        return self.proj((scores.softmax(-1) @ v).permute(0, 3, 1, 2).reshape(b, n, c))


class Pyramid(nn.Module):
    """Keys and values of a smaller image: C is the width of the stream, and of all heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.proj, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.reduce = nn.Conv2d(width, width, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q = self.q(x).view(b, n, self.num_heads, -1).permute(0, 2, 1, 3)
        small = self.reduce(x.permute(0, 2, 1).reshape(b, c, 2, n // 2)).reshape(b, c, -1)
        kv = self.kv(self.norm(small.permute(0, 2, 1)))
        k, v = kv.reshape(b, -1, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        y = (q @ k.mT * self.head_dim**-0.5).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class Images(nn.Module):
    """By 1 x 1 convolutions, with the heads moved into the batch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        y = self.qkv(x.mT).reshape(b * self.heads, 3 * c // self.heads, n)
        q, k, v = y.chunk(3, 1)
        scores = torch.einsum("bct,bcs->bts", q, k).div((c // self.heads) ** 0.5).softmax(-1)
        return self.out(torch.einsum("bts,bcs->bct", scores, v).reshape(b, c, n)).mT


class Language(nn.Module):
    """Split by the width of the stream, then by heads, with the same line for all three."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n_head, self.n_embd = heads, width
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        parts = self.attn(x).split(self.n_embd, dim=2)
        q, k, v = (y.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Recounted(nn.Module):
    """The heads are counted twice: by a number in the code, and then by what it gave."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        heads = y.shape[2]
        return self.proj(y.reshape(len(x), -1, heads, 4).flatten(2))


class Ending(Recounted):
    """A sum ends at the very place where the view does whose sizes count heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.beside = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        y = y.sin() + self.beside(x).view(*x.shape[:2], 3, 4)
        return self.proj(y.flatten(2))


class Block(nn.Module):
    def __init__(self, attention: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(5, 12), nn.LayerNorm(12), nn.Linear(12, 4)
        self.attention = attention(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x + self.attention(self.norm(x)))


KINDS: dict[type[nn.Module], str] = {  # the group of the heads
    Vision: "attention.qkv",
    ClassAttention: "attention.q",
    TalkingHeads: "attention.qkv",
    CrossCovariance: "attention",
    Pyramid: "attention.q",
    Images: "attention.qkv",
    Language: "attention.attn",
    Recounted: "attention.qkv",
    Ending: "attention.qkv",
}


def gated_vision() -> tuple[Gated, Tensor]:
    torch.manual_seed(0)
    model, (x,) = doubled(Block(Vision), torch.randn(2, 4, 5))
    return sparsify(model, plan(model, x), "l0-arm", lam=0.0).double(), x


@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_cut(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    found = check_cut(*doubled(Block(kind), torch.randn(2, 4, 5)))
    assert described(found)[KINDS[kind]] == "3 patched"


def test_other_batches_and_lengths_fit_as_well() -> None:
    """Sizes are scaled, not set: the example says nothing about batch and length."""
    gated, _ = gated_vision()
    small = cut(gated, torch.tensor([1.0, 0.0, 1.0])).eval()
    for shape in ((3, 7, 5), (1, 2, 5)):
        x = torch.randn(shape, dtype=torch.float64)
        assert torch.allclose(small(x), gated.eval()(x), rtol=1e-11, atol=1e-12)


def test_a_small_network_can_be_copied_saved_and_exported(tmp_path: Path) -> None:
    gated, x = gated_vision()
    small = cut(gated, torch.tensor([1.0, 0.0, 1.0])).eval()
    want = small(x)
    stream = io.BytesIO()
    torch.save(small, stream)
    stream.seek(0)
    save(small, tmp_path / "small")
    copies = [
        copy.deepcopy(small),
        torch.load(stream, weights_only=False),
        load(tmp_path / "small", lambda: Block(Vision)).eval(),
        torch.export.export(small, (x,)).module(),
    ]
    for other in copies:
        assert torch.allclose(other(x), want, rtol=1e-12, atol=0)


def test_an_export_for_any_batch_scales_sizes_that_are_not_known_yet() -> None:
    gated, x = gated_vision()
    small = cut(gated, torch.tensor([1.0, 0.0, 1.0])).eval()
    batches = {0: torch.export.Dim("batch")}
    exported = torch.export.export(small, (x,), dynamic_shapes=(batches,)).module()
    for n in (2, 3, 7):
        y = torch.randn(n, *x.shape[1:], dtype=x.dtype)
        assert torch.allclose(exported(y), small(y), rtol=1e-12, atol=1e-15)


@pytest.mark.filterwarnings("ignore:.*jit.trace.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tracing_is_refused_because_it_turns_sizes_into_tensors() -> None:
    gated, x = gated_vision()
    small = cut(gated, torch.tensor([1.0, 0.0, 1.0])).eval()
    with pytest.raises(RuntimeError, match=r"torch.jit.trace turns sizes .* use torch.export"):
        torch.jit.trace(small, (x,))


def test_a_small_network_can_be_gated_again_and_its_copies_too(tmp_path: Path) -> None:
    """Its forward is wrapped already. A second cut scales what the first one left."""
    gated, x = gated_vision()
    small = cut(gated, torch.tensor([1.0, 0.0, 1.0])).eval()
    want = small(x).detach()
    save(small, tmp_path / "small")
    loaded = load(tmp_path / "small", lambda: Block(Vision))
    for again in (copy.deepcopy(small), loaded):
        found = check_cut(copy.deepcopy(again), (x,))
        assert described(found)["attention.qkv"] == "2 patched"
        twice = sparsify(again, found, "l0-arm", lam=0.0).double()
        smaller = cut(twice, torch.tensor([0.0, 1.0])).eval()
        assert [p.shape[0] for p in smaller.parameters()] < [p.shape[0] for p in small.parameters()]
        both = copy.deepcopy(smaller), copy.deepcopy(twice).compact(certify=False).eval()
        for other in both:
            assert torch.equal(other(x), smaller(x))
        assert not torch.allclose(smaller(x), want)
    assert torch.equal(small(x), want)  # copies share nothing with it


def test_a_forward_that_takes_another_way_is_refused() -> None:
    """The sizes of a way that was not seen are unknown."""

    class TwoWays(Vision):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] != 4:
                return self.proj(self.qkv(x)[..., :12])
            return super().forward(x)

    torch.manual_seed(0)
    model, (x,) = doubled(Block(TwoWays), torch.randn(2, 4, 5))
    gated = sparsify(model, plan(model, x), "l0-arm", lam=0.0).double()
    small = cut(gated, torch.tensor([1.0, 0.0, 1.0]))
    small(x)
    with pytest.raises(RuntimeError):
        small(x[:, :3])


def test_sizes_that_are_never_reached_are_named() -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    module = Plain()
    Resized(module, {"Plain.forward+9:9": ()}).install()
    with pytest.raises(RuntimeError, match=r"forward of Plain .* 'Plain.forward\+9:9' was not"):
        module(torch.ones(2))


def test_release_gives_the_forward_back() -> None:
    gated, x = gated_vision()
    attention = gated.model.get_submodule("attention")
    assert "forward" in vars(attention)
    want = gated.model(x)
    gated.release()
    assert "forward" not in vars(attention)
    assert torch.equal(gated.model(x), want)


def test_training_takes_a_step() -> None:
    torch.manual_seed(0)
    model, (x,) = doubled(Block(Vision), torch.randn(2, 4, 5))
    gated = sparsify(model, example_inputs=x, method="l0-disarm", lam=1e-3, initial=0.6).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all heads may be closed
        gated.loss(lambda: gated(x).square().mean()).total.backward()
    assert gated.phi.grad is not None
    assert float(gated.phi.grad.abs().sum()) > 0
