"""How many trials a plan takes, and what a time limit leaves."""

import pytest
import torch
from torch import Tensor, nn

from l0arm.equality.trial import Fault, Trial
from l0arm.planning import plan

LAYERS = 16


class Fixed(nn.Module):
    """One layer: its number of units is written into the forward, or not."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.up, self.down, self.fixed = nn.Linear(8, 12), nn.Linear(12, 8), fixed

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        return (
            x + self.down(hidden.view_as(x.new_empty(len(x), 12)) if self.fixed else hidden).relu()
        )


class Numbered(nn.Module):
    """A layer that knows its number, and whose forward counts its units by an attribute."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.count = number, 12
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu().view(len(x), self.count))


class Stack(nn.Module):
    """Layers under names that differ in letters, so that each is a kind of its own."""

    def __init__(self, fixed: int) -> None:
        super().__init__()
        for number in range(LAYERS):
            self.add_module(chr(ord("a") + number), Fixed(number == fixed))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def test_one_layer_that_cannot_be_cut_is_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two halves at each of log2(16) = 4 levels, and a few trials for the layer itself."""
    sizes = []
    fault = Trial.fault

    def counted(self: Trial, groups: list, *, quick: bool = False) -> Fault | None:
        sizes.append(len(groups))
        return fault(self, groups, quick=quick)

    monkeypatch.setattr(Trial, "fault", counted)
    found = plan(Stack(fixed=5), torch.randn(4, 8))
    executions = {entry.group.name: entry.execution for entry in found.planned}
    assert executions["f.up"] == "masked"
    assert [name for name, kind in executions.items() if kind == "masked"] == ["f.up"]
    assert len([size for size in sizes if size > 1]) <= 2 + 2 * 4
    assert sizes.count(LAYERS) <= 2


@pytest.mark.parametrize("first", [0, 100])
def test_a_layer_whose_number_is_that_of_its_units_takes_no_more_trials(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layer 12 of the first stack has two attributes of value 12, all others have one."""
    sizes = []
    fault = Trial.fault

    def counted(self: Trial, groups: list, *, quick: bool = False) -> Fault | None:
        sizes.append(len(groups))
        return fault(self, groups, quick=quick)

    monkeypatch.setattr(Trial, "fault", counted)
    model = nn.Sequential(*(Numbered(first + number) for number in range(LAYERS)))
    found = plan(model, torch.randn(4, 8))
    assert {entry.execution for entry in found.planned} == {"patched"}
    patched = {(p.module, p.attribute) for group in found.groups for p in group.patches}
    assert patched == {(str(number), "count") for number in range(LAYERS)}
    # All without patches, one layer without and with its patch, all with theirs.
    assert sizes == [LAYERS, 1, 1, LAYERS]


def test_what_was_not_tried_in_time_is_masked_with_this_reason() -> None:
    found = plan(Stack(fixed=-1), torch.randn(4, 8), time_limit=1e-9)
    assert {entry.execution for entry in found.planned} == {"masked"}
    reason = "the time limit of 1e-09 s was over before it could be tried"
    assert {entry.reason for entry in found.planned} == {reason}
    with pytest.raises(ValueError, match="a number of seconds above 0; got -1"):
        plan(Stack(fixed=-1), torch.randn(4, 8), time_limit=-1)


def test_progress_is_told_line_by_line() -> None:
    lines: list[str] = []
    plan(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), torch.rand(3, 4), progress=lines.append)
    assert lines[:2] == ["copying the model", "capturing the graph"]
    assert lines[2].startswith("walking through ")
    assert lines[3:] == ["trial 1: 1 groups", "trial 2: 1 groups"]
