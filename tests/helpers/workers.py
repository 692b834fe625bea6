"""What the two processes of the tests compute; the facts come back as tensors and text."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import pairwise, product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from l0arm import Course, Gated, Group, NonFiniteLoss, Slice, sparsify
from l0arm.contracts import Estimator
from l0arm.distributed import WholeLoss, loss_through
from l0arm.estimators import ARM
from l0arm.gating import NotSynchronised

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "no broadcast": {"broadcast_buffers": False},
    "unused, no broadcast": {"find_unused_parameters": True, "broadcast_buffers": False},
    "static, views": {"static_graph": True, "gradient_as_bucket_view": True},
}
SIZES = (5, 3)  # examples of each process: unequal


class Small(nn.Module):
    """A convolution, BatchNorm and a linear reader: 6 gated filters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.norm(self.conv(x))).mean((2, 3)))


GROUP = Group(
    name="conv",
    units=6,
    reads=(Slice("out.weight", 1),),
    makes=(
        Slice("conv.weight", 0),
        *(Slice(f"norm.{name}", 0) for name in ("weight", "bias", "running_mean", "running_var")),
    ),
    counts=(Slice("conv.weight", 0),),
)


def gated_network(dtype: torch.dtype = torch.float32) -> Gated:
    torch.manual_seed(0)
    return sparsify(Small().to(dtype), [GROUP], "l0-arm", lam=1e-2).to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(100 * step + rank)
    x = torch.rand(SIZES[rank], 1, 6, 6, generator=random, dtype=dtype)
    return x, torch.randint(3, (SIZES[rank],), generator=random)


def gathered(tensor: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(parts, tensor.detach().contiguous())
    return parts


def furthest(one: Iterable[Tensor], other: Iterable[Tensor]) -> float:
    """The largest difference between two lists of tensors, or two tensors."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def by_hand(gated: Gated, rank: int, step: int) -> list[Tensor]:
    """The gradients of a copy that knows no DDP, averaged over all examples."""
    twin = copy.deepcopy(gated)
    twin.averaged_elsewhere = True
    x, y = batch(rank, step, gated.phi.dtype)
    loss = twin.loss(lambda: F.cross_entropy(twin(x), y))
    grads = []
    for parameter in twin.parameters():
        data = torch.autograd.grad(loss.data, parameter, retain_graph=True)[0] * SIZES[rank]
        dist.all_reduce(data)
        penalty = torch.autograd.grad(
            loss.penalty, parameter, retain_graph=True, allow_unused=True
        )[0]
        grads.append(data / sum(SIZES) + (0 if penalty is None else penalty))
    return grads


def train_under(rank: int, settings: dict[str, Any], draws: Any) -> dict[str, Any]:
    """Three steps: how far the ranks differ after each, and DDP's gradients from those by hand."""
    gated, masks, local, reported = gated_network(torch.float64), [], [], []
    step = DistributedDataParallel(WholeLoss(gated, draws), **settings)
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2, gate_lr=1e-1))
    torch.manual_seed(1 + rank)
    apart, wrong = 0.0, 0.0
    for number in range(3):
        x, y = batch(rank, number, torch.float64)
        with torch.random.fork_rng():
            hand = by_hand(gated, rank, number)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            masks.append(gated.engine.current.z.clone())
            local.append(F.cross_entropy(gated(x), y))
            return local[-1]

        optimizer.zero_grad()
        reported.append((loss := step(closure, weight=len(y))).data)
        loss.backward()
        wrong = max(wrong, furthest([p.grad for p in gated.parameters()], hand))
        optimizer.step()
        apart = max([apart, *(furthest(*gathered(p)) for p in gated.parameters())])
    return {
        "apart": apart,
        "wrong": wrong,
        "moved": furthest([gated.phi], [gated_network(torch.float64).phi]),
        "masks": torch.stack(masks),
        "local": torch.stack(local[::2]).detach(),  # of the first evaluation of each step
        "reported": torch.stack(reported),
        "buffers apart": furthest(*gathered(gated.model.norm.running_mean)),
    }


def settings_of_ddp(rank: int) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, settings in SETTINGS.items():
        for draws in ("own", "shared"):
            facts[f"{name}/{draws}"] = train_under(rank, settings, draws)
    return (
        facts
        | refusals(rank)
        | {
            "exact": {d: expectation(rank, d) for d in ("own", "shared")},
            "forward-only": {d: expectation(rank, d, backward=False) for d in ("own", "shared")},
        }
    )


def message(action: Callable[[], object], kind: type[Exception]) -> str:
    try:
        action()
    except kind as error:
        return str(error)
    return "nothing was raised"


def refusals(rank: int) -> dict[str, Any]:
    """Losses that DDP would not average, and one that is not finite on one rank only."""
    gated = gated_network()
    wrapped, step = DistributedDataParallel(gated), DistributedDataParallel(WholeLoss(gated))
    other = DistributedDataParallel(WholeLoss(gated_network()))
    x, y = batch(rank, 0)
    plain = lambda: F.cross_entropy(gated(x), y)  # noqa: E731
    bad = lambda: F.cross_entropy(gated(x), y) * (float("nan") if rank == 1 else 1.0)  # noqa: E731
    buffers = [b.clone() for b in gated.buffers()]
    facts: dict[str, Any] = {
        "unwrapped": message(lambda: gated.loss(plain), NotSynchronised),
        "around the network": message(
            lambda: gated.loss(lambda: F.cross_entropy(wrapped(x), y)), NotSynchronised
        ),
        "another's": message(lambda: other(lambda: gated.loss(plain).total), NotSynchronised),
        "not finite": message(lambda: step(bad, weight=len(y)), NonFiniteLoss),
    }
    facts["buffers kept"] = all(
        torch.equal(a, b) for a, b in zip(gated.buffers(), buffers, strict=True)
    )
    facts["no examples"] = message(lambda: step(plain, weight=0), ValueError)
    with torch.no_grad():
        facts["validation"] = float(gated.loss(plain).data)
    return facts | {"sharded": sharded(), "redirected": redirected(rank)}


