"""The difference of outputs, wherever their tensors are."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from l0arm.equality.difference import (
    has_comparable_entries,
    output_difference,
    relative_difference,
    selected_outputs,
    tensors_in,
)


@dataclass
class Output:
    logits: Tensor
    states: Any = None


def test_tensors_are_found_in_dicts_sequences_and_dataclasses() -> None:
    output = {"a": Output(torch.ones(1), (torch.ones(2), [torch.ones(3)])), "b": None, "c": 7}
    assert [(n, len(t)) for n, t in tensors_in(output)] == [
        ("a.logits", 1),
        ("a.states.0", 2),
        ("a.states.1.0", 3),
    ]
    assert [name for name, _ in tensors_in(torch.ones(1))] == ["0"]


def test_outputs_are_selected_by_their_outermost_name() -> None:
    output = Output(torch.ones(1), [torch.ones(2), torch.ones(3)])
    assert list(selected_outputs(output, ["states"])) == ["states.0", "states.1"]
    assert list(selected_outputs(output, [])) == ["logits", "states.0", "states.1"]


Y = torch.tensor([2.0, -4.0])


@pytest.mark.parametrize(
    ("got", "y", "expected"),
    [
        (Y, Y, 0.0),
        (Y + torch.tensor([1.0, 0.0]), Y, 0.25),  # of max|y|, not of each entry
        (torch.tensor([2.0, -4.0, 1.0]), Y, math.inf),
        (torch.tensor([torch.nan, -4.0]), Y, math.inf),
        (torch.tensor([torch.inf, -5.0]), torch.tensor([torch.inf, -4.0]), 0.25),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), 0.0),
        (torch.tensor([1, 3]), torch.tensor([1, 2]), math.inf),
        (torch.zeros(2), torch.zeros(2), 0.0),
        (torch.ones(2), torch.zeros(2), math.inf),
        (torch.tensor([3 + 3j]), torch.tensor([3 + 4j]), 0.2),
    ],
)
def test_the_difference_is_relative_to_the_largest_entry(
    got: Tensor, y: Tensor, expected: float
) -> None:
    assert output_difference({"0": got}, {"0": y}) == pytest.approx(expected)


def test_outputs_with_other_names_differ_infinitely() -> None:
    assert output_difference({"a": Y}, {"b": Y}) == math.inf
    assert output_difference({"a": Y}, {"a": Y, "b": Y}) == math.inf


@pytest.mark.parametrize(
    ("y", "holds"),
    [
        (torch.tensor([0.5, torch.nan]), True),
        (torch.tensor([0.5 + 1j]), True),
        (torch.tensor([0.0, 1.0, -torch.inf]), False),  # decisions
        (torch.tensor([3]), False),
        (torch.full((2,), torch.nan), False),
        (torch.zeros(0, 4), False),
    ],
)
def test_whole_numbers_and_non_finite_ones_are_not_worth_comparing(y: Tensor, holds: bool) -> None:
    assert has_comparable_entries({"y": y}) == holds


class Registered:
    """Known to torch, though no dataclass."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


def test_tensors_are_found_in_registered_classes() -> None:
    pytree.register_pytree_node(
        Registered,
        lambda r: ([r.first, r.second], None),
        lambda children, _: Registered(*children),
        flatten_with_keys_fn=lambda r: (
            [(pytree.GetAttrKey("first"), r.first), (pytree.GetAttrKey("second"), r.second)],
            None,
        ),
    )
    output = Registered(torch.ones(1), [torch.ones(2)])
    assert [(n, len(t)) for n, t in tensors_in(output)] == [("first", 1), ("second.0", 2)]


@pytest.mark.parametrize(
    ("fills", "hidden"),
    [
        ([-1e9, -1e9, 1e9, 1e9], True),
        ([-1e9, -1e9, torch.finfo(torch.float32).min], True),
        ([-1e5], True),
        ([3.0], False),
        ([300.0], False),  # one large number may be an output like the others
        ([600.0, 600.0], True),
    ],
)
def test_fill_values_are_compared_among_themselves(fills: list[float], hidden: bool):
    y = torch.tensor([0.5, 0.1, *fills])
    got = torch.tensor([0.1, 0.1, *fills])
    scale = 0.5 if hidden else max(abs(fill) for fill in fills)
    assert relative_difference(got, y) == pytest.approx(0.4 / scale)


def test_zeros_beside_equal_numbers_give_no_scale():
    y = torch.tensor([2.5, 2.5, 0.0, 0.0])
    assert relative_difference(y + torch.tensor([0.0, 0.0, 1e-7, 0.0]), y) == pytest.approx(4e-8)
