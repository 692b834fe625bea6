"""The guard around oneDNN's weight gradient of narrow, strided 1x1 convolutions (issue 6035).

Convolutions that could meet the broken kernel run in a child process: unguarded, it may crash.
"""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import l0arm
from l0arm.gating.kernels import KernelWarning, affected, guard

GUARDED = """
import torch
from torch import nn
from l0arm.gating.kernels import guard

torch.manual_seed(0)
worst = 0.0
for width in range(1, 18):
    for size in (8, 16):
        layer = nn.Conv2d(width, 32, 1, stride=2)
        exact = nn.Conv2d(width, 32, 1, stride=2).double()
        exact.load_state_dict(layer.state_dict())
        guard(layer)
        x = torch.randn(64, width, size, size).contiguous(memory_format=torch.channels_last)
        slope = torch.randn(64, 32, size // 2, size // 2)
        for _ in range(3):
            layer.zero_grad()
            (layer(x) * slope).sum().backward()
        (exact(x.double()) * slope.double()).sum().backward()
        pairs = [(p.grad, q.grad) for p, q in zip(layer.parameters(), exact.parameters())]
        for got, want in pairs:
            worst = max(worst, float((got - want).abs().max() / want.abs().max()))
print(worst)
"""

TRAINED = """
import torch
import torch.nn.functional as F
from torch import nn
import l0arm

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 1, stride=2),
    nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
).to(memory_format=torch.channels_last)
x = torch.rand(64, 3, 16, 16).contiguous(memory_format=torch.channels_last)
y = torch.arange(64) % 10
gated = l0arm.sparsify(net, example_inputs=x[:4], lam=0.0, initial=0.35)
optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-3))
for _ in range(40):
    optimizer.zero_grad()
    gated.loss(lambda: F.cross_entropy(gated(x), y)).backward()
    optimizer.step()
small = l0arm.compact(gated, optimizer=optimizer)
for _ in range(20):
    optimizer.zero_grad()
    F.cross_entropy(small(x), y).backward()
    optimizer.step()
print(all(bool(p.isfinite().all()) for p in small.parameters()))
"""


def run(code: str, **variables: str) -> str:
    """What a child process prints; a crash of it fails the test, not the tests."""
    line = [sys.executable, "-W", "ignore", "-c", code]
    outside = {**os.environ, **variables}
    done = subprocess.run(line, env=outside, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def channels_last(*shape: int) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


# Unguarded, the kernel for AVX2 crashes the process where that for AVX-512 may get values right.
@pytest.mark.parametrize("instructions", ["DEFAULT", "AVX2"])
def test_guarded_gradients_equal_those_of_float64_at_every_width(instructions: str) -> None:
    assert float(run(GUARDED, ONEDNN_MAX_CPU_ISA=instructions)) < 1e-4


def test_a_gated_residual_network_in_channels_last_trains_and_is_tuned() -> None:
    assert run(TRAINED, ONEDNN_MAX_CPU_ISA="AVX2") == "True"


@pytest.mark.parametrize(
    ("layer", "x", "expected"),
    [
        (nn.Conv2d(5, 8, 1, stride=2), channels_last(2, 5, 8, 8), True),
        (nn.Conv2d(5, 8, 1, stride=2), torch.randn(2, 5, 8, 8), False),  # NCHW
        (nn.Conv2d(16, 8, 1, stride=2), channels_last(2, 16, 8, 8), False),  # wide enough
        (nn.Conv2d(5, 8, 1, stride=2), channels_last(2, 5, 9, 9), False),  # nothing left over
    ],
)
def test_only_calls_that_would_use_the_kernel_are_affected(
    layer: nn.Conv2d, x: Tensor, expected: bool
) -> None:
    assert affected(layer, x) == expected
    with torch.no_grad():
        assert not affected(layer, x)


@pytest.mark.parametrize(
    "module",
    [
        *(nn.Linear(4, 4), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, stride=2), nn.Conv2d(4, 4, 1)),
        *(nn.Conv1d(4, 4, 1, stride=2), nn.Conv2d(16, 4, 1, stride=2)),
    ],
)
def test_other_modules_get_no_hook(module: nn.Module) -> None:
    assert guard(module) is None
    assert not module._forward_pre_hooks


def test_the_guard_leaves_the_values_and_acts_once() -> None:
    layer = nn.Conv2d(5, 8, 1, stride=2)
    plain, x = copy.deepcopy(layer), channels_last(2, 5, 8, 8)
    guard(layer)
    assert guard(layer) is None
    with torch.no_grad():
        expected = plain(x)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(copy.deepcopy(layer)(x), expected)


def strided() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 1, stride=2))
    return net.append(nn.Flatten()).append(nn.Linear(32 * 9, 4))


def test_a_compact_network_is_guarded_and_a_released_one_is_as_before(tmp_path: Path) -> None:
    """So are its copies and a network that was saved: any of them may be tuned."""
    net = strided()
    gated = l0arm.sparsify(net, example_inputs=torch.rand(2, 3, 8, 8), lam=0.0)
    gated.phi.data[:11] = -9.0
    gated.phi.data[11:] = 9.0
    small = gated.compact()
    l0arm.save(gated, tmp_path / "saved")
    for each in (small, copy.deepcopy(small), l0arm.load(tmp_path / "saved", strided)):
        assert len(each[2]._forward_pre_hooks) == 1
    gated.release()
    assert not any(module._forward_pre_hooks for module in net.modules())


class Own(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean()


def test_a_layer_with_a_forward_of_its_own_is_warned_of() -> None:
    layer = Own(5, 8, 1, stride=2)
    guard(layer)
    with pytest.warns(KernelWarning, match=r"oneDNN issue 6035.*round_to=16"):
        layer(channels_last(2, 5, 8, 8))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "16384"),
        ({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "7"}, "7"),
        ({"DNNL_PRIMITIVE_CACHE_CAPACITY": "7"}, "None"),
    ],
)
def test_more_compiled_kernels_are_kept_unless_the_user_chose(given, expected):
    """The variable is read at the first convolution, so it is set before torch is imported."""
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
    outside = {key: value for key, value in os.environ.items() if key not in names}
    code = f"import l0arm, os, sys; print(os.environ.get({names[0]!r}), 'torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, env=outside | given, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [expected, "False"]
