"""Inputs like an example have its shapes and types; masks close the units they should."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from l0arm import Group, Slice
from l0arm.equality.example import Example
from l0arm.equality.inputs import KINDS, inputs_like, mask_with_closed
from l0arm.gating.layout import Layout, resolve


class Model(nn.Module):
    def forward(self, x: Any, attention_mask: Any = None, **more: Any) -> None: ...


def like(*args: Any, **kwargs: Any) -> list[Example]:
    random = torch.Generator().manual_seed(0)
    example = Example.of(args, kwargs)
    assert example is not None
    return list(inputs_like(Model(), example, random))


def test_floats_have_the_mean_and_spread_of_the_example() -> None:
    x = 5 + 3 * torch.rand(100, 100)
    first, *others, smaller = like(x)
    assert torch.equal(first.args[0], x)
    assert len(others) == 2
    assert float(smaller.args[0].mean()) == pytest.approx(float(x.mean()) / 64, rel=0.03)
    assert float(smaller.args[0].std()) == pytest.approx(float(x.std()) / 64, rel=0.03)
    for other in others:
        (y,) = other.args
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert not torch.equal(x, y)
        assert float(y.mean()) == pytest.approx(float(x.mean()), abs=0.03)
        assert float(y.std()) == pytest.approx(float(x.std()), rel=0.03)
    assert not torch.equal(others[0].args[0], others[1].args[0])


def test_a_constant_input_gets_noise() -> None:
    _, other, *_ = like(torch.zeros(4, 5))
    assert float(other.args[0].std()) > 0.5


def test_integers_come_from_the_examples_values() -> None:
    ids = torch.tensor([[3, 7, 7], [9, 3, 3]])
    assert len(like(ids)) == 3  # no float, nothing to make smaller
    for other in like(ids)[1:]:
        assert other.args[0].dtype == torch.long
        assert set(other.args[0].flatten().tolist()) <= {3, 7, 9}


def test_masks_stay_and_once_are_padded() -> None:
    ids, mask = torch.arange(16).view(2, 8), torch.ones(2, 8, dtype=torch.long)
    *kept, padded = like(ids, mask)
    assert len(kept) == 3
    assert all(torch.equal(x.args[1], mask) for x in kept)
    assert padded.args[1].tolist() == [[1] * 8, [1] * 6 + [0] * 2]


@pytest.mark.parametrize(
    ("mask", "last"),
    [
        (torch.zeros(2, 4, dtype=torch.bool), [False] * 3 + [True]),  # True: not looked at
        (torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 1]]), [1, 1, 1, 0]),
        (torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]), [0.0, -torch.inf]),
    ],
)
def test_padding_is_the_rarer_value(mask: Tensor, last: list[float]) -> None:
    *_, padded, smaller = (
        e.kwargs["attention_mask"] for e in like(torch.ones(2, 4), attention_mask=mask)
    )
    assert torch.equal(smaller, mask)
    assert padded[-1].tolist() == last
    assert torch.equal(padded[:-1], mask[:-1])


def test_a_mask_by_name_holds_two_values_at_most() -> None:
    weights = torch.tensor([[0.1, 0.5, 0.9]])
    others = like(torch.ones(1, 3), attention_mask=weights)
    assert len(others) == 4
    assert not torch.equal(others[1].kwargs["attention_mask"], weights)


def test_masks_are_found_in_nested_arguments() -> None:
    mask = torch.ones(1, 4)
    others = like({"ids": torch.arange(4), "mask": mask}, extra=[torch.rand(3), 7])
    assert torch.equal(others[1].args[0]["mask"], mask)
    assert others[1].kwargs["extra"][1] == 7
    assert not torch.equal(others[1].kwargs["extra"][0], others[0].kwargs["extra"][0])
    assert others[-2].args[0]["mask"].tolist() == [[1, 1, 1, 0]]


# Masks over gates


def two_layers(units: int) -> Layout:
    """Hidden units, and as many others that a second group gates."""
    model = nn.Sequential(nn.Linear(2, units), nn.Linear(units, units), nn.Linear(units, 1))
    first = Group("a", units, reads=(Slice("1.weight", 1),), makes=(Slice("0.weight", 0),))
    second = Group("b", units, reads=(Slice("2.weight", 1),), makes=(Slice("1.weight", 0),))
    return resolve(model, [first, second])


@pytest.mark.parametrize("units", [1, 2, 5])
def test_masks_close_one_unit_half_or_all_but_one(units: int) -> None:
    layout = two_layers(units)
    masks = [mask_with_closed(layout, closed, torch.device("cpu")) for closed in KINDS]
    open_units = [[int(z[layout.span(n)].sum()) for n in (0, 1)] for z in masks]
    assert open_units == [[n, n] for n in (units - 1, units - units // 2, 1)]


def test_layers_of_one_kind_keep_different_numbers_of_most_units() -> None:
    """Equal numbers would hide that one layer takes its number from another."""
    parts = []
    for layer in range(3):
        name = f"block.{layer}.hidden"
        weight = f"{layer}.weight"
        parts.append(Group(name, 4, reads=(Slice(weight, 1),), makes=(Slice(weight, 0),)))
    layout = resolve(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), parts)
    z = mask_with_closed(layout, "most", torch.device("cpu"))
    left = [int(z[layout.span(n)].sum()) for n in range(3)]
    assert sorted(left) in ([2, 2, 3], [2, 3, 3])
    assert left[0] != left[1] != left[2]


def test_the_mask_of_a_group_does_not_depend_on_the_others() -> None:
    layout = two_layers(9)
    both = mask_with_closed(layout, "half", torch.device("cpu"))
    alone = mask_with_closed(layout, "half", torch.device("cpu"), group=1)
    assert torch.equal(alone[9:], both[9:])
    assert bool(alone[:9].all())
    assert not torch.equal(both[:9], both[9:])
