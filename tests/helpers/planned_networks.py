"""Small networks of every family that planning must understand, with an input for each."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Any, ...]]


def conv(narrow: int, wide: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    kernel = nn.Conv2d(narrow, wide, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(kernel, nn.BatchNorm2d(wide), nn.ReLU())


class Head(nn.Module):
    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.fc = body, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean((2, 3)))


class Lenet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 10, 3)
        self.fc1, self.fc2 = nn.Linear(40, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))[:, :, :2, :2]
        x = x.reshape(x.size(0), -1)
        return self.fc2(F.relu(self.fc1(x)))


class PostAct(nn.Module):
    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(wide)
        self.down = nn.Identity()
        if narrow != wide:
            self.down = nn.Sequential(
                nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        inner += self.down(x)
        return F.relu(inner)


class PreAct(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, 6, 3, padding=1)
        self.bn2, self.conv2 = nn.BatchNorm2d(6), nn.Conv2d(6, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """MobileNet's block: widen, depthwise, squeeze-excite, narrow, residual."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.widen, self.depthwise = conv(width, inner, 1), conv(inner, inner, 3, groups=inner)
        self.se = SqueezeExcite(inner)
        self.narrow = nn.Sequential(nn.Conv2d(inner, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.se(self.depthwise(self.widen(x))))


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(6 + 4 * n), nn.ReLU(), nn.Conv2d(6 + 4 * n, 4, 3, padding=1)
            )
            for n in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return F.avg_pool2d(x, 2)


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.three, self.five = conv(6, 4, 1), conv(6, 6, 3), conv(6, 5, 5)
        self.pooled = conv(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(F.max_pool2d(x, 3, 1, 1))
        return torch.cat((self.one(x), self.three(x), self.five(x), pooled), dim=1)


class Shuffle(nn.Module):
    """ShuffleNet v2's unit: half passes, half is worked on, and the halves are interleaved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(conv(half, 6, 1), conv(6, 6, 3, groups=6), conv(6, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        x = torch.cat((left, self.branch(right)), 1)
        b, c, h, w = x.shape
        return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv(3, 6), conv(6, 8)
        self.middle = conv(8, 10)
        self.up1 = nn.ConvTranspose2d(10, 8, 2, 2)
        self.fuse1 = conv(16, 7)
        self.up2 = nn.Upsample(scale_factor=2, mode="bilinear")
        self.fuse2 = conv(13, 6)
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        y = self.fuse1(torch.cat([self.up1(self.middle(F.max_pool2d(two, 2))), two], 1))
        return self.out(self.fuse2(torch.cat([self.up2(y), one], 1)))


class ConvNext(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 12), nn.Linear(12, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.widen(y)))
        return x + y.permute(0, 3, 1, 2)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 2, 2)
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.token = nn.Sequential(nn.Linear(16, 10), nn.GELU(), nn.Linear(10, 16))
        self.channel = nn.Sequential(nn.Linear(8, 14), nn.GELU(), nn.Linear(14, 8))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channel(self.norm2(x))
        return self.fc(x.mean(1))


class Separate(nn.Module):
    """Attention with q, k, v, o; ``style`` is how it asks for heads."""

    def __init__(self, width: int, heads: int, style: str = "open") -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.v, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.heads, self.head_dim, self.style = heads, width // heads, style

    def split(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        if self.style == "open":
            return x.view(b, n, -1, self.head_dim).transpose(1, 2)
        if self.style == "counted":
            return x.view(b, n, self.heads, self.head_dim).transpose(1, 2)
        if self.style == "trap":
            return x.view(b, n, self.heads, -1).transpose(1, 2)
        if self.style == "literal":  # no attribute to patch
            return x.view(b, n, 4, -1).transpose(1, 2)
        # No size of the view itself counts the heads.
        return x.view_as(torch.empty(b, n, 4, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = (q @ k.transpose(-2, -1)) * self.head_dim**-0.5
        y = scores.softmax(-1) @ v
        return self.o(y.transpose(1, 2).flatten(2))


class Fused(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.num_heads, self.head_dim = heads, width // heads

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


class Grouped(nn.Module):
    """Grouped queries with a norm on every head, rotary positions, and a gated MLP's sibling."""

    def __init__(self, width: int, heads: int, kv: int, dim: int) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(width, heads * dim), nn.Linear(heads * dim, width)
        self.k, self.v = nn.Linear(width, kv * dim), nn.Linear(width, kv * dim)
        self.norm = nn.RMSNorm(dim)
        self.dim, self.times = dim, heads // kv

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, -1, self.dim).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = self.turn(self.norm(q)), self.turn(k)
        k, v = (t.repeat_interleave(self.times, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))

    def turn(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.ones(self.dim).to(x)
        half = x.shape[-1] // 2
        crossed = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * angle.cos() + crossed * angle.sin()


class GatedMLP(nn.Module):
    def __init__(self, width: int, inner: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        if fused:
            self.both = nn.Linear(width, 2 * inner)
        else:
            self.gate, self.up = nn.Linear(width, inner), nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return self.down(F.glu(self.both(x), -1))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Transformer(nn.Module):
    """Embedding, blocks with norms before, and a head that may be tied to the embedding."""

    def __init__(self, attention: nn.Module, mlp: nn.Module, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(11, 8), nn.Parameter(torch.zeros(1, 6, 8))
        self.attention, self.mlp = attention, mlp
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(8) for _ in range(3))
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm3(x))


class MultiHead(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 4, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)[0]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(x).mean(1))


