"""What all tests share: one torch thread, one seed, and the optional folder of outside data."""

import copy
import math
import os
import signal
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import settings
from torch import Tensor, nn

from l0arm import Gated, HardSigmoid, sparsify
from l0arm.models import MLP, LeNet5, WideResNet
from l0arm.models.pooled_conv import SMALL_BATCH

DATA_DIR = os.environ.get("L0ARM_DATA_DIR", "")

# The first call of a torch operator is slow, which a deadline would mistake for a failure.
settings.register_profile("l0arm", deadline=None, derandomize=True)
settings.load_profile("l0arm")


def pytest_configure(config: pytest.Config) -> None:
    # One thread sums in one order, run after run, and leaves the cores to pytest-xdist.
    torch.set_num_threads(1)
    # A suite in the background (`make test &`, nohup) starts with these signals ignored, and the
    # processes of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.name == "posix":
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without L0ARM_DATA_DIR, deselect the tests that ask for the `data_dir` fixture."""
    if DATA_DIR:
        return
    needing = [item for item in items if "data_dir" in getattr(item, "fixturenames", ())]
    items[:] = [item for item in items if item not in needing]
    if needing:
        config.hook.pytest_deselected(items=needing)


@pytest.fixture
def data_dir() -> Path:
    """The folder of the MNIST files, plain or gzipped."""
    return Path(DATA_DIR)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def integral() -> Callable[..., Tensor]:
    """Integrates over u in (0, 1)^V what is a polynomial in u between the edges 0, p, 1 - p, 1.

    An estimate at given u is: its draws change at the edges only. Gauss-Legendre with ``points``
    nodes per cell is exact up to degree 2 points - 1.
    """

    def integrate(of: Callable[[Tensor], Tensor], pi: Tensor, points: int = 1) -> Tensor:
        nodes, weights = np.polynomial.legendre.leggauss(points)
        axes = [
            [
                ((low + high) / 2 + (high - low) / 2 * node, (high - low) / 2 * weight)
                for low, high in pairwise(sorted([0.0, p, 1 - p, 1.0]))
                if low < high
                for node, weight in zip(nodes, weights, strict=True)
            ]
            for p in pi.tolist()
        ]
        return sum(
            math.prod(volume for _, volume in cell)
            * of(torch.tensor([u for u, _ in cell], dtype=torch.float64))
            for cell in product(*axes)
        )

    return integrate


class Network:
    """One of the paper's networks with an input, and an oracle that knows nothing of slicing.

    The oracle is the plain network; a gate multiplies the *activation* that enters its reader.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        make, shape = {
            "mlp": (MLP, (6, 1, 28, 28)),
            "lenet5": (LeNet5, (SMALL_BATCH, 1, 28, 28)),
            "wrn": (lambda: WideResNet(10, 1), (4, 3, 12, 12)),
        }[name]
        self.name, self.dtype = name, dtype
        self.plain = make().to(dtype)
        self.x, self.y = torch.rand(shape).to(dtype), torch.arange(shape[0]) % 10
        for key, tensor in [*self.plain.named_parameters(), *self.plain.named_buffers()]:
            if "norm" in key and tensor.dim():  # statistics and scales of a network in use
                tensor.data.uniform_(0.5, 1.5)

    def gated(self, *, z: Tensor | None = None, execution: str = "sliced", **method: Any) -> Gated:
        """A fresh gated copy; ``z`` becomes its z-bar: closed gates sit at 0.25, below tau."""
        method = {"method": "l0-arm", "lam": 0.0, "gate": HardSigmoid(), **method}
        gated = sparsify(copy.deepcopy(self.plain), execution=execution, **method).to(self.dtype)
        if z is not None:
            gated.phi.data = torch.where(z == 0, 0.25, z).to(self.dtype) - 0.5
        return gated

    def gates(self, seed: int, *, fractional: bool = False, empty: Sequence[str] = ()) -> Tensor:
        """Gates of all groups: about half open, the named groups not at all."""
        random = torch.Generator().manual_seed(seed)
        parts = []
        for group in self.plain.groups():
            z = torch.rand(group.units, generator=random) * (group.name not in empty)
            parts.append(torch.where(z > 0.5, z if fractional else 1.0, 0.0))
        return torch.cat(parts).to(self.dtype)

    def oracle(self, z: Tensor) -> nn.Module:
        """The plain network with the input of every reader multiplied by its gates."""
        twin = copy.deepcopy(self.plain)
        parts = torch.split(z, [group.units for group in self.plain.groups()])
        gates = {g.name: part for g, part in zip(self.plain.groups(), parts, strict=True)}
        for reader, factor in self._factors(gates).items():
            twin.get_submodule(reader).register_forward_pre_hook(_times(factor))
        return twin

    def _factors(self, z: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.name == "mlp":
            return z  # each group is named after the layer that reads it
        if self.name == "lenet5":
            flat = z["conv2"].repeat_interleave(16) * z["fc1"]
            return {"conv2": z["conv1"].view(-1, 1, 1), "fc1": flat, "fc2": z["fc2"]}
        return {k.replace("conv1", "conv2"): part.view(-1, 1, 1) for k, part in z.items()}


def _times(factor: Tensor) -> Callable[..., tuple[Tensor]]:
    return lambda module, args: (args[0] * factor,)


@pytest.fixture
def network() -> Callable[..., Network]:
    """``network(name)`` with the name mlp, lenet5 or wrn, in float64 unless told otherwise."""
    return lambda name, dtype=torch.float64: Network(name, dtype)


@pytest.fixture
def trace() -> Callable[..., dict[str, Tensor]]:
    """All that a pass leaves: output, loss, the gradient of every weight, and the buffers."""

    def pass_once(model: nn.Module, x: Tensor, y: Tensor, call: Any = None) -> dict[str, Tensor]:
        output = (call or model)(x)
        loss = F.cross_entropy(output, y)
        loss.backward()
        return {
            "output": output.detach(),
            "loss": loss.detach(),
            **{f"gradient of {k}": p.grad for k, p in model.named_parameters()},
            **{k: b.clone() for k, b in model.named_buffers()},
        }

    return pass_once


@pytest.fixture
def written() -> Callable[..., dict[str, Tensor]]:
    """What the oracle's trace says of the buffers, but for rows of closed filters: as they were."""

    def mend(trace: dict[str, Tensor], network: Network, z: Tensor) -> dict[str, Tensor]:
        parts = torch.split(z, [group.units for group in network.plain.groups()])
        old = dict(network.plain.named_buffers())
        for group, part in zip(network.plain.groups(), parts, strict=True):
            for key in old:
                if key.startswith(group.name.replace("conv1", "norm2.running")):
                    trace[key] = torch.where(part != 0, trace[key], old[key])
        return trace

    return mend
