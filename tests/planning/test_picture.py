"""The plan as a page: every layer in its order, what feeds it, colours of groups, reasons."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import torch
from torch import Tensor, nn

from l0arm.planning import Plan, plan


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Linear(4, 6), nn.Linear(6, 5)
        self.two, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.two(self.one(x).relu()))


class Balanced(HTMLParser):
    """Notes tags that are opened and not closed, and everything that would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [f"{tag} {key}" for key, _ in attrs if key in ("src", "href")]
        if tag in ("div", "span", "table", "svg", "script", "style", "g"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("div", "span", "table", "svg", "script", "style", "g"):
            assert self.open.pop() == tag


def test_layers_come_in_order_with_what_feeds_them() -> None:
    found = plan(Residual(), torch.rand(3, 4))
    fed = {layer.name: layer.inputs for layer in found.layers}
    assert fed == {
        "stem": (),
        "one": ("stem",),
        "two": ("one",),
        "add 1": ("stem", "two"),
        "head": ("add 1",),
    }
    assert [layer.join for layer in found.layers] == [False, False, False, True, False]
    assert {layer.name: layer.weights for layer in found.layers}["two"] == 5 * 6 + 6
    assert {layer.name: layer.macs for layer in found.layers}["two"] == 3 * 5 * 6
    assert Plan.from_json(found.to_json()) == found


def test_the_page_has_every_layer_group_and_reason_and_loads_nothing() -> None:
    found = plan(Residual(), torch.rand(3, 4))
    page = found.to_html()
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.loaded == []
    assert "http" not in page
    rows = re.findall(r"<div class='row' data-groups='([\d ]*)'><span title='(\w+)'", page)
    groups = {entry.group.name: str(number) for number, entry in enumerate(found.planned)}
    assert {name: numbers.split() for numbers, name in rows} == {
        "stem": [groups["stem"]],
        "one": [groups["one"], groups["stem"]],
        "two": [groups["stem"], groups["one"]],
        "head": [groups["stem"]],
    }
    assert "an output of the model keeps its shape" in page
    # stem -> one, one -> two, two -> add, add -> head run straight on; stem -> add has a lane.
    assert page.count("<path d=") == 5
    assert len(re.findall(r"<path d='M\d+ \d+ H", page)) == 1


def test_a_narrow_screen_has_numbers_for_groups_and_all_reasons_below() -> None:
    found = plan(Residual(), torch.rand(3, 4))
    masked = replace(found.planned[0], execution="masked", weights=0, macs=0, reason="a & b")
    page = replace(found, planned=(masked, *found.planned[1:])).to_html()
    assert "<meta name='viewport'" in page
    numbers = re.findall(r"<span class='number'>(\d)</span><span class='name'>(\w+)<", page)
    assert set(numbers) == {("1", found.groups[0].name), ("2", found.groups[1].name)}
    below = page[page.index("What stays, and why") :]
    assert f"masked: a &amp; b<td class=names>{masked.group.name}</tr>" in below
    assert "an output of the model keeps its shape<td class=names>head</tr>" in below


def test_what_goes_with_a_branch_has_a_dashed_chip() -> None:
    page = plan(Residual(), torch.rand(3, 4), depth=True).to_html()
    assert len(re.findall(r"class='chip skips' data-group='2'", page)) == 2  # layers one and two
    assert len(re.findall(r"class='chip reads' data-group='2'", page)) == 0


def test_names_are_escaped_and_an_old_plan_has_a_page_without_lines() -> None:
    model = nn.Sequential()
    model.add_module("<b>", nn.Linear(4, 6))
    model.add_module("out", nn.Linear(6, 2))
    found = plan(model, torch.rand(3, 4))
    assert "<b>" not in found.to_html()
    assert "&lt;b&gt;" in found.to_html()
    old = Plan(found.planned, found.skipped, found.weights, found.macs)
    assert "&lt;b&gt;" in old.to_html()
    assert "<path" not in old.to_html()
