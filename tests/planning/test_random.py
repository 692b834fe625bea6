"""Networks drawn at random: whatever is planned, the small network computes what zeroing does."""

import random
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Gated, sparsify
from l0arm.planning import Plan, PlanError, plan

Oracle = Callable[[nn.Module, Plan, Tensor], nn.Module]


class Step(nn.Module):
    """One operation on registers of images: reads some, appends its result."""

    def __init__(self, kind: str, source: int, other: int, width: int, pick: random.Random) -> None:
        super().__init__()
        self.kind, self.source, self.other = kind, source, other
        out = pick.choice([4, 6, 8])
        if kind == "conv":
            self.layer: nn.Module = nn.Conv2d(width, out, pick.choice([1, 3]), padding="same")
        elif kind == "depthwise":
            self.layer = nn.Conv2d(width, width * pick.choice([1, 2]), 3, 1, 1, groups=width)
        elif kind == "grouped":
            self.layer = nn.Conv2d(width, 2 * out, 3, 1, 1, groups=2)
        elif kind == "transposed":
            self.layer = nn.ConvTranspose2d(width, out, 3, 1, 1)
        elif kind == "norm":
            norms = [nn.BatchNorm2d(width), nn.GroupNorm(2, width), nn.InstanceNorm2d(width)]
            self.layer = pick.choice(norms)
        elif kind == "squeeze":
            self.layer = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, width))
        elif kind == "layer norm":
            self.layer = nn.LayerNorm(width)

    def forward(self, registers: list[Tensor]) -> Tensor:
        x, y = registers[self.source], registers[self.other]
        return getattr(self, f"_{self.kind.replace(' ', '_')}", self._layer)(x, y)

    def _layer(self, x: Tensor, _: Tensor) -> Tensor:
        return F.relu(self.layer(x)) + 0.1

    def _squeeze(self, x: Tensor, _: Tensor) -> Tensor:
        return x * torch.sigmoid(self.layer(x.mean((2, 3))))[:, :, None, None]

    def _layer_norm(self, x: Tensor, _: Tensor) -> Tensor:
        return self.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + torch.tanh(y) if x.shape == y.shape else x

    def _times(self, x: Tensor, _: Tensor) -> Tensor:
        return x * torch.sigmoid(x) + x.amax((2, 3), keepdim=True)

    def _cat(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], 1)

    def _glu(self, x: Tensor, _: Tensor) -> Tensor:
        return F.glu(x, 1)

    def _split(self, x: Tensor, _: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return torch.cat([F.silu(right), left], 1)

    def _half(self, x: Tensor, _: Tensor) -> Tensor:
        return x[:, : x.shape[1] // 2]

    def _shuffle(self, x: Tensor, _: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)

    def _pool(self, x: Tensor, _: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 1, 1)


KINDS = [
    *("conv", "conv", "conv", "conv", "conv", "depthwise", "grouped", "transposed", "norm", "norm"),
    *("squeeze", "add", "add", "times", "cat", "glu", "split", "half", "shuffle", "pool"),
]
EVEN = {"glu", "split", "half", "shuffle", "grouped", "norm"}  # need an even number of channels


class RandomNet(nn.Module):
    """Three to ten operations between a first convolution and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        pick = random.Random(seed)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.steps = nn.ModuleList()
        with torch.no_grad():
            registers = [self.stem(torch.rand(2, 3, 5, 5))]
            for _ in range(pick.randint(3, 10)):
                registers.append(self._grow(pick, registers))
        self.flat = pick.random() < 0.5
        width = registers[-1].shape[1] * (25 if self.flat else 1)
        self.hidden, self.head = nn.Linear(width, 6), nn.Linear(6, 3)

    def _grow(self, pick: random.Random, registers: list[Tensor]) -> Tensor:
        kind = pick.choice([*KINDS, "layer norm"] if pick.random() < 0.3 else KINDS)
        source = pick.choice([len(registers) - 1] * 3 + list(range(len(registers))))
        width = registers[source].shape[1]
        even = width % 2 == 0 and width >= 4
        kind = "conv" if kind in EVEN and not even else kind
        alike = [n for n, r in enumerate(registers) if r.shape == registers[source].shape]
        other = pick.choice(alike if kind == "add" else list(range(len(registers))))
        step = Step(kind, source, other, width, pick)
        self.steps.append(step)
        return step(registers)

    def forward(self, x: Tensor) -> Tensor:
        registers = [self.stem(x)]
        for step in self.steps:
            registers.append(step(registers))
        last = registers[-1]
        return self.head(F.relu(self.hidden(last.flatten(1) if self.flat else last.mean((2, 3)))))


class RandomBlock(nn.Module):
    """A transformer block: any way to write heads, any MLP, norms before or after."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        pick = random.Random(seed)
        self.heads, self.dim = pick.choice([2, 3, 4]), pick.choice([2, 4])
        self.kv = pick.choice([n for n in (1, 2, self.heads) if self.heads % n == 0])
        width = self.width = pick.choice([8, 12])
        self.fused, self.after = pick.random() < 0.4, pick.random() < 0.3
        self.counted, self.gate = pick.random() < 0.5, pick.choice(["none", "glu", "chunk", "two"])
        self.explicit, self.bias = pick.random() < 0.5, pick.random() < 0.5
        self._attention(self.heads * self.dim)
        self._mlp(inside=6)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.first, self.head = nn.Linear(5, width), nn.Linear(width, 4)

    def _attention(self, inner: int) -> None:
        if self.fused:
            self.kv = self.heads
            self.qkv = nn.Linear(self.width, 3 * inner, bias=self.bias)
        else:
            self.q = nn.Linear(self.width, inner, bias=self.bias)
            self.k, self.v = (nn.Linear(self.width, self.kv * self.dim) for _ in range(2))
        self.o = nn.Linear(inner, self.width)

    def _mlp(self, inside: int) -> None:
        self.up = nn.Linear(self.width, inside * (2 if self.gate in ("glu", "chunk") else 1))
        self.other = nn.Linear(self.width, inside) if self.gate == "two" else None
        self.down = nn.Linear(inside, self.width)

    def split(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        heads = x.shape[-1] // self.dim if not self.counted else -1
        return x.view(b, n, heads, self.dim).transpose(1, 2)

    def attend(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        if self.fused:
            q, k, v = (self.split(t) for t in self.qkv(x).chunk(3, -1))
        else:
            q, k, v = (self.split(p(x)) for p in (self.q, self.k, self.v))
        times = self.heads // self.kv
        if times > 1:
            k, v = (t[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2) for t in (k, v))
        if self.explicit:
            y = torch.einsum("bhij,bhjd->bhid", (q @ k.mT / self.dim**0.5).softmax(-1), v)
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))

    def mix(self, x: Tensor) -> Tensor:
        y = self.up(x)
        if self.gate == "glu":
            y = F.glu(y)
        elif self.gate == "chunk":
            a, b = y.chunk(2, -1)
            y = F.silu(a) * b
        elif self.other is not None:
            y = F.gelu(y) * self.other(x)
        return self.down(F.gelu(y))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.after:
            x = self.norm1(x + self.attend(x))
            return self.head(self.norm2(x + self.mix(x)))
        x = x + self.attend(self.norm1(x))
        return self.head(x + self.mix(self.norm2(x)))


def shaken(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for key, tensor in (*model.named_parameters(), *model.named_buffers()):
            if key.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                tensor.add_(0.2 * torch.randn_like(tensor))
    return model


def difference(gated: Gated, found: Plan, x: Tensor, z: Tensor, zeroed: Oracle) -> float:
    """Of the small network from the one with readers zeroed by hand, eval and train."""
    gated.phi.data = torch.where(z > 0, 9.0, -9.0).to(gated.phi)
    worst = 0.0
    small = gated.compact()
    oracle = zeroed(gated.release(), found, z)
    gated.engine.attach(gated.model)
    for training in (False, True):
        small.train(training)
        oracle.train(training)
        with torch.no_grad():
            want, got = oracle(x), small(x)
        worst = max(worst, float((want - got).abs().max() / want.abs().max()))
    return worst


def removable(found: Plan) -> int:
    return sum(e.group.units for e in found.planned if e.execution != "masked")


def run(
    make: Callable[[int], nn.Module], shape: tuple[int, ...], count: int, zeroed: Oracle
) -> int:
    """Check so many networks; how many of them had four or more units that can be removed."""
    good = 0
    for seed in range(count):
        torch.manual_seed(seed)
        model, x = shaken(make(seed)).double(), torch.rand(shape, dtype=torch.float64)
        try:
            found = plan(model, x)
        except PlanError:
            continue
        good += removable(found) >= 4
        gated = sparsify(model, found, "l0-arm", lam=0.0).double()
        for mask in range(3):
            z = (torch.rand(gated.layout.gates) < (0.5, 0.8, 2.0)[mask]).double()
            if mask == 2:
                for number in range(len(gated.groups)):
                    z[gated.layout.span(number).start] = 0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a group may be closed whole
                assert difference(gated, found, x, z, zeroed) < 1e-10, f"seed {seed}, mask {mask}"
    return good


def test_sixty_networks(zeroed: Oracle) -> None:
    """At least four in five have units to remove; none computes anything else."""
    nets = run(RandomNet, (2, 3, 5, 5), 40, zeroed)
    blocks = run(RandomBlock, (2, 6, 5), 20, zeroed)
    assert nets >= 0.8 * 40
    assert blocks >= 0.8 * 20


@pytest.mark.slow
def test_five_hundred_networks(zeroed: Oracle) -> None:
    nets = run(RandomNet, (2, 3, 5, 5), 350, zeroed)
    blocks = run(RandomBlock, (2, 6, 5), 150, zeroed)
    assert nets >= 0.8 * 350
    assert blocks >= 0.8 * 150
