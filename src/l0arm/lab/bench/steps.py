"""Time of a training step: dense (plain, and with our model and optimizer), and gated.

A step is zero_grad, loss, backward and optimizer step, on a batch that is in memory. The learning
rate is so small that neither weights nor gates move: every block measures the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm
from l0arm.costs import count_flops
from l0arm.lab.bench import networks
from l0arm.lab.bench.timing import Contestant, Plan, interleave, ratio
from l0arm.lab.data import mnist_mini
from l0arm.models import MLP, LeNet5, WideResNet
from l0arm.optim import Adam

LR = 1e-8
PLAIN, OURS = "plain dense", "our dense"
ARM, AR, MASKED, DISARM = "ARM sliced", "AR sliced", "ARM masked", "DisARM sliced"
ALONE = "the compact network, plain"
DENSE = ""  # the state of a network without gates
Rows = tuple[tuple[str, str, Literal["sliced", "masked"]], ...]  # label, method, execution
GATED: Rows = (
    (ARM, "l0-arm", "sliced"),
    (AR, "l0-ar", "sliced"),
    (MASKED, "l0-arm", "masked"),
)
LAM = 1e-7
FRACTIONS = (0.1, 0.25, 0.4, 0.6, 0.8, 1.0)

Batch = tuple[Tensor, Tensor]
Key = tuple[str, str]  # state, contestant
Curve = dict[str, dict[str, list[float]]]
MakeOptimizer = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class Network:
    """One section: both networks, their data and optimizer, and the gate states to time."""

    name: str
    plain: Callable[[], nn.Module]
    ours: Callable[[], nn.Module]
    optimizer: MakeOptimizer
    batches: list[Batch]
    our_batches: list[Batch]
    states: Mapping[str, networks.State]
    masked: frozenset[str] = frozenset()  # states with a masked row
    rows: Rows = GATED
    gate: Callable[..., l0arm.Gated] = l0arm.sparsify  # model, method=, execution=, lam= -> gated
    ours_optimizer: MakeOptimizer = Adam  # of our dense network and of the gated one
    alone: bool = False  # whether to time the compact network, too: what the gates cost beside it


@dataclass(frozen=True)
class Measured:
    """Milliseconds per step for every round, and the ratio of FLOPs to a dense step."""

    times: dict[Key, list[float]]
    flops: dict[Key, float]


def measure(network: Network, plan: Plan) -> Measured:
    """Time all rows of one network, interleaved."""
    contestants = {
        (DENSE, PLAIN): dense(network.plain(), network.optimizer, network.batches),
        (DENSE, OURS): dense(network.ours(), network.ours_optimizer, network.our_batches),
    }
    flops: dict[Key, float] = {}
    for label, method, execution in network.rows:
        gated = network.gate(network.ours(), method=method, execution=execution, lam=LAM)
        step = gated_step(gated, network)
        for state in network.states:
            if label == MASKED and state not in network.masked:
                continue
            contestants[state, label] = Contestant(
                step, partial(networks.set_gates, gated, network.states[state])
            )
            if label != MASKED:
                flops[state, label] = flop_ratio(gated, network, state)
            if network.alone and label == ARM:
                contestants[state, ALONE] = dense(
                    gated.compact(), network.ours_optimizer, network.our_batches
                )
    return Measured(interleave(contestants, plan), flops)


def dense(model: nn.Module, optimizer: MakeOptimizer, batches: list[Batch]) -> Contestant:
    """A dense step, as every training loop has it."""
    update = optimizer(model.parameters(), lr=LR)
    data = cycle(batches)

    def step() -> None:
        x, y = next(data)
        update.zero_grad()
        data_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        update.step()

    return Contestant(step)


def gated_step(gated: l0arm.Gated, network: Network) -> Callable[[], None]:
    """The same step around ``gated.loss``."""
    update = network.ours_optimizer(gated.parameter_groups(lr=LR, gate_lr=0.0))
    data: Iterator[Batch] = cycle(network.our_batches)

    def step() -> None:
        x, y = next(data)
        update.zero_grad()
        gated.loss(lambda: data_loss(gated(x), y)).total.backward()  # type: ignore[no-untyped-call]
        update.step()

    return step


def data_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of images, or of all characters of all texts."""
    return F.cross_entropy(scores.flatten(0, -2), labels.flatten())


def flop_ratio(gated: l0arm.Gated, network: Network, state: str) -> float:
    """Expected FLOPs of a gated step over those of a dense one, forward and backward."""
    networks.set_gates(gated, network.states[state])
    x = network.our_batches[0][0][:1]
    return l0arm.expected_flops(gated, x).step / (3 * count_flops(network.ours(), x))


