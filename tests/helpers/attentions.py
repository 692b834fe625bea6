"""Attention as people write it: with or without one number for its width, a scale, rotations."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, SIZE = 12, 3, 4


class Inferred(nn.Module):
    """Heads are counted, and their width is what the projections give."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(p(x)) for p in (self.q, self.k, self.v))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Explicit(Inferred):
    """The scale comes from the width of the keys."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * (1.0 / math.sqrt(k.size(-1)))).softmax(-1) @ v


class Unscaled(Inferred):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


class Linear(Inferred):
    """Attention without a softmax: keys and values meet first."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = q.relu(), k.relu()
        return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT + 1.0)


class Normed(Inferred):
    """Queries and keys are normalised over their width: only values can lose positions."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return (q @ k.mT).softmax(-1) @ v


class Learned(Inferred):
    """Learned queries."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(self.queries)), self.split(self.k(x)), self.split(self.v(x))
        y = self.attend(q.expand(len(x), -1, -1, -1), k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class Sized(nn.Module):
    """One attribute is the width of queries, keys and values; the scale is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.size, self.scale = HEADS, SIZE, SIZE**-0.5
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, self.size)
        q = self.q(x).view(shape).transpose(1, 2)
        k = self.k(x).view(shape).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(*x.shape[:-1], -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=self.scale)


class Divided(Sized):
    """The scale is computed from the attribute in each call."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) / math.sqrt(self.size)).softmax(-1) @ v


class OneByOne(Sized):
    """Every head for itself in one loop over all three: one place in the code for all of them."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            p(x).view(*x.shape[:-1], self.heads, self.size).transpose(1, 2)
            for p in (self.q, self.k, self.v)
        )
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class SizedAndNormed(Sized):
    """One attribute for all, and a norm over queries: values go alone, and the sizes are scaled."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v)


class Fused(nn.Module):
    """One matrix for all three, and C of the stream counts all positions."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))


class Decoder(nn.Module):
    """As minGPT: split by an attribute that counts heads times positions."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.inner = HEADS, WIDTH
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            t.view(b, n, self.heads, self.inner // self.heads).transpose(1, 2)
            for t in self.qkv(x).split(self.inner, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, n, self.inner))


def rotated_halves(x: Tensor) -> Tensor:
    one, other = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-other, one), -1)


def rotated_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


class Rotary(nn.Module):
    """Rotated queries and keys, with fewer heads of keys and values."""

    def __init__(self, rotated: Callable[[Tensor], Tensor] = rotated_halves) -> None:
        super().__init__()
        self.size, self.rotated = SIZE, rotated
        self.q, self.out = nn.Linear(WIDTH, 4 * SIZE, bias=False), nn.Linear(4 * SIZE, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, 2 * SIZE, bias=False) for _ in range(2))
        frequencies = 10.0 ** -torch.arange(0.0, 1.0, 2 / SIZE)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, self.size)
        q = self.q(x).view(shape).transpose(1, 2)
        k = self.k(x).view(shape).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        angles = torch.arange(x.shape[1]).to(x)[:, None] * self.frequencies
        if self.rotated is rotated_halves:
            angles = torch.cat((angles, angles), -1)
        else:
            angles = angles.repeat_interleave(2, -1)
        q = q * angles.cos() + self.rotated(q) * angles.sin()
        k = k * angles.cos() + self.rotated(k) * angles.sin()
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class OfTorch(nn.Module):
    """nn.MultiheadAttention, with or without its scores among what it returns."""

    def __init__(self, *, scores: bool, **widths: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **widths)
        self.scores = scores

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, need_weights=self.scores)[0]


class Convolved(nn.Module):
    """Positions of an image, by convolutions with BatchNorm, as in mobile transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.q, self.k, self.v = (
            nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 1), nn.BatchNorm1d(WIDTH)) for _ in range(3)
        )
        self.out = nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            p(x.mT).unflatten(1, (self.heads, -1)).transpose(2, 3) for p in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(2, 3).flatten(1, 2)).mT


class Net(nn.Module):
    """Attention in a residual stream."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.attention = nn.Linear(5, WIDTH), nn.LayerNorm(WIDTH), attention
        self.up, self.down, self.head = (
            nn.Linear(WIDTH, 6),
            nn.Linear(6, WIDTH),
            nn.Linear(WIDTH, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.attention(self.norm(x))
        return self.head(x + self.down(self.up(x).relu()))
