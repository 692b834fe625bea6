"""The picture of a plan: one HTML file with the network as a graph. It loads nothing.

Every layer is a row, in the order of the network. Lines on the left lead from what a layer reads to
the layer. Groups are colours: what a layer makes and what it reads are chips in the colour of the
group. The script at the end only highlights the rows of a group. On a narrow screen, chips have
numbers instead of names, and reasons stand below only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from l0arm.planning._plan import Plan, PlannedGroup

ROW, LANE = 26, 12  # pixels
GOLDEN = 137.508  # degrees between hues: neighbours differ clearly

STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 24px; color: #1d2329; background: #fff; }
h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 24px 0 6px; }
p { margin: 4px 0; color: #4a5560; max-width: 60em; }
table { border-collapse: collapse; } th { text-align: left; font-weight: 600; color: #4a5560; }
th, td { padding: 2px 10px 2px 0; white-space: nowrap; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.why, td.names { white-space: normal; max-width: 46em; } td.why { color: #6b4b00; }
#groups td:nth-child(2) { white-space: normal; overflow-wrap: anywhere; }
#net { display: flex; overflow-x: auto; } #net svg { flex: none; margin-top: 26px; }
.row { display: grid; grid-template-columns: 22em 11em 8em 100px auto; column-gap: 10px;
height: 26px; line-height: 26px; white-space: nowrap; box-sizing: border-box; }
.row > :first-child { overflow: hidden; text-overflow: ellipsis; }
.row .n { text-align: right; font-variant-numeric: tabular-nums; } .row .join { color: #7b8794; }
.row .why { color: #6b4b00; font-size: 12px; } .row.head { font-weight: 600; color: #4a5560; }
.chip { border-radius: 9px; padding: 1px 8px; margin-right: 4px; font-size: 12px; cursor: pointer; }
.chip.reads, .chip.skips { background: transparent !important; border: 1.5px solid;
padding: 0 7px; }
.chip.skips { border-style: dashed; } .chip .number { display: none; }
.bar { display: inline-block; height: 9px; border-radius: 2px; background: #c3ccd5; }
.bar.free { background: #2b7a4b; }
.on { background: #fff3c4; } .swatch { display: inline-block; width: 12px; height: 12px;
border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
#groups tr { cursor: pointer; }
@media (max-width: 800px) {
body { margin: 14px; } th { white-space: normal; } #groups th, #groups td { padding-right: 6px; }
#net > div { flex: 1; min-width: 0; }
.row { grid-template-columns: minmax(0, 1fr) auto; column-gap: 6px; font-size: 13px; }
.row > span:nth-child(n+2):not(.chips), .row .why, .chip .name, .wide { display: none; }
.row > :first-child { direction: rtl; text-align: left; } .chip .number { display: inline; }
#reasons td { display: block; overflow-wrap: anywhere; } #reasons td.names { padding-bottom: 8px; }
}
"""

SCRIPT = """
const show = (group) => document.querySelectorAll("[data-groups]").forEach((row) =>
  row.classList.toggle("on", group !== null && row.dataset.groups.split(" ").includes(group)));
let held = null;
document.querySelectorAll("[data-group]").forEach((chip) => {
  chip.addEventListener("mouseenter", () => show(chip.dataset.group));
  chip.addEventListener("mouseleave", () => show(held));
  chip.addEventListener("click", () => {
    held = held === chip.dataset.group ? null : chip.dataset.group; show(held); });
});
"""


@dataclass(frozen=True)
class Layer:
    """A module with weights of its own, or an operation that joins layers, for the picture.

    Attributes:
        name: Name of the module; of a join, the operation and a number.
        kind: Type of the module, or the operation.
        weights: Parameters of the module itself.
        macs: Multiply-adds in one pass of the example.
        inputs: Names of the layers and joins that feed it.
        join: Whether it is an operation outside of any layer, such as a sum.
    """

    name: str
    kind: str
    weights: int
    macs: int
    inputs: tuple[str, ...] = ()
    join: bool = False