def measure_curve(plan: Plan) -> Curve:
    """LeNet-5's step time by open fraction, over the plain dense step, beside the FLOP ratio."""
    states = {f"{fraction:g}": networks.uniform(fraction) for fraction in FRACTIONS}
    measured = measure(replace(lenet5(), states=states, masked=frozenset()), plan)
    plain = measured.times[DENSE, PLAIN]
    curve: Curve = {}
    for label in (ARM, AR):
        spreads = [ratio(measured.times[state, label], plain) for state in states]
        curve[label] = {
            "fraction": list(FRACTIONS),
            "time": [s.median for s in spreads],
            "low": [s.low for s in spreads],
            "high": [s.high for s in spreads],
            "flops": [measured.flops[state, label] for state in states],
        }
    return curve


def lenet5() -> Network:
    """Batches of 100 digits."""
    return Network(
        "LeNet-5",
        networks.PlainLeNet5,
        LeNet5,
        torch.optim.Adam,
        digits(),
        digits(),
        {"p = 0.5": networks.uniform(0.5), "converged 6-10-39-11": networks.lenet5_converged},
        frozenset({"p = 0.5", "converged 6-10-39-11"}),
    )


def mlp() -> Network:
    """Batches of 100 digits."""
    return Network(
        "MLP",
        networks.PlainMLP,
        MLP,
        torch.optim.Adam,
        digits(),
        digits(),
        {
            "p = 0.8/0.5/0.5": networks.initial,
            "converged 159-74-73": networks.converged(159, 74, 73),
        },
        frozenset({"p = 0.8/0.5/0.5", "converged 159-74-73"}),
    )


def shrunk(network: Network, state: str) -> Network:
    """A network that has converged to one of its states, without the units that are closed."""

    def gate(model: nn.Module, **options: Any) -> l0arm.Gated:
        gated = l0arm.sparsify(model, **options)
        networks.set_gates(gated, network.states[state])
        return l0arm.shrink(gated, bound=2 * networks.CLOSED)

    return replace(
        network,
        name=f"{network.name}, shrunk",
        states={state: lambda gated: gated.gates.probs.detach()},  # as shrink left them
        masked=frozenset(),
        rows=GATED[:2],
        gate=gate,
        alone=True,
    )


def resnet20(batch: int = 128) -> Network:
    """A residual network of a user, planned; random images. Ours is the same in channels-last."""
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    last = torch.channels_last
    return _planned(
        Network(
            "ResNet-20",
            networks.PlainResNet20,
            lambda: networks.PlainResNet20().to(memory_format=last),  # type: ignore[call-overload]
            torch.optim.Adam,
            [(x, y)],
            [(x.contiguous(memory_format=last), y)],
            {"gates at 0.95": networks.uniform(0.95)},
        )
    )


def transformer(batch: int = 32) -> Network:
    """A causal transformer over characters, planned; random texts."""
    x, y = torch.randint(97, (2, batch, 64))
    plain = networks.PlainTransformer
    return _planned(Network("transformer", plain, plain, torch.optim.Adam, [(x, y)], [(x, y)], {}))


def _planned(network: Network) -> Network:
    """With groups that ``plan`` finds, DisARM, and a state in which half of the MACs are open."""
    x = network.our_batches[0][0]

    def gate(model: nn.Module, **options: Any) -> l0arm.Gated:
        return l0arm.sparsify(model, example_inputs=(x[:2],), **options)

    return replace(
        network,
        states={**network.states, "half of the MACs open": networks.half_of_the_macs(x[:1])},
        rows=((DISARM, "l0-disarm", "sliced"),),
        gate=gate,
    )


def wrn(batch: int = 16) -> Network:
    """Random images; our network uses channels-last, the plain one NCHW."""
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    last = torch.channels_last
    sgd = partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return Network(
        "WRN-28-10",
        networks.PlainWideResNet,
        lambda: WideResNet().to(memory_format=last),  # type: ignore[call-overload]
        sgd,
        [(x, y)],
        [(x.contiguous(memory_format=last), y)],
        {"70 % open": networks.uniform(0.7), "50 % open": networks.uniform(0.5)},
        frozenset({"50 % open"}),
        ours_optimizer=partial(sgd, fused=True),
    )


def digits() -> list[Batch]:
    """Ten batches of MNIST-mini, so that consecutive steps see different digits."""
    data = mnist_mini()
    images, labels = data.train_images[:1000].float() / 255, data.train_labels[:1000]
    return list(zip(images.view(10, 100, 1, 28, 28), labels.view(10, 100), strict=True))