def redirected(rank: int) -> list[float]:
    """How far phi's gradients are apart, and from 0, when DDP wraps the gated model itself."""
    gated = gated_network()
    torch.manual_seed(rank)
    x, y = batch(rank, 0)
    wrapper = DistributedDataParallel(gated)
    loss_through(wrapper, gated, lambda: F.cross_entropy(gated(x), y)).total.backward()
    return [furthest(*gathered(gated.phi.grad)), float(gated.phi.grad.abs().max())]


def sharded() -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    gated = gated_network()
    fully_shard(gated.model, mesh=init_device_mesh("cpu", (2,)))
    return message(lambda: gated.loss(lambda: gated(batch(0, 0)[0]).sum()), NotSynchronised)


class GivenNoise(Estimator):
    """ARM at noise that is handed in."""

    u = torch.empty(0)

    def __call__(self, f: Any, gates: Any, generator: Any = None) -> Tensor:
        return ARM().at(f, gates, self.u)


def cells(pi: list[float]) -> list[tuple[Tensor, float]]:
    """Middles and volumes of the cells of (0, 1)^V between whose edges no draw changes.

    The estimate is linear in u there, so the middle stands for the cell exactly.
    """
    axes = [
        [((a + b) / 2, b - a) for a, b in pairwise(sorted([0.0, p, 1 - p, 1.0])) if a < b]
        for p in pi
    ]
    return [
        (torch.tensor([u for u, _ in cell], dtype=torch.float64), prod(v for _, v in cell))
        for cell in product(*axes)
    ]


def expectation(rank: int, draws: Any, backward: bool = True) -> list[Tensor]:
    """The mean over all noise of DDP's gradient in phi, and the gradient by enumeration.

    Without a backward pass the weights are frozen, and the loss is a plain number.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    group = Group("hidden", 2, (Slice("2.weight", 1),), (Slice("0.weight", 0), Slice("0.bias", 0)))
    gated = sparsify(model, [group], "l0-arm", lam=0.0).double()
    with torch.no_grad():
        gated.phi.copy_(torch.tensor([0.1, -0.05]))
    gated.estimator = GivenNoise()
    gated.model.requires_grad_(backward)
    step = DistributedDataParallel(WholeLoss(gated, draws))
    x = [torch.rand(n, 3, dtype=torch.float64) + r for r, n in enumerate(SIZES)]
    own = cells(gated.gates.probs.tolist())
    mean = torch.zeros_like(gated.phi)
    pairs = product(own, own) if draws == "own" else ((cell, cell) for cell in own)
    for pair in pairs:
        gated.estimator.u = pair[rank][0]
        gated.phi.grad = None

        def closure() -> Tensor | float:
            value = gated(x[rank]).square().mean()
            return value if backward else value.item()

        step(closure, weight=SIZES[rank], backward=backward).backward()
        volume = pair[0][1] * (pair[1][1] if draws == "own" else 1.0)
        mean += volume * gated.phi.grad
    return [mean.detach(), enumerated(gated, torch.cat(x))]


def enumerated(gated: Gated, x: Tensor) -> Tensor:
    """d/dphi of the sum over all z of P(z) f(z), by autograd."""
    pi, total = gated.gates.probs, torch.zeros((), dtype=torch.float64)
    for bits in product((0.0, 1.0), repeat=2):
        z = torch.tensor(bits, dtype=torch.float64)
        with gated.drawn(z), torch.no_grad():
            value = gated(x).square().mean()
        total = total + torch.where(z == 1, pi, 1 - pi).prod() * value
    return torch.autograd.grad(total, gated.phi)[0]


def shrinking_under_ddp(rank: int) -> dict[str, Any]:
    """A course that shrinks, with the loss wrapped anew whenever the network is another one."""
    gated = gated_network()
    gated.phi.data[2:5] = -9.0
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2, gate_lr=0.05))
    course = Course(gated, optimizer, epochs=3, shrink=True)
    torch.manual_seed(rank)
    wrapped: DistributedDataParallel | None = None
    masks = []
    for epoch in range(3):
        course.begin(epoch)
        net = course.gated
        if wrapped is None or wrapped.module.gated is not net:
            wrapped = DistributedDataParallel(WholeLoss(net))
        for step in range(3):
            x, y = batch(rank, 3 * epoch + step)
            optimizer.zero_grad()
            wrapped(lambda net=net, x=x, y=y: F.cross_entropy(net(x), y), len(x)).backward()
            optimizer.step()
            masks.append(net.gates.sample().detach())
    whole = torch.cat([p.detach().flatten() for p in course.whole.parameters()])
    sizes = {"units": course.gated.groups[0].units, "all": course.whole.groups[0].units}
    return {"whole": whole, "masks": torch.cat(masks), **sizes}