class Tied(nn.Module):
    """No norm: the embedding's columns are read by the tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mlp = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(x + torch.tanh(self.mlp(x)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.last(F.relu(self.again(F.relu(self.again(x)))))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(11, 6), nn.LSTM(6, 7, batch_first=True)
        self.hidden, self.out = nn.Linear(7, 9), nn.Linear(9, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(F.relu(self.hidden(self.lstm(self.embed(ids))[0])))


class Sequence3d(nn.Module):
    """One and three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.solid = nn.Sequential(nn.Conv3d(1, 6, 3), nn.BatchNorm3d(6), nn.ReLU())
        self.back = nn.ConvTranspose3d(6, 4, 2, groups=2)
        self.line = nn.Sequential(
            nn.Conv1d(4, 7, 3), nn.InstanceNorm1d(7, affine=True), nn.PReLU(7)
        )
        self.fc = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.back(self.solid(x)).flatten(2)
        return self.fc(self.line(x).mean(-1))


def images() -> tuple[Tensor]:
    return (torch.rand(2, 3, 8, 8),)


def tokens() -> tuple[Tensor]:
    return (torch.randint(11, (2, 6)),)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8))


def norm_net(norm: Callable[[int], nn.Module]) -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU())
    return Head(body, 6)


def attention_net(style: str) -> Made:
    return Transformer(Separate(8, 4, style), mlp()), tokens()


NETWORKS: dict[str, Callable[[], Made]] = {
    "lenet": lambda: (Lenet(), (torch.rand(2, 3, 12, 12),)),
    "post-activation resnet": lambda: (
        Head(nn.Sequential(conv(3, 6), PostAct(6, 6, 1), PostAct(6, 10, 2)), 10),
        images(),
    ),
    "pre-activation resnet": lambda: (
        Head(nn.Sequential(nn.Conv2d(3, 8, 3), PreAct(8), PreAct(8), nn.BatchNorm2d(8)), 8),
        images(),
    ),
    "mobilenet": lambda: (
        Head(nn.Sequential(conv(3, 6), Inverted(6, 12), Inverted(6, 12)), 6),
        images(),
    ),
    "resnext": lambda: (
        Head(nn.Sequential(conv(3, 8), conv(8, 12, 3, groups=4), conv(12, 6)), 6),
        images(),
    ),
    "densenet": lambda: (Head(Dense(), 18), images()),
    "inception": lambda: (
        Head(nn.Sequential(conv(3, 6), Inception(), conv(18, 7)), 7),
        images(),
    ),
    "shufflenet": lambda: (
        Head(nn.Sequential(conv(3, 8), Shuffle(8), Shuffle(8), conv(8, 7, 1)), 7),
        images(),
    ),
    "channel shuffle": lambda: (
        Head(nn.Sequential(conv(3, 8), nn.ChannelShuffle(2), conv(8, 7)), 7),
        images(),
    ),
    "u-net": lambda: (UNet(), images()),
    "convnext": lambda: (
        Head(nn.Sequential(nn.Conv2d(3, 8, 2, 2), ConvNext(8), ConvNext(8)), 8),
        images(),
    ),
    "mixer": lambda: (Mixer(), images()),
    "group norm": lambda: (norm_net(lambda n: nn.GroupNorm(4, n)), images()),
    "instance norm": lambda: (norm_net(lambda n: nn.InstanceNorm2d(n, affine=True)), images()),
    "one and three dimensions": lambda: (Sequence3d(), (torch.rand(2, 1, 6, 6, 6),)),
    "attention, open view": lambda: attention_net("open"),
    "attention, counted view": lambda: attention_net("counted"),
    "attention, trap": lambda: attention_net("trap"),
    "attention, literal": lambda: attention_net("literal"),
    "attention, template": lambda: attention_net("template"),
    "fused attention": lambda: (Transformer(Fused(8, 4), mlp()), tokens()),
    "grouped queries": lambda: (
        Transformer(Grouped(8, 4, 2, 4), GatedMLP(8, 10, fused=False)),
        tokens(),
    ),
    "tied decoder": lambda: (
        Transformer(Fused(8, 2), GatedMLP(8, 10, fused=True), tied=True),
        tokens(),
    ),
    "multi-head attention": lambda: (Transformer(MultiHead(), mlp()), tokens()),
    "transformer encoder": lambda: (Encoder(), (torch.rand(2, 6, 8),)),
    "tied weights": lambda: (Tied(), tokens()),
    "module used twice": lambda: (Twice(), (torch.rand(3, 4),)),
    "lstm tagger": lambda: (Tagger(), tokens()),
}


def planned_network(name: str) -> Made:
    """A network by name, in float64, with weights and statistics away from their start."""
    model, inputs = NETWORKS[name]()
    model = model.double()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
        for key, buffer in model.named_buffers():
            if key.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
            elif key.endswith("running_mean"):
                buffer.normal_(0, 0.2)
    return model, tuple(x.double() if x.is_floating_point() else x for x in inputs)
