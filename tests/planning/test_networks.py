"""On every family: the small network computes what zeroing does, and every gate frees weights."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers.plans import Network
from torch import Tensor, nn

from l0arm import Gated, sparsify
from l0arm.planning import Plan

# What each network must have: units of each group and how it is executed, in order; the share of
# weights in groups that can be removed must not fall.
EXPECTED: dict[str, tuple[str, float]] = {
    "lenet": ("6 10 12", 0.95),
    "post-activation resnet": ("6 6 10 10", 0.96),
    "pre-activation resnet": ("8 6 6", 0.95),
    "mobilenet": ("6 12p 4 12p 4", 0.92),
    "resnext": ("4p 6", 0.86),
    "densenet": ("6 4 4 4", 0.91),
    "inception": ("6 4 6 5 3 7", 0.95),
    "shufflenet": ("2 6p 6p 7", 0.71),
    "channel shuffle": ("4 7", 0.88),
    "u-net": ("6 8 10 8 7 6", 0.97),
    "convnext": ("12 12", 0.47),
    "mixer": ("10 14", 0.67),
    "group norm": ("4p 6", 0.87),
    "instance norm": ("8p 6", 0.92),
    "one and three dimensions": ("2p 7p", 0.62),
    "attention, open view": ("4 10", 0.49),
    "attention, counted view": ("4p 10", 0.49),
    "attention, trap": ("4p 10", 0.49),
    "attention, literal": ("4p 10", 0.49),
    "attention, template": ("4m 10", 0.20),
    "fused attention": ("4p 10", 0.49),
    "grouped queries": ("2 10", 0.45),
    "tied decoder": ("2p 10", 0.50),
    "multi-head attention": ("4r 10", 0.49),
    "transformer encoder": ("2r 12 2r 12", 0.58),
    "tied weights": ("8", 0.91),
    "module used twice": ("8", 0.90),
    "lstm tagger": ("9", 0.16),
}

Planned = Callable[[str], Plan]
Oracle = Callable[[nn.Module, Plan, Tensor], nn.Module]
every_network = pytest.mark.parametrize("name", EXPECTED)


def described(found: Plan) -> str:
    marks = {"as is": "", "patched": "p", "replaced": "r", "masked": "m"}
    return " ".join(f"{e.group.units}{marks[e.execution]}" for e in found.planned)


def masks(found: Plan) -> list[Tensor]:
    """Two at random; one unit of every group; all but one; one group whole."""
    units = [group.units for group in found.groups]
    one = torch.cat([torch.arange(n) != n // 2 for n in units])
    most = torch.cat([torch.arange(n) == n // 2 for n in units])
    empty = torch.cat([torch.full((n,), place > 0) for place, n in enumerate(units)])
    random = [torch.rand(sum(units)) < 0.5 for _ in range(2)]
    return [mask.double() for mask in (*random, one, most, empty)]


def close(gated: Gated, z: Tensor) -> None:
    """Let z be z-bar."""
    gated.phi.data = torch.where(z > 0, 9.0, -9.0).to(gated.phi)


def difference(one: nn.Module, other: nn.Module, inputs: tuple[Any, ...], training: bool) -> float:
    one.train(training)
    other.train(training)
    with torch.no_grad():
        got, want = one(*inputs), other(*inputs)
    return float((got - want).abs().max() / want.abs().max().clamp(min=1e-3))


@every_network
def test_the_groups_are_these(name: str, planned: Planned) -> None:
    found = planned(name)
    assert described(found) == EXPECTED[name][0]


@every_network
def test_the_small_network_computes_what_zeroing_does(
    name: str, network: Network, planned: Planned, zeroed: Oracle
) -> None:
    model, inputs = network(name)
    found = planned(name)
    gated = sparsify(model, found, "l0-arm", lam=0.0).double()
    for z in masks(found):
        close(gated, z)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one group is closed whole
            small = gated.compact()
        gated.engine.detach()
        oracle = zeroed(gated.model, found, z)
        gated.engine.attach(gated.model)
        for training in (False, True):
            assert difference(small, oracle, inputs, training) < 1e-10


@every_network
def test_every_gate_frees_weights(name: str, network: Network, planned: Planned) -> None:
    model, _ = network(name)
    found = planned(name)
    dense = sum(p.numel() for p in model.parameters())
    gated = sparsify(model, found, "l0-arm", lam=0.0).double()
    for number, entry in enumerate(found.planned):
        if entry.execution != "masked":
            z = torch.ones(gated.layout.gates)
            z[gated.layout.span(number).start] = 0
            close(gated, z)
            assert sum(p.numel() for p in gated.compact().parameters()) < dense


@every_network
def test_the_share_that_can_be_removed_does_not_fall(
    name: str, network: Network, planned: Planned
) -> None:
    """With every group down to one unit."""
    model, _ = network(name)
    found = planned(name)
    dense = sum(p.numel() for p in model.parameters())
    gated = sparsify(model, found, "l0-arm", lam=0.0).double()
    close(gated, masks(found)[3])
    left = sum(p.numel() for p in gated.compact().parameters())
    assert 1 - left / dense >= EXPECTED[name][1]


@every_network
def test_fractions_are_folded_once(name: str, network: Network, planned: Planned) -> None:
    """z-bar = g(phi) between 1/2 and 1 (Eq. 14): gated, sliced or masked, and small agree."""
    model, inputs = network(name)
    gated = sparsify(model, planned(name), "l0-arm", lam=0.0).double().eval()
    gated.phi.data = torch.cat([torch.linspace(-0.1, 0.3, g.units) for g in gated.groups]).double()
    small = gated.compact()
    for execution in ("sliced", "masked"):
        gated.execution = execution
        assert difference(gated, small, inputs, training=False) < 1e-10


@pytest.mark.parametrize("name", ["mobilenet", "fused attention", "multi-head attention"])
def test_gated_training_takes_a_step(name: str, network: Network) -> None:
    """The gradient of the loss reaches phi and the weights through sliced execution."""
    model, inputs = network(name)
    gated = sparsify(model, example_inputs=inputs, method="l0-disarm", lam=1e-4, initial=0.95)
    loss = gated.double().loss(lambda: gated(*inputs).square().mean())
    loss.total.backward()
    assert float(gated.phi.grad.abs().sum()) > 0
    assert all(p.grad is not None for p in gated.model.parameters())
