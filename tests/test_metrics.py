"""Prune rates and architectures as Tables 2 and 3 print them, and as compaction realises them."""

from typing import Any

import pytest
import torch
from torch import nn

from l0arm import EmptyGroupWarning, Gated, Group, HardSigmoid, Slice, sparsify
from l0arm.metrics import architecture, expected_l0, prune_rate, weight_count
from l0arm.models import MLP, LeNet5, WideResNet

MLP_ROWS = [
    ("BC-GNJ", "278-98-13", "89.24"),
    ("BC-GHS", "311-86-14", "89.45"),
    ("L0-HC", "219-214-100", "73.98"),
    ("L0-HC sep.", "266-88-33", "89.99"),
    ("L0-AR", "453-150-68", "70.39"),
    ("L0-ARM", "143-153-78", "87.00"),
    ("L0-AR sep.", "464-114-65", "77.10"),
]
LENET_ROWS = [
    ("Sparse VD", "14-19-242-131", "90.7"),
    ("GL", "3-12-192-500", "76.3"),
    ("GD", "7-13-208-16", "98.62"),
    ("SBP", "3-18-284-283", "80.34"),
    ("BC-GNJ", "8-13-88-13", "99.05"),
    ("BC-GHS", "5-10-76-16", "99.36"),
    ("L0-HC", "20-25-45-462", "91.1"),
    ("L0-HC sep.", "9-18-65-25", "98.6"),
    ("L0-AR", "18-28-46-249", "93.73"),
    ("L0-ARM", "20-16-32-257", "95.52"),
    ("L0-AR sep.", "5-12-131-22", "98.90"),
    ("L0-ARM sep.", "6-10-39-11", "99.49"),
]
# The architecture and the rate of these rows contradict each other: (printed, by the formula).
MLP_CONTRADICTIONS = [
    ("Sparse VD", "219-214-100", "74.72", "73.98"),  # the architecture is that of the L0-HC row
    ("L0-ARM sep.", "159-74-73", "92.96", "93.28"),
]
WRN_ROWS = [
    ("CIFAR-10 L0-AR .001", "83-77-83-88-169-167-153-165-324-323-314-329", "49.49"),
    ("CIFAR-10 L0-ARM .001", "74-86-83-83-164-145-167-153-333-333-310-330", "49.46"),
    ("CIFAR-10 L0-AR .002", "82-75-82-87-164-169-156-161-317-317-317-324", "49.95"),
    ("CIFAR-100 L0-AR .001", "78-78-79-85-168-168-162-164-308-326-319-330", "49.37"),
    ("CIFAR-100 L0-AR .002", "75-76-72-80-158-158-137-168-318-295-327-324", "50.93"),
    ("CIFAR-100 L0-ARM .002", "81-74-77-73-149-157-156-152-299-332-305-325", "50.78"),
]
WRN_CONTRADICTIONS = [
    ("CIFAR-10 L0-ARM .002", "75-72-78-78-157-165-131-162-336-325-331-343", "49.63", "48.90"),
    ("CIFAR-100 L0-ARM .001", "75-83-80-58-172-156-160-165-324-311-313-318", "50.51", "50.59"),
]


def gated(model: nn.Module, **options: Any) -> Gated:
    return sparsify(model, method="l0-arm", lam=0.0, gate=HardSigmoid(), **options)


def open_first(network: Gated, counts: str) -> Gated:
    """Exactly the first n units of every group open, for certain."""
    parts = [
        (torch.arange(group.units) < int(n)).float()
        for group, n in zip(network.groups, counts.split("-"), strict=True)
    ]
    network.phi.data = 2 * torch.cat(parts) - 1
    return network


def printed(rate: float, as_in: str) -> str:
    """The rate with as many decimals as the paper prints."""
    return f"{rate:.{len(as_in.partition('.')[2])}f}"


@pytest.fixture(scope="module")
def mlp() -> Gated:
    return gated(MLP())


@pytest.fixture(scope="module")
def lenet() -> Gated:
    return gated(LeNet5())


@pytest.fixture(scope="module")
def wrn() -> Gated:
    with torch.device("meta"):  # its weights are not needed, only their shapes
        model = WideResNet(28, 10)
    return gated(model).to_empty(device="cpu")


@pytest.mark.parametrize(("method", "counts", "rate"), MLP_ROWS)
def test_table_2_mlp(method: str, counts: str, rate: str, mlp: Gated) -> None:
    assert printed(prune_rate(open_first(mlp, counts)), rate) == rate


@pytest.mark.parametrize(("method", "counts", "rate"), LENET_ROWS)
def test_table_2_lenet(method: str, counts: str, rate: str, lenet: Gated) -> None:
    assert printed(prune_rate(open_first(lenet, counts)), rate) == rate


@pytest.mark.parametrize(("method", "counts", "rate", "formula"), MLP_CONTRADICTIONS)
def test_table_2_rows_that_contradict_themselves(
    method: str, counts: str, rate: str, formula: str, mlp: Gated
) -> None:
    assert printed(prune_rate(open_first(mlp, counts)), rate) == formula != rate


@pytest.mark.parametrize(("method", "counts", "rate"), WRN_ROWS)
def test_table_3(method: str, counts: str, rate: str, wrn: Gated) -> None:
    assert printed(prune_rate(open_first(wrn, counts)), rate) == rate


