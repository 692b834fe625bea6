"""A network that was cut against its oracle: the dense one, with zeros where closed units are read.

Compared are outputs and gradients in eval and train mode, in float64.
"""

import warnings
from typing import Any

import torch
from tests.helpers.closing import with_zeros
from torch import Tensor, nn

from l0arm import Gated, Plan, plan, sparsify

Made = tuple[nn.Module, tuple[Any, ...]]
SAME = 1e-10


def doubled(model: nn.Module, *inputs: Tensor) -> Made:
    """In float64, with weights away from their start."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    cast = (x.double() if x.is_floating_point() else x for x in inputs)
    return model.double(), tuple(cast)


def described(found: Plan) -> dict[str, str]:
    """The execution of every group, with its units, by its name."""
    return {e.group.name: f"{e.group.units} {e.execution}" for e in found.planned}


def close(gated: Gated, z: Tensor) -> None:
    """Let z be z-bar."""
    gated.phi.data = torch.where(z > 0, 9.0, -9.0).to(gated.phi)


def cut(gated: Gated, z: Tensor) -> nn.Module:
    close(gated, z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a group may be closed whole
        return gated.compact(certify=False)


def masks(found: Plan) -> list[Tensor]:
    """At random; all but one unit of every group; one group whole."""
    units = [group.units for group in found.groups]
    some = torch.cat([(torch.rand(n) < 0.6) & (torch.arange(n) > 0) for n in units])
    most = torch.cat([torch.arange(n) == n // 2 for n in units])
    empty = torch.cat([torch.full((n,), place > 0) for place, n in enumerate(units)])
    return [mask.double() for mask in (some, most, empty)]


def check_cut(model: nn.Module, inputs: tuple[Any, ...], found: Plan | None = None) -> Plan:
    """Compare under several masks; the plan."""
    found = plan(model, inputs) if found is None else found
    gated = sparsify(model, found, "l0-arm", lam=0.0).double()
    for z in masks(found):
        small = cut(gated, z)
        assert sum(p.numel() for p in small.parameters()) < sum(
            p.numel() for p in gated.model.parameters()
        )
        gated.engine.detach()
        oracle = with_zeros(gated.model, found.groups, z)
        gated.engine.attach(gated.model)
        for training in (False, True):
            small.train(training)
            oracle.train(training)
            compare(small, oracle, inputs)
        compare_gradients(gated, inputs)
    return found


def compare(small: nn.Module, oracle: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Outputs, and gradients of the first float among the inputs."""
    results = []
    for network in (small, oracle):
        own = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        output = network(*own)
        weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
        (output * weights).sum().backward()
        results.append([output.detach(), *(x.grad for x in own if x.grad is not None)])
    for got, want in zip(*results, strict=True):
        assert float((got - want).abs().max()) <= SAME * float(want.abs().max().clamp(min=1e-3))


def compare_gradients(gated: Gated, inputs: tuple[Any, ...]) -> None:
    """Those of the dense weights, under sliced and masked execution."""
    found = []
    for execution in ("sliced", "masked"):
        gated.execution = execution
        gated.zero_grad()
        gated.eval()(*inputs).sin().sum().backward()
        found.append({name: p.grad for name, p in gated.model.named_parameters()})
    for name, want in found[1].items():
        got = found[0][name]
        if want is not None:
            assert got is not None, name
            scale = float(want.abs().max().clamp(min=1e-3))
            assert float((got - want).abs().max()) <= SAME * scale, name
    gated.execution = "sliced"
