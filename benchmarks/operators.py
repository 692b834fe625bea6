"""CPU time of single operators that a gated step could be built from, on one thread.

    python -m benchmarks.operators cutting
    python -m benchmarks.operators widths
    python -m benchmarks.operators formats
    python -m benchmarks.operators kernels
    python -m benchmarks.operators denormals
    python -m benchmarks.operators inputs
    python -m benchmarks.operators layers
    python -m benchmarks.operators residual
    python -m benchmarks.operators floors
    python -m benchmarks.operators adam
    python -m benchmarks.operators norms
    python -m benchmarks.operators pages
    python -m benchmarks.operators rounding
    python -m benchmarks.operators compiled

``cutting``: ways to cut the weights of a linear layer and to put their gradient back. ``widths``:
convolutions at widths that a draw leaves. ``formats``: the same in both memory formats.
``kernels``: convolutions of many shapes, with the capacity of oneDNN's cache set at different
times. ``denormals``: Adam while gradients stay zero. ``inputs``: leaving closed inputs out, or
zeroing them. ``layers``: convolution, BatchNorm and ReLU of a ResNet-20 at widths that a draw
leaves. ``residual``: steps of that network, dense, gated, and of plain networks that were cut
beforehand. ``floors``: the same for undecided gates of the MLP and of LeNet-5. ``adam``: fused Adam
of torch and ours. ``norms``: BatchNorm in channels-last at widths that a draw leaves, by threads.
``pages``: steps of that network with and without memory that is given back to the system.
``rounding``: gated steps with widths rounded up to multiples of 1 to 16. ``compiled``: what
``torch.compile`` gains for compact networks, and for masked training. Rows are interleaved: the
median over rounds.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def microseconds(
    rows: dict[str, Callable[[], object]],
    rounds: int = 7,
    steps: int = 60,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """The median over rounds of each row."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, call in rows.items():
            call()
            start = clock()
            for _ in range(steps):
                call()
            times[name].append(1e6 * (clock() - start) / steps)
    return {name: median(found) for name, found in times.items()}


