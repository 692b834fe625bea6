"""What is measured: networks in the states that the rows name, memory, growth, whole trainings."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import l0arm
from l0arm.costs import FlopsMeter
from l0arm.lab.bench import growth, networks, replay, steps, whole
from l0arm.lab.bench.memory import tensor_peak
from l0arm.models import MLP, LeNet5

MEGABYTE = 2**20


def test_a_shrunk_network_has_the_units_that_are_open() -> None:
    network = steps.shrunk(steps.mlp(), "converged 159-74-73")
    gated = network.gate(network.ours(), method="l0-arm", lam=0.0)
    assert [group.units for group in gated.groups] == [159, 74, 73]
    networks.set_gates(gated, network.states["converged 159-74-73"])
    assert gated.gates.probs.tolist() == pytest.approx([0.999] * 306)
    open_weights = 159 * 74 + 74 * 73 + 73 * 10  # of a network of 784 * 300 + 300 * 100 + 100 * 10
    ratio = steps.flop_ratio(gated, network, "converged 159-74-73")
    assert ratio == pytest.approx(4 / 3 * open_weights / 266_200, rel=0.01)


def test_half_of_the_macs_are_open() -> None:
    """600 p^2 + 200 p = 400 has the solution p = 2/3."""
    x = torch.rand(1, 30)
    gated = l0arm.sparsify(MLP((30, 20, 10)), lam=0.0)
    networks.set_gates(gated, networks.half_of_the_macs(x))
    assert gated.gates.probs.tolist() == pytest.approx([2 / 3] * 50, abs=1e-3)
    flops = FlopsMeter(gated, x)()
    assert flops.inference / flops.dense == pytest.approx(0.5, abs=1e-3)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
def test_the_peak_of_a_step_counts_what_it_holds_and_what_it_needs() -> None:
    """At least: an allocator may keep more. In a process of its own, without earlier tests."""
    code = (
        "import torch; from l0arm.lab.bench.memory import step_peak\n"
        "def make():\n"
        "    held = torch.ones(20 * 2**20 // 4)\n"
        "    return lambda: (held + 1).sum()\n"
        "print(step_peak(make))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 38 * MEGABYTE


def test_the_tensors_of_a_step_are_those_it_holds_and_those_it_makes() -> None:
    def make() -> Callable[[], object]:
        held = torch.ones(5 * MEGABYTE)
        return lambda: (held + 1).sum()

    assert tensor_peak(make) == pytest.approx(40 * MEGABYTE, rel=1e-3)


def test_growth_is_told_with_its_exponents() -> None:
    rows = [
        {"series": "gates", "size": n, "dense_ms": 1e-2 * n, "gated_ms": 3e-2 * n}
        | {"dense_bytes": 12 * n, "gated_bytes": None}
        for n in (100, 1000)
    ]
    tensors = {"dense_tensors": 4 * MEGABYTE, "gated_tensors": 2 * MEGABYTE}
    memory = [
        {"network": "MLP", "dense_bytes": 4 * MEGABYTE, "gated_bytes": 3 * MEGABYTE, **tensors}
    ]
    lines = growth.text({"growth": rows, "memory": memory}).splitlines()
    assert "exponents of gated_ms: gates 1.00" in lines
    assert "exponents of gated_bytes: " in lines
    assert lines[-1].split() == ["MLP", "4.0", "2.0", "0.50", "4.0", "3.0", "0.75"]


def test_whole_trainings_are_compared_with_the_dense_one_of_their_seed() -> None:
    rows = [
        {"network": "MLP", "seed": seed, "way": way, "s": s, "prune_rate": rate}
        | {"test_accuracy": 97.0 + seed}
        for seed, way, s, rate in (
            (0, "dense", 2.0, None),
            (0, "gated", 3.0, 80.0),
            (1, "dense", 4.0, None),
            (1, "gated", 2.0, 82.5),
        )
    ]
    result = {"replays": [], "rows": rows, "epochs": {"MLP": 40}}
    *_, dense, gated = whole.text(result).splitlines()
    assert " ".join(dense.split()) == "MLP dense 3.0 1.00 [1.00-1.00] 97.00 98.00 - -"
    assert " ".join(gated.split()) == "MLP gated 2.5 1.00 [0.50-1.50] 97.00 98.00 80.00 82.50"


def test_a_recorded_state_has_the_histograms_of_its_epoch() -> None:
    """Inputs from filters are open where these are, and the network takes the state as it is."""
    run = Path(__file__).parents[3] / "results/runs/lenet5-l0-arm-separate/seed-0"
    last = replay.recorded(run)[-1]
    state = replay.probabilities(last)
    start = 0
    for group in last["groups"]:
        part = state[start : start + group["units"]]
        assert torch.histc(part, 20, 0.0, 1.0).tolist() == group["histogram"]
        start += group["units"]
    filters, inputs = state[20:70], state[70:870].view(50, 16)
    assert inputs.mean(1)[filters > 0.5].min() > inputs.mean(1)[filters < 0.5].max()
    gated = l0arm.sparsify(LeNet5(), lam=0.0)
    networks.set_gates(gated, lambda gated: state)
    torch.testing.assert_close(gated.gates.probs.detach(), state)
