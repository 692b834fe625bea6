"""Sliced, masked and compact execution compute what the gates mean: each equals the oracle.

The oracle (tests/conftest.py) multiplies activations, and shares no code with the engine.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from l0arm import EmptyGroupWarning

NETWORKS = ["mlp", "lenet5", "wrn"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
EXECUTIONS = ["sliced", "masked"]
GROUPS = {
    "mlp": ["fc1", "fc2", "fc3"],
    "lenet5": ["conv1", "conv2", "fc1", "fc2"],
    "wrn": ["blocks.0.conv1", "blocks.1.conv1", "blocks.2.conv1"],
}
ONE_EMPTY = [(name, [group]) for name, groups in GROUPS.items() for group in groups]
SEVERAL_EMPTY = [
    *((name, groups) for name, groups in GROUPS.items()),
    ("mlp", ["fc1", "fc3"]),
    ("lenet5", ["conv1", "conv2"]),
    ("lenet5", ["conv2", "fc1"]),
    ("lenet5", ["conv2", "fc2"]),
    ("wrn", ["blocks.0.conv1", "blocks.2.conv1"]),
]
warned_of_empty = pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")


@pytest.fixture
def both(trace: Any, written: Any) -> Callable[..., None]:
    """Everything a pass leaves is the same under the engine and under the oracle."""

    def check(net: Any, z: torch.Tensor, execution: str, *, training: bool = True) -> None:
        gated = net.gated(execution=execution).train(training)
        with gated.drawn(z):
            came = trace(gated.model, net.x, net.y, gated)
        expected = written(trace(net.oracle(z).train(training), net.x, net.y), net, z)
        tolerance = TOLERANCE[net.dtype]
        assert_close(came, expected, rtol=tolerance, atol=tolerance)

    return check


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_pass_under_binary_gates_equals_the_oracle(
    name: str, dtype: torch.dtype, training: bool, execution: str, network: Any, both: Any
) -> None:
    net = network(name, dtype)
    for seed in range(3):
        both(net, net.gates(seed), execution, training=training)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_pass_under_fractional_gates_equals_the_oracle(
    name: str, dtype: torch.dtype, training: bool, execution: str, network: Any, both: Any
) -> None:
    net = network(name, dtype)
    for seed in range(3):
        both(net, net.gates(seed, fractional=True), execution, training=training)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_single_closed_unit_equals_the_oracle(
    name: str, execution: str, network: Any, both: Any
) -> None:
    net = network(name)
    for closed in (0, 1, -1):  # of the first group twice, of the last group
        z = torch.ones_like(net.gates(0))
        z[closed] = 0
        both(net, z, execution)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_all_open_is_the_dense_network(name: str, execution: str, network: Any, both: Any) -> None:
    net = network(name)
    both(net, torch.ones_like(net.gates(0)), execution)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(("name", "full"), ONE_EMPTY + SEVERAL_EMPTY)
def test_groups_that_are_all_open_equal_the_oracle(
    name: str, full: list[str], binary: bool, execution: str, network: Any, both: Any
) -> None:
    net = network(name)
    z = net.gates(0, fractional=not binary)
    for group, part in net.gated().per_group(z).items():
        if group in full:
            part.copy_(torch.ones_like(part) if binary else torch.rand_like(part) + 0.1)
    both(net, z, execution)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(("name", "empty"), ONE_EMPTY + SEVERAL_EMPTY)
@warned_of_empty
def test_empty_groups_equal_the_oracle(
    name: str, empty: list[str], execution: str, network: Any, both: Any
) -> None:
    net = network(name)
    both(net, net.gates(0, empty=empty), execution)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("fractional", [False, True])
def test_filters_and_flat_inputs_without_a_common_open_position_equal_the_oracle(
    fractional: bool, execution: str, network: Any, both: Any
) -> None:
    net = network("lenet5")
    z = net.gates(0, fractional=fractional)
    z[70:870] *= 1 - (z[20:70] != 0).repeat_interleave(16).double()  # open only where conv2 is not
    assert z[20:70].any()
    assert z[70:870].any()
    both(net, z, execution)


@pytest.mark.parametrize("name", NETWORKS)
def test_z_bar_in_eval_mode_equals_the_oracle(name: str, network: Any) -> None:
    net = network(name)
    z = net.gates(0, fractional=True)
    gated = net.gated(z=z).eval()
    assert_close(gated(net.x), net.oracle(z).eval()(net.x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("fractional", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_compact_equals_the_oracle(
    name: str, fractional: bool, dtype: torch.dtype, network: Any
) -> None:
    net = network(name, dtype)
    for seed in range(3):
        z = net.gates(seed, fractional=fractional)
        small = net.gated(z=z).eval().compact()
        tolerance = TOLERANCE[dtype]
        expected = net.oracle(z).eval()(net.x)
        assert_close(small(net.x), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NETWORKS)
def test_compact_in_training_mode_has_the_gradients_of_the_oracle(
    name: str, network: Any, trace: Any
) -> None:
    # Closed entries have no gradient in the oracle; the others stand in the same order in both.
    net = network(name)
    z = net.gates(0)
    small = trace(net.gated(z=z).train().compact(), net.x, net.y)
    large = trace(net.oracle(z).train(), net.x, net.y)
    small = {key.replace("fc1.module", "fc1"): value for key, value in small.items()}
    assert_close(small["output"], large["output"], rtol=1e-10, atol=1e-10)
    for key in (key for key in large if key.startswith("gradient")):
        mine, theirs = small[key], large[key]
        assert_close(mine[mine != 0], theirs[theirs != 0], rtol=1e-10, atol=1e-10)


def test_compact_in_training_mode_has_the_running_statistics_of_the_oracle(network: Any) -> None:
    net = network("wrn")
    z = net.gates(0)
    gated = net.gated(z=z).train()
    small, large = gated.compact(), net.oracle(z).train()
    small(net.x), large(net.x)
    for n, open_units in enumerate(gated.per_group(z != 0).values()):
        for key in ("running_mean", "running_var"):
            theirs = getattr(large.blocks[n].norm2, key)[open_units]
            assert_close(getattr(small.blocks[n].norm2, key), theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "empty"), ONE_EMPTY + SEVERAL_EMPTY)
@pytest.mark.parametrize("fractional", [False, True])
def test_compact_equals_the_oracle_with_empty_groups(
    fractional: bool, name: str, empty: list[str], network: Any
) -> None:
    net = network(name)
    z = net.gates(0, fractional=fractional, empty=empty)
    with pytest.warns(EmptyGroupWarning):
        small = net.gated(z=z).eval().compact()
    assert_close(small(net.x), net.oracle(z).eval()(net.x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "empty"), ONE_EMPTY + SEVERAL_EMPTY)
@warned_of_empty
def test_a_whole_loss_with_empty_groups_is_that_of_masked_execution(
    name: str, empty: list[str], network: Any
) -> None:
    net, gradients = network(name), []
    for execution in EXECUTIONS:
        gated = net.gated(z=net.gates(0, empty=empty), execution=execution)
        gated.phi.data[gated.phi == -0.25] = -1.0  # closed for certain
        noise = torch.Generator().manual_seed(0)
        loss = gated.loss(lambda g=gated: F.cross_entropy(g(net.x), net.y), noise)
        loss.total.backward()
        gradients.append({k: p.grad for k, p in gated.named_parameters()})
    assert_close(*gradients, rtol=1e-10, atol=1e-10)
