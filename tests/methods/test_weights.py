"""Units are alive if nonzero weights come in and go out, through the whole network."""

import torch

from l0arm import Gated, sparsify
from l0arm.methods import l1_filter
from l0arm.methods.weights import alive_units
from l0arm.models import MLP, LeNet5


def chain() -> Gated:
    """2 inputs, 3 and then 2 hidden units, 1 output, all weights 1."""
    model = MLP((2, 3, 2, 1))
    for parameter in model.parameters():
        parameter.data.fill_(1.0)
    return sparsify(model, method=l1_filter())


def test_all_are_alive_where_nothing_is_zero() -> None:
    assert alive_units(chain()).tolist() == [1.0] * 7


def test_a_unit_without_weights_going_out_dies() -> None:
    gated = chain()
    gated.model.fc2.weight.data[:, 1] = 0.0
    assert alive_units(gated).tolist() == [1, 1, 1, 0, 1, 1, 1]


def test_a_unit_without_weights_coming_in_dies_though_it_has_a_bias() -> None:
    gated = chain()
    gated.model.fc1.weight.data[1] = 0.0
    assert alive_units(gated).tolist() == [1, 1, 1, 0, 1, 1, 1]


def test_dead_units_kill_others_in_both_directions() -> None:
    gated = chain()
    gated.model.fc3.weight.data[:, 0] = 0.0  # the first unit of layer 2 is not read,
    gated.model.fc2.weight.data[1, 0] = 0.0  # which alone read the first unit of layer 1,
    gated.model.fc1.weight.data[1:, 0] = 0.0  # which alone read the first input
    assert alive_units(gated).tolist() == [0, 1, 0, 1, 1, 0, 1]


def test_a_closed_gate_stays_closed() -> None:
    gated = chain()
    gated.phi.data[2] = 0.0
    assert alive_units(gated).tolist() == [1, 1, 0, 1, 1, 1, 1]


def test_flattened_inputs_die_with_their_filter_and_filters_with_their_inputs() -> None:
    gated = sparsify(LeNet5(), method=l1_filter())
    gated.model.conv2.weight.data[3] = 0.0
    gated.model.fc1.weight.data[:, 16 * 7 : 16 * 8] = 0.0
    alive = gated.per_group(alive_units(gated))
    assert (alive["conv2"] == 0).nonzero().flatten().tolist() == [3, 7]
    dead = (alive["fc1"] == 0).nonzero().flatten().tolist()
    assert dead == [*range(48, 64), *range(112, 128)]
    assert torch.all(alive["conv1"] == 1)