@pytest.mark.parametrize(("method", "counts", "rate", "formula"), WRN_CONTRADICTIONS)
def test_table_3_rows_that_contradict_themselves(
    method: str, counts: str, rate: str, formula: str, wrn: Gated
) -> None:
    assert printed(prune_rate(open_first(wrn, counts)), rate) == formula != rate


@pytest.mark.parametrize(("_", "counts", "__"), LENET_ROWS[:3])
def test_the_architecture_is_the_string_of_the_table(
    _: str, counts: str, __: str, lenet: Gated
) -> None:
    assert architecture(open_first(lenet, counts)) == counts


def test_flat_inputs_of_closed_filters_count_by_their_own_gates(lenet: Gated) -> None:
    open_first(lenet, "20-16-32-257")
    flat = lenet.per_group(lenet.phi.data)["fc1"]
    flat.copy_(flat.flip(0))  # the last 32 inputs, whose filters are closed
    assert printed(prune_rate(lenet), "95.52") == "95.52"


@pytest.mark.parametrize(("counts", "rate"), [("784-300-100", 0.0), ("0-0-0", 100.0)])
def test_nothing_and_everything(counts: str, rate: float, mlp: Gated) -> None:
    assert prune_rate(open_first(mlp, counts)) == rate


def test_a_fraction_above_tau_is_open(mlp: Gated) -> None:
    open_first(mlp, "784-300-100").phi.data *= 0.3  # pi = 0.8
    assert (architecture(mlp), prune_rate(mlp)) == ("784-300-100", 0.0)


# Realised


def test_the_realised_rate_is_that_of_the_compact_network(lenet: Gated) -> None:
    # 6 filters; 39 flat inputs are of the first 3 of 10 filters; 11 neurons.
    open_first(lenet, "6-10-39-11")
    weights = 6 * 25 + 3 * 6 * 25 + 39 * 11 + 11 * 10
    assert prune_rate(lenet, "realised") == pytest.approx(100 * (1 - weights / 430_500), abs=1e-9)


def test_the_realised_rate_of_a_wide_resnet_counts_all_weights() -> None:
    network = open_first(gated(WideResNet(10, 1)), "5-7-9")
    before = weight_count(network.model)
    gone = sum(
        closed * 9 * (block.conv1.in_channels + block.conv2.out_channels)
        for closed, block in zip((11, 25, 55), network.model.blocks, strict=True)
    )
    assert prune_rate(network, "realised") == pytest.approx(100 * gone / before, abs=1e-9)


def test_a_network_without_open_gates_realises_nearly_everything(mlp: Gated) -> None:
    with pytest.warns(EmptyGroupWarning):
        rate = prune_rate(open_first(mlp, "0-0-0"), "realised")
    assert rate > 99.99


def test_an_unknown_way_to_count_is_refused(mlp: Gated) -> None:
    with pytest.raises(ValueError, match="must be 'paper' or 'realised'; got 'realized'"):
        prune_rate(mlp, "realized")  # type: ignore[arg-type]


def test_a_group_without_counts_counts_what_it_makes() -> None:
    made = (Slice("fc1.bias", 0), Slice("fc1.weight", 0))
    group = Group("h", 3, (Slice("fc2.weight", 1),), makes=made)
    assert sparsify(MLP((4, 3, 2)), [group], lam=0.0).sizes.tolist() == [4, 4, 4]


def test_a_group_that_makes_nothing_counts_what_reads_it() -> None:
    network = sparsify(MLP((4, 3, 2)), [Group("h", 3, (Slice("fc2.weight", 1),))], lam=0.0)
    assert network.sizes.tolist() == [2, 2, 2]


def test_gates_on_single_weights() -> None:
    piece = Slice("weight", None)
    network = gated(nn.Linear(4, 2), groups=[Group("w", 8, (piece,), counts=(piece,))])
    open_first(network, "3")
    assert (architecture(network), prune_rate(network)) == ("3", 62.5)
    assert prune_rate(network, "realised") == 62.5


# Expected


@pytest.mark.parametrize(
    ("name", "sizes"),  # |g|: a neuron's fan-out, a filter's kernel
    [("mlp", [300, 100, 10]), ("lenet5", [25, 500, 500, 10]), ("wrn", [144, 144, 288])],
)
def test_the_expected_l0_norm_is_the_sum_of_equation_17(
    name: str, sizes: list[int], network: Any
) -> None:
    chosen = network(name).gated()
    pi = chosen.per_group(chosen.gates.probs).values()
    expected = sum(size * p.sum().item() for size, p in zip(sizes, pi, strict=True))
    assert expected_l0(chosen) == pytest.approx(expected, rel=1e-12)


def test_the_expected_l0_norm_of_lenet_all_open_counts_every_gated_weight(lenet: Gated) -> None:
    assert expected_l0(open_first(lenet, "20-50-800-500")) == 500 + 25_000 + 400_000 + 5_000


def test_the_expected_l0_norm_is_the_mean_over_draws(network: Any) -> None:
    chosen = network("mlp").gated()
    draws = torch.stack([(chosen.gates.sample() * chosen.sizes).sum() for _ in range(1000)])
    error = draws.std() / 1000**0.5
    assert abs(draws.mean() - expected_l0(chosen)) < 3 * error


def test_weights_are_counted_without_biases_norms_and_zeros() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[2].weight.data[0] = 0
    assert weight_count(model) == 6 + 2