class OwnNode(torch.autograd.Function):
    """Rows and columns of a weight, whose gradient is written into a buffer that is kept."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor, columns: Tensor, full: Tensor) -> Tensor:
        ctx.places = rows.numpy(), columns.numpy(), full.numpy()
        return weight.index_select(0, rows).index_select(1, columns)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        rows, columns, full = ctx.places
        full.fill(0.0)
        wide = np.zeros((len(rows), full.shape[1]), full.dtype)
        wide[:, columns] = gradient.numpy()
        full[rows] = wide
        return torch.from_numpy(full), None, None, None


def cutting() -> None:
    """300 x 784 weights, half of the rows and 0.8 of the columns open, 100 inputs."""
    weight, x = torch.randn(300, 784, requires_grad=True), torch.randn(100, 784)
    rows, columns = (torch.randperm(n)[:k].sort().values for n, k in ((300, 150), (784, 627)))
    gradient, signal, full = torch.randn(150, 627), torch.randn(100, 150), torch.zeros(300, 784)
    z = torch.zeros(784).index_fill_(0, columns, 1.0)
    held = weight.detach()
    tall = held.index_select(0, rows)
    small, gathered, masked = tall.index_select(1, columns), x.index_select(1, columns), x * z

    def nodes() -> None:
        weight.grad = None
        weight.index_select(0, rows).index_select(1, columns).backward(gradient)

    def own_node() -> None:
        weight.grad = None
        OwnNode.apply(weight, rows, columns, full).backward(gradient)

    _tell(
        {
            "cut rows": lambda: held.index_select(0, rows),
            "cut columns": lambda: tall.index_select(1, columns),
            "gather the input": lambda: x.index_select(1, columns),
            "multiply the input by z": lambda: x * z,
            "product, columns cut": lambda: gathered @ small.t(),
            "product, columns left": lambda: masked @ tall.t(),
            "weight gradient, columns cut": lambda: signal.t() @ gathered,
            "weight gradient, columns left": lambda: signal.t() @ masked,
            "cut and put back: nodes of index_select": nodes,
            "cut and put back: an own node": own_node,
        }
    )


def widths() -> None:
    """5 x 5 convolutions of 100 images of 12 x 12, channels last."""
    rows: dict[str, Callable[[], object]] = {}
    for inputs, outputs in ((10, 25), (12, 24), (12, 28), (12, 32), (16, 25), (16, 32), (20, 50)):
        x = torch.rand(100, inputs, 12, 12).contiguous(memory_format=torch.channels_last)
        w = torch.rand(outputs, inputs, 5, 5)
        y = F.conv2d(x, w)
        rows[f"{inputs} to {outputs}, forward"] = lambda x=x, w=w: F.conv2d(x, w)
        rows[f"{inputs} to {outputs}, backward"] = lambda x=x, w=w, y=y: _backward(x, w, y)
    _tell(rows, steps=5)


def formats() -> None:
    """3 x 3 convolutions of 32 images at full width and at 0.7 of it, in both memory formats."""
    rows: dict[str, Callable[[], object]] = {}
    for inputs, outputs, side in ((16, 16, 32), (11, 11, 32), (32, 32, 16), (23, 22, 16)):
        for name, kind in (("NCHW", torch.contiguous_format), ("last", torch.channels_last)):
            x = torch.rand(32, inputs, side, side).contiguous(memory_format=kind)
            w = torch.rand(outputs, inputs, 3, 3)
            y = F.conv2d(x, w, padding=1)
            row = f"{inputs} to {outputs}, {name}"
            rows[f"{row}, forward"] = lambda x=x, w=w: F.conv2d(x, w, padding=1)
            rows[f"{row}, backward"] = lambda x=x, w=w, y=y: _backward(x, w, y, 1)
    _tell(rows, steps=3)


def _backward(x: Tensor, w: Tensor, y: Tensor, padding: int = 0) -> object:
    ones, zeros = [1, 1], [0, 0]
    return torch.ops.aten.convolution_backward(
        y, x, w, [len(w)], ones, [padding] * 2, ones, False, zeros, 1, [True, True, True]
    )


def kernels(when: str = "") -> None:
    """500 shapes of 5 x 5 convolutions, four times: milliseconds each, per round."""
    if not when:
        for moment in ("never", "after torch is imported", "after a convolution"):
            outside = {key: value for key, value in os.environ.items() if key != CAPACITY}
            command = [sys.executable, "-m", "benchmarks.operators", "kernels", moment]
            subprocess.run(command, check=True, env=outside)
        return
    if when == "after a convolution":
        F.conv2d(torch.rand(32, 16, 16, 16), torch.rand(40, 16, 3, 3))
    if when != "never":
        os.environ[CAPACITY] = "16384"
    generator, found = torch.Generator().manual_seed(0), []
    shapes = torch.randint(0, 20, (500, 2), generator=generator).tolist()
    for _ in range(4):
        start = time.process_time()
        for narrow, wide in shapes:
            x = torch.rand(20, 5 + narrow // 2, 12, 12, requires_grad=True)
            w = torch.rand(15 + wide, 5 + narrow // 2, 5, 5, requires_grad=True)
            F.conv2d(x, w).sum().backward()
        found.append(f"{1e3 * (time.process_time() - start) / len(shapes):.2f}")
    print(f"capacity set {when}: {' '.join(found)} ms")


def denormals() -> None:
    """Fused Adam for 300 x 784 weights whose gradients have become zero, as those of closed units.

    Its moments decay. Then: which thread flushes denormals, by the moment at which it is set.
    """
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        weight = torch.nn.Parameter(torch.rand(300, 784))
        adam = torch.optim.Adam([weight], lr=1e-8, fused=True)
        weight.grad = torch.randn(300, 784) * 1e-3
        adam.step()
        weight.grad.zero_()
        found = []
        for _ in range(10):
            row = {"step": adam.step}
            found.append(microseconds(row, rounds=1, steps=99)["step"])
        steps = " ".join(f"{us:.0f}" for us in found)
        print(f"flushed: {flush}; each hundred steps: {steps} us a step")
    torch.set_flush_denormal(False)
    for moment in ("before", "after"):
        command = [sys.executable, "-c", FLUSHED, moment]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"})


FLUSHED = """
import sys, torch
before = sys.argv[1] == "before"
torch.set_flush_denormal(before)
x = torch.full((4_000_000,), 1e-39)
x + x
torch.set_flush_denormal(True)
halves = (0.5 * x).view(torch.int32).view(2, -1)
print(f"set {sys.argv[1]} the first large operation, 2 threads: denormals that are left in each"
      f" half: {(halves != 0).sum(1).tolist()}")