def page(plan: Plan) -> str:
    """The whole file."""
    units = sum(group.units for group in plan.groups)
    layers = plan.layers or _layers_of_groups(plan)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Plan</title>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{len(plan.planned)} groups, {units:,} units</h1>",
        f"<p>In a model of {plan.weights:,} weights and {plan.macs:,} multiply-adds. Point at a "
        "group to see its layers. A filled chip: the layer makes the units. A hollow one: it reads "
        "them. A dashed one: it goes with a residual branch.</p>",
        "<h2>Groups: what goes if all units go</h2>",
        _group_table(plan),
        "<h2>The network</h2>",
        "<p class='wide'>The bar shows the multiply-adds of the layer. It is green if its groups "
        "can free some of them.</p>",
        f"<div id='net'>{_lines(layers)}{_layer_table(plan, layers)}</div>",
        "<h2>What stays, and why</h2>",
        _reasons(plan),
        f"<script>{SCRIPT}</script></body></html>",
    ]
    return "\n".join(parts)


def _colour(number: int, entry: PlannedGroup) -> str:
    return "#c9ced4" if entry.execution == "masked" else f"hsl({GOLDEN * number % 360:.0f} 65% 80%)"


def _line_colour(number: int, entry: PlannedGroup) -> str:
    return "#8a939c" if entry.execution == "masked" else f"hsl({GOLDEN * number % 360:.0f} 60% 45%)"


def _group_table(plan: Plan) -> str:
    head = "<tr><th><th>group<th class=n>units<th class='n wide'>weights<th class=n>of the model"
    rows = [f"<table id='groups'>{head}<th class='n wide'>MACs<th>execution<th class=wide></tr>"]
    for number, entry in enumerate(plan.planned):
        share = entry.weights / plan.weights if plan.weights else 0.0
        rows.append(
            f"<tr data-group='{number}' data-groups='{number}'><td class=n>{number + 1}"
            f"<td><span class='swatch' style='background:{_colour(number, entry)}'></span>"
            f"{escape(entry.group.name)}<td class=n>{entry.group.units:,}"
            f"<td class='n wide'>{entry.weights:,}<td class=n>{100 * share:.1f} %"
            f"<td class='n wide'>{entry.macs:,}<td>{entry.execution}"
            f"<td class='why wide'>{escape(entry.reason)}</tr>"
        )
    return "\n".join([*rows, "</table>"])


def _layer_table(plan: Plan, layers: Sequence[Layer]) -> str:
    made, read = _groups_by_layer(plan)
    reasons = {skipped.layer: skipped.reason for skipped in plan.skipped}
    largest = max((layer.macs for layer in layers), default=0) or 1
    heads = ("layer", "type", "weights", "MACs", "groups")
    kinds = ("", "", " class='n'", "", " class='chips'")
    head = "".join(f"<span{k}>{name}</span>" for k, name in zip(kinds, heads, strict=True))
    rows = [f"<div><div class='row head'>{head}</div>"]
    for layer in layers:
        of = made.get(layer.name, []), read.get(layer.name, [])
        numbers = " ".join(map(str, dict.fromkeys([*of[0], *of[1]])))
        if layer.join:
            rows.append(f"<div class='row'><span class='join'>{escape(layer.kind)}</span></div>")
            continue
        reads = [
            _chip(plan, number, "skips" if plan.planned[number].group.branches else "reads")
            for number in of[1]
        ]
        chips = "".join([*reads, *(_chip(plan, number, "makes") for number in of[0])])
        frees = any(plan.planned[number].weights for number in (*of[0], *of[1]))
        bar = f"bar{' free' if frees else ''}' style='width:{round(90 * layer.macs / largest)}px"
        name, why = escape(layer.name), escape(reasons.get(layer.name, ""))
        rows.append(
            f"<div class='row' data-groups='{numbers}'><span title='{name}'>{name}</span>"
            f"<span>{escape(layer.kind)}</span><span class='n'>{layer.weights:,}</span>"
            f"<span><span class='{bar}'></span></span><span class='chips'>{chips}"
            f"<span class='why' title='{why}'>{why}</span></span></div>"
        )
    return "\n".join([*rows, "</div>"])


