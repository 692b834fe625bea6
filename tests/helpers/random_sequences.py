"""Networks of sequences, drawn at random from a seed: transformers, mixtures, recurrence."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES, POSITIONS = 5, 6  # of an input


class HandwrittenRMSNorm(nn.Module):
    """As most models of transformers write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


def norm(kind: str, width: int) -> nn.Module:
    makers = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "handwritten": HandwrittenRMSNorm}
    made: nn.Module = makers[kind](width)
    return made


class Attention(nn.Module):
    """Any way to write heads, with fewer heads of keys and values or one matrix for all three."""

    def __init__(self, pick: random.Random, width: int) -> None:
        super().__init__()
        self.heads, self.dim = pick.choice([2, 3, 4]), pick.choice([2, 4])
        self.kv = pick.choice([n for n in (1, 2, self.heads) if self.heads % n == 0])
        self.fused, self.explicit = pick.random() < 0.4, pick.random() < 0.5
        self.sizes = pick.choice(["counted", "divided", "inferred"])
        inner, bias = self.heads * self.dim, pick.random() < 0.5
        if self.fused:
            self.kv = self.heads
            self.qkv = nn.Linear(width, 3 * inner, bias=bias)
        else:
            self.q = nn.Linear(width, inner, bias=bias)
            self.k, self.v = (nn.Linear(width, self.kv * self.dim) for _ in range(2))
        self.o = nn.Linear(inner, width)

    def split(self, x: Tensor, heads: int) -> Tensor:
        b, n, inner = x.shape
        heads = {"counted": heads, "divided": inner // self.dim, "inferred": -1}[self.sizes]
        return x.view(b, n, heads, self.dim).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        if self.fused:
            q, k, v = (self.split(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        else:
            q = self.split(self.q(x), self.heads)
            k, v = (self.split(p(x), self.kv) for p in (self.k, self.v))
        times = self.heads // self.kv
        if times > 1:
            k, v = (t[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2) for t in (k, v))
        if self.explicit:
            y = torch.einsum("bhij,bhjd->bhid", (q @ k.mT / self.dim**0.5).softmax(-1), v)
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


class FeedForward(nn.Module):
    """Two layers, with or without a gate in any notation."""

    def __init__(self, pick: random.Random, width: int, inside: int = 6) -> None:
        super().__init__()
        self.gate = pick.choice(["none", "glu", "chunk", "two"])
        self.up = nn.Linear(width, inside * (2 if self.gate in ("glu", "chunk") else 1))
        self.other = nn.Linear(width, inside) if self.gate == "two" else None
        self.down = nn.Linear(inside, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        if self.gate == "glu":
            y = F.glu(y)
        elif self.gate == "chunk":
            a, b = y.chunk(2, -1)
            y = F.silu(a) * b
        elif self.other is not None:
            y = F.gelu(y) * self.other(x)
        return self.down(F.gelu(y))


class Mixture(nn.Module):
    """Experts with a router: one after the other, all at once, or the matrices of the best two."""

    def __init__(self, pick: random.Random, width: int) -> None:
        super().__init__()
        self.way, self.best = pick.choice(["listed", "stacked", "gathered"]), pick.random() < 0.5
        count, inside = pick.choice([2, 3]), pick.choice([4, 5])
        self.router = nn.Linear(width, count, bias=pick.random() < 0.5)
        if self.way == "listed":
            self.experts = nn.ModuleList(FeedForward(pick, width, inside) for _ in range(count))
        else:
            self.up = nn.Parameter(torch.randn(count, width, inside) / width**0.5)
            self.down = nn.Parameter(torch.randn(count, inside, width) / inside**0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        values, chosen = weights.topk(2, -1)
        if self.way == "gathered":
            hidden = F.gelu(torch.einsum("bnd,bnkdh->bnkh", x, self.up[chosen]))
            found = torch.einsum("bnkh,bnkhd->bnkd", hidden, self.down[chosen])
            return (found * values[..., None]).sum(-2)
        if self.best:
            weights = torch.zeros_like(weights).scatter(-1, chosen, values)
        if self.way == "listed":
            return sum(weights[..., n, None] * e(x) for n, e in enumerate(self.experts))
        hidden = F.gelu(torch.einsum("bnd,edh->bneh", x, self.up))
        return torch.einsum("bneh,ehd,bne->bnd", hidden, self.down, weights)


class Layer(nn.Module):
    """Attention and MLP, or experts: norms before or after, or both branches at once."""

    def __init__(self, pick: random.Random, width: int, kind: str, *, experts: bool) -> None:
        super().__init__()
        self.order = pick.choice(["before", "before", "after", "after", "parallel"])
        self.attend = Attention(pick, width)
        self.mix = Mixture(pick, width) if experts else FeedForward(pick, width)
        self.norm1, self.norm2 = norm(kind, width), norm(kind, width)
        scaled = pick.random() < 0.3
        self.scale = nn.Parameter(torch.rand(width) + 0.5) if scaled else None

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "after":
            x = self.norm1(x + self.scaled(self.attend(x)))
            return self.norm2(x + self.mix(x))
        if self.order == "parallel":
            y = self.norm1(x)
            return x + self.scaled(self.attend(y)) + self.mix(y)
        x = x + self.scaled(self.attend(self.norm1(x)))
        return x + self.mix(self.norm2(x))

    def scaled(self, x: Tensor) -> Tensor:
        return x if self.scale is None else self.scale * x


class RandomTransformer(nn.Module):
    """One or two layers between a first linear map and a head for every position."""

    def __init__(self, seed: int, *, experts: bool = False) -> None:
        super().__init__()
        pick = random.Random(seed)
        width, kind = pick.choice([8, 12]), pick.choice(["layer", "rms", "handwritten"])
        self.first, self.head = nn.Linear(FEATURES, width), nn.Linear(width, 4)
        learned = pick.random() < 0.5
        self.positions = nn.Parameter(torch.randn(POSITIONS, width)) if learned else None
        count = 1 if experts else pick.choice([1, 1, 2])
        self.layers = nn.ModuleList(Layer(pick, width, kind, experts=experts) for _ in range(count))
        self.last = norm(kind, width) if pick.random() < 0.5 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x if self.positions is None else x + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last(x))


class RandomMixture(RandomTransformer):
    """A transformer layer with experts."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, experts=True)


class HandwrittenCell(nn.Module):
    """A recurrent cell: all gates by one matrix, or one of each kind."""

    def __init__(self, inputs: int, width: int, *, chunked: bool) -> None:
        super().__init__()
        self.chunked, self.width = chunked, width
        if chunked:
            self.x, self.h = (nn.Linear(n, 2 * width) for n in (inputs, width))
        else:
            self.x, self.h, self.keep = (nn.Linear(n, width) for n in (inputs, width, width))

    def forward(self, x: Tensor, h: Tensor | None) -> Tensor:
        h = x.new_zeros(x.shape[0], self.width) if h is None else h
        if self.chunked:
            new, keep = (self.x(x) + self.h(h)).chunk(2, -1)
            keep = keep.sigmoid()
        else:
            keep = self.keep(h).sigmoid()
            new = self.x(x) + self.h(keep * h)
        return keep * h + (1 - keep) * new.tanh()


class RandomRecurrent(nn.Module):
    """A recurrent layer of torch, or a cell in a loop, between linear ones."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        pick = random.Random(seed)
        inner, width, both = pick.choice([4, 6]), pick.choice([5, 7]), False
        self.first, self.how = nn.Linear(FEATURES, inner), pick.choice(["layer", "cell", "own"])
        if self.how == "layer":
            both = pick.random() < 0.4
            self.time_first = pick.random() < 0.5
            self.inner: nn.Module = pick.choice([nn.GRU, nn.LSTM, nn.RNN])(
                inner,
                width,
                num_layers=pick.choice([1, 2]),
                batch_first=not self.time_first,
                bidirectional=both,
                bias=pick.random() < 0.7,
            )
        elif self.how == "cell":
            self.inner = pick.choice([nn.GRUCell, nn.LSTMCell, nn.RNNCell])(inner, width)
        else:
            self.inner = HandwrittenCell(inner, width, chunked=pick.random() < 0.5)
        made = width * (2 if both else 1)
        self.last = norm(pick.choice(["layer", "rms"]), made) if pick.random() < 0.4 else None
        self.head = nn.Linear(made, 3)
        self.final = pick.random() < 0.5  # of the steps, or all of them

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        if self.how == "layer":
            y, _ = self.inner(x.transpose(0, 1) if self.time_first else x)
            y = y.transpose(0, 1) if self.time_first else y
        else:
            y = self._steps(x)
        y = y[:, -1] if self.final else y
        y = y if self.last is None else self.last(y)
        return self.head(y)

    def _steps(self, x: Tensor) -> Tensor:
        state, every = None, []
        for step in x.unbind(1):
            state = self.inner(step, state)
            every.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(every, 1)