"""


def inputs() -> None:
    """300 x 784 weights, half of the rows and 0.8 of the columns open, 100 inputs: the forward
    pass, twice, and the gradient of the weights, with what cuts the inputs and puts back."""
    x, weight = torch.rand(100, 784), torch.rand(300, 784)
    rows = torch.randperm(300)[:150].sort().values
    closed, open_ones = (part.sort().values for part in torch.randperm(784).split([157, 627]))
    gradient = torch.rand(100, 150)

    def left_out() -> Tensor:
        for _ in range(2):
            read = x.index_select(1, open_ones)
            F.linear(read, weight.index_select(0, rows).index_select(1, open_ones))
        own = torch.zeros(150, 784).index_add_(1, open_ones, gradient.t() @ read)
        return torch.zeros(300, 784).index_add_(0, rows, own)

    def zeroed() -> Tensor:
        for _ in range(2):
            read = x.index_fill(1, closed, 0.0)
            F.linear(read, weight.index_select(0, rows))
        return torch.zeros(300, 784).index_add_(0, rows, gradient.t() @ read)

    _tell({"left out": left_out, "zeroed": zeroed})


def layers() -> None:
    """3 x 3 convolution, BatchNorm and ReLU of 128 images, channels last: two passes, one back."""
    for side, sizes in ((32, (8, 11, 14, 15, 16)), (16, (16, 17, 21, 31, 32)), (8, (48, 49, 64))):
        rows: dict[str, Callable[[], object]] = {}
        for width in sizes:
            layer = torch.nn.Sequential(
                torch.nn.Conv2d(width, width, 3, padding=1, bias=False),
                torch.nn.BatchNorm2d(width),
                torch.nn.ReLU(),
            )
            x = torch.rand(128, width, side, side).contiguous(memory_format=torch.channels_last)
            rows[f"{width} of {side} x {side}"] = lambda x=x, f=layer: _two_passes(f, x)
        _tell(rows, steps=2)


def _two_passes(layer: torch.nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        layer(x)
    layer(x.requires_grad_()).sum().backward()


def residual() -> None:
    """A ResNet-20 and 128 images: what two passes and one backward pass of stock operators take."""
    from l0arm.lab.bench import networks, steps  # not above: l0arm sets the capacity for kernels
    from l0arm.lab.runs.device import keep_freed_memory

    keep_freed_memory()
    network = steps.resnet20()
    gated = network.gate(network.ours(), method="l0-disarm", lam=steps.LAM)
    step, (x, y) = steps.gated_step(gated, network), network.our_batches[0]
    rows = {
        "plain dense": steps.dense(network.plain(), network.optimizer, network.batches).step,
        "channels-last, fused": steps.dense(
            network.ours(), network.ours_optimizer, network.our_batches
        ).step,
    }
    for width in (16, 12, 11, 8):
        model = networks.PlainResNet20(width).to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(model.parameters(), lr=steps.LR, fused=True)

        def cut(model: torch.nn.Module = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            with torch.no_grad():
                F.cross_entropy(model(x), y)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        rows[f"of width {width}, two passes"] = cut
    for name, state in network.states.items():
        networks.set_gates(gated, state)
        phi = gated.phi.detach().clone()

        def at(phi: Tensor = phi) -> None:
            gated.phi.data.copy_(phi)
            step()

        rows[f"gated, {name}"] = at
    _tell(rows, steps=3, rounds=5)


def floors() -> None:
    """The MLP and LeNet-5, undecided: what stock operators take for the open part alone."""
    from l0arm import optim, sparsify  # not above: l0arm sets the capacity for kernels
    from l0arm.lab.bench import networks, steps

    for network, state, widths in (
        (steps.mlp(), "p = 0.8/0.5/0.5", (627, 150, 50)),
        (steps.lenet5(), "p = 0.5", (10, 25, 400, 250)),
    ):
        gated = sparsify(network.ours(), method="l0-arm", lam=steps.LAM)
        networks.set_gates(gated, networks.converged(*widths))
        small, (x, y) = gated.compact(), network.our_batches[0]
        networks.set_gates(gated, network.states[state])
        whole = [p.detach().clone().requires_grad_() for p in network.ours().parameters()]
        for parameter in whole:
            parameter.grad = torch.zeros_like(parameter)
        of_small = optim.Adam(small.parameters(), lr=steps.LR)
        of_whole = optim.Adam(whole, lr=steps.LR)

        def cut(
            optimizer: Any = of_small, small: Any = small, x: Tensor = x, y: Tensor = y
        ) -> None:
            small.zero_grad()
            with torch.no_grad():
                F.cross_entropy(small(x), y)
            F.cross_entropy(small(x), y).backward()
            optimizer.step()

        _tell(
            {
                f"{network.name}, plain dense": steps.dense(
                    network.plain(), network.optimizer, network.batches
                ).step,
                f"{network.name}, ARM, {state}": steps.gated_step(gated, network),
                "cut beforehand, two passes": cut,
                "the same, Adam on all weights": partial(cut, of_whole),
            },
            steps=20,
        )


def norms() -> None:
    """BatchNorm of 128 images in channels-last, in training: time on the wall, by threads."""
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for side, sizes in ((32, (8, 11, 12, 15, 16)), (16, (21, 23, 24, 32)), (8, (45, 47, 48))):
            rows: dict[str, Callable[[], object]] = {}
            for width in sizes:
                x = torch.rand(128, width, side, side).contiguous(memory_format=torch.channels_last)
                norm, x = torch.nn.BatchNorm2d(width), x.requires_grad_()
                y = norm(x)
                given = (x, norm.weight, norm.bias)
                row = f"{threads} threads, {width} of {side} x {side}"
                rows[f"{row}, forward"] = lambda x=x, f=norm: f(x)
                rows[f"{row}, backward"] = lambda y=y, given=given: torch.autograd.grad(
                    y, given, y.detach(), retain_graph=True
                )
            _tell(rows, steps=5, clock=time.perf_counter)


def pages(memory: str = "") -> None:
    """Steps of a ResNet-20: time, and pages that the system clears for each."""
    if not memory:
        for way in ("given back", "kept"):
            subprocess.run([sys.executable, "-m", "benchmarks.operators", "pages", way], check=True)
        return
    import resource  # not on Windows

    from l0arm.lab.bench import networks, steps
    from l0arm.lab.runs.device import keep_freed_memory

    if memory == "kept":
        keep_freed_memory()
    network = steps.resnet20()
    gated = network.gate(network.ours(), method="l0-disarm", lam=steps.LAM)
    networks.set_gates(gated, network.states["half of the MACs open"])
    rows = {
        "plain dense": steps.dense(network.plain(), network.optimizer, network.batches).step,
        "gated, half of the MACs open": steps.gated_step(gated, network),
    }
    for _ in range(3):
        for name, step in rows.items():
            for _ in range(3):
                step()
            before, start = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
            for _ in range(8):
                step()
            after, took = resource.getrusage(resource.RUSAGE_SELF), time.process_time() - start
            faults = (after.ru_minflt - before.ru_minflt) / 8
            print(f"{memory}: {name:30} {1e3 * took / 8:6.0f} ms, {faults:6.0f} pages")


def rounding() -> None:
    """Gated steps whose convolutions have widths that are multiples of a number, by threads."""
    from l0arm import sparsify
    from l0arm.lab.bench import networks, steps
    from l0arm.lab.runs.device import keep_freed_memory

    keep_freed_memory()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for network, method, numbers in (
            (steps.resnet20(), "l0-disarm", (1, 4, 8, 16)),
            (steps.lenet5(), "l0-arm", (1, 2, 4, 8)),
        ):
            make = network.gate if method == "l0-disarm" else sparsify
            gated = make(network.ours(), method=method, lam=steps.LAM)
            convolutions = [
                any(gated.model.get_parameter(s.tensor).dim() == 4 for s in g.makes if s.dim == 0)
                for g in gated.groups
            ]
            step = steps.gated_step(gated, network)
            for name, state in list(network.states.items())[:2]:
                networks.set_gates(gated, state)
                rows: dict[str, Callable[[], object]] = {}
                for number in numbers:
                    multiples = tuple(number if is_one else 1 for is_one in convolutions)

                    def rounded(
                        multiples: tuple[int, ...] = multiples,
                        gated: Any = gated,
                        step: Callable[[], None] = step,
                    ) -> None:
                        gated.engine.widths.multiples = lambda: multiples
                        step()

                    rows[f"{threads} threads, {network.name}, {name}, {number}"] = rounded
                steps_of = 6 if method == "l0-disarm" else 100
                _tell(rows, steps=steps_of, rounds=5, clock=time.perf_counter)


def compiled() -> None:
    """Decided networks, gated and compact: eager, and by ``torch.compile`` with inductor."""
    from l0arm.lab.bench import networks, steps
    from l0arm.lab.runs.device import keep_freed_memory

    keep_freed_memory()
    for network, state in (
        (steps.mlp(), "converged 159-74-73"),
        (steps.lenet5(), "converged 6-10-39-11"),
        (steps.resnet20(), "half of the MACs open"),
        (steps.transformer(), "half of the MACs open"),
    ):
        rows: dict[str, Callable[[], object]] = {}

        def gate(execution: str, network: Any = network, state: str = state) -> Any:
            model = network.ours()
            gated = network.gate(model, method="l0-disarm", execution=execution, lam=steps.LAM)
            networks.set_gates(gated, network.states[state])
            z = gated.gates.sample(torch.Generator().manual_seed(0))  # the same in every row
            networks.set_gates(gated, lambda _: z.clamp(networks.CLOSED, networks.OPEN))
            return gated

        gated = gate("sliced")
        small, x = gated.compact().eval(), network.our_batches[0][0]
        rows["gated step, sliced"] = steps.gated_step(gated, network)
        rows["gated step, masked"] = steps.gated_step(gate("masked"), network)
        by_layer = gate("masked")
        for module in by_layer.model.modules():
            if not list(module.children()):
                module.forward = torch.compile(module.forward, dynamic=False)
        rows["gated step, masked, every layer compiled"] = steps.gated_step(by_layer, network)
        optimizer, batches = network.ours_optimizer, network.our_batches
        for name, model in (("eager", small), ("compiled", torch.compile(small, dynamic=False))):
            trained = copy.deepcopy(small).train()
            trained = trained if name == "eager" else torch.compile(trained, dynamic=False)
            rows[f"compact, training step, {name}"] = steps.dense(trained, optimizer, batches).step
            rows[f"compact, inference, {name}"] = torch.no_grad()(partial(model, x))
        _tell({f"{network.name}: {name}": row for name, row in rows.items()}, steps=5, rounds=5)


def adam() -> None:
    """A step of fused Adam for two groups: an MLP of two sizes, and its gates."""
    from l0arm.models import MLP
    from l0arm.optim import Adam

    rows: dict[str, Callable[[], object]] = {}
    for sizes in ((784, 300, 100, 10), (159, 74, 73, 10)):
        for name, kind in (("torch", partial(torch.optim.Adam, fused=True)), ("l0arm", Adam)):
            weights = list(MLP(sizes).parameters())
            gates = [torch.zeros(sum(sizes[:-1]), requires_grad=True)]
            for parameter in weights + gates:
                parameter.grad = torch.rand_like(parameter)
            groups = [{"params": weights}, {"params": gates, "lr": 2e-8}]
            rows[f"{'-'.join(map(str, sizes))}, {name}"] = kind(groups, lr=1e-8).step
    _tell(rows, steps=400)


def _tell(
    rows: dict[str, Callable[[], object]],
    steps: int = 60,
    rounds: int = 7,
    clock: Callable[[], float] = time.process_time,
) -> None:
    for name, found in microseconds(rows, rounds, steps, clock).items():
        print(f"{name:50} {found:8.1f} us")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    modes = (cutting, widths, formats, kernels, denormals, inputs, layers, residual, floors, adam)
    modes += (norms, pages, rounding, compiled)
    {mode.__name__: mode for mode in modes}[sys.argv[1]](*sys.argv[2:])