def _reasons(plan: Plan) -> str:
    """What stays, sorted by the reason."""
    by_reason: dict[str, list[str]] = {}
    for entry in plan.planned:
        if entry.reason:
            by_reason.setdefault(f"masked: {entry.reason}", []).append(entry.group.name)
    for skipped in plan.skipped:
        by_reason.setdefault(skipped.reason, []).append(skipped.layer)
    rows = [
        f"<tr><td class=why>{escape(reason)}<td class=names>{escape(', '.join(layers))}</tr>"
        for reason, layers in by_reason.items()
    ]
    return "\n".join(["<table id='reasons'>", *rows, "</table>"]) if rows else "<p>Nothing.</p>"


def _chip(plan: Plan, number: int, role: str) -> str:
    entry = plan.planned[number]
    line = _line_colour(number, entry)
    return (
        f"<span class='chip {role}' data-group='{number}' style='background:"
        f"{_colour(number, entry)};border-color:{line}' title='{escape(entry.group.name)}'>"
        f"<span class='number'>{number + 1}</span>"
        f"<span class='name'>{escape(entry.group.name)}</span></span>"
    )


def _groups_by_layer(plan: Plan) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """The groups (by number) whose units every layer makes, and those that it reads."""
    made: dict[str, list[int]] = {}
    read: dict[str, list[int]] = {}
    for number, entry in enumerate(plan.planned):
        group = entry.group
        makes = group.makes if group.makes or group.branches else group.counts  # masked: none made
        for pieces, found in ((makes, made), (group.reads, read)):
            for piece in pieces:
                numbers = found.setdefault(piece.tensor.rpartition(".")[0] or piece.tensor, [])
                if number not in numbers:
                    numbers.append(number)
    return made, read


def _layers_of_groups(plan: Plan) -> tuple[Layer, ...]:
    """The layers that groups and reasons name, for a plan that does not know the network."""
    names = [name for entry in plan.planned for name in entry.layers]
    names += [skipped.layer for skipped in plan.skipped]
    return tuple(Layer(name, "", 0, 0) for name in dict.fromkeys(names))


def _lines(layers: Sequence[Layer]) -> str:
    """The lines from what a layer reads to the layer: long ones in lanes of their own."""
    place = {layer.name: row for row, layer in enumerate(layers)}
    edges = sorted(
        {(place[s], row) for row, x in enumerate(layers) for s in x.inputs if s in place},
        key=lambda edge: (edge[1] - edge[0], edge),
    )
    busy: list[list[tuple[int, int]]] = []  # by lane: the rows that its lines pass
    drawn = []
    for start, end in edges:
        low, high = min(start, end), max(start, end)
        if high - low == 1:
            lane = 0
        else:
            free = (n for n, s in enumerate(busy) if all(high <= a or b <= low for a, b in s))
            lane = next(free, len(busy))
            if lane == len(busy):
                busy.append([])
            busy[lane].append((low, high))
            lane += 1
        drawn.append((start, end, lane))
    right = LANE * (len(busy) + 1)
    paths = []
    for start, end, lane in drawn:
        y1, y2, x = ROW * start + ROW // 2, ROW * end + ROW // 2, right - LANE * lane
        bend = f"H{x} V{y2} H{right}" if lane else f"V{y2}"
        paths.append(f"<path d='M{right} {y1} {bend}'/>")
    dots = []
    for row, layer in enumerate(layers):
        y, fill = ROW * row + ROW // 2, "#fff" if layer.join else "#4a5560"
        dots.append(f"<circle cx='{right}' cy='{y}' r='{3 if layer.join else 4}' fill='{fill}'/>")
    size = f"width='{right + 12}' height='{ROW * len(layers)}'"
    return (
        f"<svg {size} stroke='#9aa5b1' stroke-width='1.3' fill='none'>{''.join(paths)}"
        f"<g stroke='#4a5560'>{''.join(dots)}</g></svg>"
    )
