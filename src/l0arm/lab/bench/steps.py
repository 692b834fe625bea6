"""Training steps: dense twice (plain, and with our model file and optimizer), and gated.

A step is zero_grad, loss, backward, optimizer step, on a batch that lies ready. The learning rate
is so small that neither weights nor gates move: every block measures the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm
from l0arm.lab.bench import states
from l0arm.lab.bench.networks import PlainLeNet5, PlainMLP, PlainWideResNet
from l0arm.lab.bench.timing import Contestant, Plan, interleave
from l0arm.lab.data import mnist_mini
from l0arm.models import MLP, LeNet5, WideResNet

LR = 1e-8
PLAIN, OURS = "plain dense", "our dense"
ARM, AR, MASKED = "ARM sliced", "AR sliced", "ARM masked"
DENSE = ""  # the state of a network without gates

Batch = tuple[Tensor, Tensor]
Key = tuple[str, str]  # state, contestant
MakeOptimizer = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class Network:
    """What one section needs: both networks, their data and optimizer, and the states to time."""

    name: str
    plain: Callable[[], nn.Module]
    ours: Callable[[], nn.Module]
    optimizer: MakeOptimizer
    batches: list[Batch]
    our_batches: list[Batch]
    states: Mapping[str, states.State]
    masked: frozenset[str]  # states with a masked row


@dataclass(frozen=True)
class Measured:
    """Milliseconds of a step for every round, and what the FLOPs alone would say."""

    times: dict[Key, list[float]]
    flops: dict[Key, float]


def measure(network: Network, plan: Plan) -> Measured:
    """All rows of one network, interleaved."""
    contestants = {
        (DENSE, PLAIN): dense(network.plain(), network.optimizer, network.batches),
        (DENSE, OURS): dense(network.ours(), _fused(network.optimizer), network.our_batches),
    }
    flops: dict[Key, float] = {}
    for label, method, execution in (
        (ARM, "l0-arm", "sliced"),
        (AR, "l0-ar", "sliced"),
        (MASKED, "l0-arm", "masked"),
    ):
        gated = l0arm.sparsify(network.ours(), method=method, execution=execution, lam=1e-7)  # type: ignore[arg-type]
        step = gated_step(gated, network)
        for state in network.states:
            if label == MASKED and state not in network.masked:
                continue
            contestants[state, label] = Contestant(step, _putter(gated, network.states[state]))
            if label != MASKED:
                flops[state, label] = flop_ratio(gated, network, state)
    return Measured(interleave(contestants, plan), flops)


def dense(model: nn.Module, optimizer: MakeOptimizer, batches: list[Batch]) -> Contestant:
    """The loop that every user writes."""
    update = optimizer(model.parameters(), lr=LR)
    data = cycle(batches)

    def step() -> None:
        x, y = next(data)
        update.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        update.step()

    return Contestant(step)


def gated_step(gated: l0arm.Gated, network: Network) -> Callable[[], None]:
    """The same loop around ``gated.loss``."""
    update = _fused(network.optimizer)(gated.parameter_groups(lr=LR, gate_lr=0.0))
    data: Iterator[Batch] = cycle(network.our_batches)

    def step() -> None:
        x, y = next(data)
        update.zero_grad()
        gated.loss(lambda: F.cross_entropy(gated(x), y)).total.backward()  # type: ignore[no-untyped-call]
        update.step()

    return step


def flop_ratio(gated: l0arm.Gated, network: Network, state: str) -> float:
    """Expected FLOPs of a gated step over those of a dense one, forward and backward."""
    states.put(gated, network.states[state])
    expected = l0arm.expected_flops(gated, network.our_batches[0][0][:1])
    return expected.step / (3 * expected.dense)


def lenet5() -> Network:
    """Batches of 100 digits."""
    return Network(
        "LeNet-5",
        PlainLeNet5,
        LeNet5,
        torch.optim.Adam,
        digits(),
        digits(),
        {"p = 0.5": states.uniform(0.5), "converged 6-10-39-11": states.lenet5_converged},
        frozenset({"p = 0.5", "converged 6-10-39-11"}),
    )


def mlp() -> Network:
    """Batches of 100 digits."""
    return Network(
        "MLP",
        PlainMLP,
        MLP,
        torch.optim.Adam,
        digits(),
        digits(),
        {"p = 0.8/0.5/0.5": states.initial, "converged 159-74-73": states.converged(159, 74, 73)},
        frozenset({"p = 0.8/0.5/0.5", "converged 159-74-73"}),
    )


def wrn(batch: int = 16) -> Network:
    """Random images; our networks in channels-last, the plain one in NCHW."""
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    last = torch.channels_last
    return Network(
        "WRN-28-10",
        PlainWideResNet,
        lambda: WideResNet().to(memory_format=last),  # type: ignore[call-overload]
        lambda parameters, lr=LR, **options: torch.optim.SGD(
            parameters, lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4, **options
        ),
        [(x, y)],
        [(x.contiguous(memory_format=last), y)],
        {"70 % open": states.uniform(0.7), "50 % open": states.uniform(0.5)},
        frozenset({"50 % open"}),
    )


def digits() -> list[Batch]:
    """A few batches, so that no step sees the digits of the step before."""
    data = mnist_mini()
    images, labels = data.train_images[:1000].float() / 255, data.train_labels[:1000]
    return list(zip(images.view(10, 100, 1, 28, 28), labels.view(10, 100), strict=True))


def _fused(optimizer: MakeOptimizer) -> MakeOptimizer:
    def make(parameters: Any, **options: Any) -> torch.optim.Optimizer:
        return optimizer(parameters, fused=True, **options)

    return make


def _putter(gated: l0arm.Gated, state: states.State) -> Callable[[], None]:
    return lambda: states.put(gated, state)
