"""Run in a child process: layers at widths 1 to 17 in both memory formats, against float64.

``python -m tests.helpers.kernel_sweep SEED FIRST`` prints the name of a case, and, once computed,
the largest relative error of outputs and gradients. A crash or a hang ends the process, and leaves
the name without a figure. A third argument, ``unguarded``, leaves the library's guard out.
"""

from __future__ import annotations

import copy
import random
import signal
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from l0arm.gating.kernels import guard

WIDTHS = range(1, 18)
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
MAX = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVG = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
ADAPTIVE_AVG = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
ADAPTIVE_MAX = {1: nn.AdaptiveMaxPool1d, 2: nn.AdaptiveMaxPool2d, 3: nn.AdaptiveMaxPool3d}
BATCH = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
SHAPE = {1: (32, 24), 2: (64, 8), 3: (8, 6)}  # images of a batch, and their side
CPU, WALL = 60, 3600  # seconds for one layer, after which it hangs; the machine may be busy
REPEATS = 2  # a kernel that writes outside of its memory need not fail the first time


class Case(NamedTuple):
    """A layer at a width, in a memory format."""

    kind: str
    dims: int
    options: dict[str, Any]
    width: int
    last: bool

    def __str__(self) -> str:
        text = ", ".join(f"{key}={value}" for key, value in self.options.items())
        order = "channels-last" if self.last else "contiguous"
        return f"{self.kind}{self.dims}d({text}) at width {self.width}, {order}"

    def layer(self) -> nn.Module:
        d, w, o = self.dims, self.width, dict(self.options)
        if self.kind in ("conv", "transposed"):
            groups = w if o.pop("depthwise", False) else 1
            makes = o.pop("out", w)
            return (CONVS if self.kind == "conv" else TRANSPOSED)[d](w, makes, groups=groups, **o)
        if self.kind == "group-norm":
            return nn.GroupNorm(w if o["groups"] == "each" else 1, w)
        if self.kind == "layer-norm":
            return nn.LayerNorm((w, *[SHAPE[d][1]] * d))
        if self.kind in ("batch-norm", "instance-norm"):
            layer = (BATCH if self.kind == "batch-norm" else INSTANCE)[d](w, affine=True)
            return layer.train(o["train"])
        if self.kind == "response-norm":
            return nn.LocalResponseNorm(3)
        pools = {"max-pool": MAX, "avg-pool": AVG}
        adaptive = {"adaptive-avg": ADAPTIVE_AVG, "adaptive-max": ADAPTIVE_MAX}
        return {**pools, **adaptive}[self.kind][d](**o)


def cases() -> Iterator[Case]:
    """All of them."""
    for kind, dims, options in _layers():
        for width in WIDTHS:
            for last in (False, True):
                yield Case(kind, dims, options, width, last)


def _layers() -> Iterator[tuple[str, int, dict[str, Any]]]:
    for dims in (1, 2, 3):
        for kernel, stride in ((1, 1), (1, 2), (1, 3), (3, 1), (3, 2), (3, 3), (2, 2)):
            shape = {"kernel_size": kernel, "stride": stride, "padding": kernel // 3}
            for kind in ("conv", "transposed"):
                yield kind, dims, {**shape, "out": 32}
                yield kind, dims, {**shape, "out": 5}
                yield kind, dims, {**shape, "depthwise": True}
        yield "conv", dims, {"kernel_size": 3, "dilation": 2, "padding": 2, "out": 8}
        for kernel, stride, padding in ((2, 2, 0), (3, 2, 1), (3, 1, 1)):
            shape = {"kernel_size": kernel, "stride": stride, "padding": padding}
            yield "max-pool", dims, shape
            yield "avg-pool", dims, shape
        for size in (1, 3):
            yield "adaptive-avg", dims, {"output_size": size}
            yield "adaptive-max", dims, {"output_size": size}
        yield "group-norm", dims, {"groups": "one"}
        yield "group-norm", dims, {"groups": "each"}
        yield "layer-norm", dims, {}
        yield "response-norm", dims, {}
        for train in (True, False):
            yield "batch-norm", dims, {"train": train}
        yield "instance-norm", dims, {"train": True}


def in_format(x: Tensor, last: bool) -> Tensor:
    """The tensor with its channels last in memory, or as it is."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x


def results(layer: nn.Module, x: Tensor, slope: Tensor) -> list[Tensor]:
    """Output and gradients, by the input and by each parameter."""
    x = x.detach().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    (y * slope).sum().backward()
    grads = [p.grad for p in layer.parameters()]
    return [t.detach() for t in (y, x.grad, *grads) if t is not None]


def error(case: Case, *, guarded: bool = True) -> float:
    """The largest error of outputs and gradients, relative to the largest value of each."""
    images, side = SHAPE[case.dims]
    layer = case.layer()
    exact = copy.deepcopy(layer).double()
    if case.last and case.dims > 1 and case.kind in ("conv", "transposed"):
        order = torch.channels_last if case.dims == 2 else torch.channels_last_3d
        layer.to(memory_format=order)
    if guarded:
        guard(layer)
    x = torch.randn(images, case.width, *[side] * case.dims)
    with torch.no_grad():
        slope = torch.randn(copy.deepcopy(exact)(x.double()).shape)
    expected = results(exact, x.double(), slope.double())
    worst = 0.0
    for _ in range(REPEATS):
        found = results(layer, in_format(x, case.last), in_format(slope, case.last))
        for got, want in zip(found, expected, strict=True):
            gap = (got.double() - want).abs().max() / want.abs().max().clamp(min=1e-3)
            worst = max(worst, float(gap.nan_to_num(nan=float("inf"))))
    return worst


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    chosen = list(cases())
    random.Random(int(sys.argv[1])).shuffle(chosen)
    for case in chosen[int(sys.argv[2]) :]:
        print(case, flush=True)
        signal.setitimer(signal.ITIMER_PROF, CPU)  # these signals end a process
        signal.alarm(WALL)
        print(error(case, guarded="unguarded" not in sys.argv[3:]), flush=True)


if __name__ == "__main__":
    main()
