"""One HTML page about runs: all of it in one file, for any screen, with no script."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from l0arm.files import write_text
from l0arm.lab.plots.markup import Markup, joined, tag
from l0arm.lab.plots.saving import rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Pixels on the screen for an inch of a figure: a narrower one could not be read and scrolls
# instead, a wider one would shout.
LEAST, MOST = 66, 130


@dataclass(frozen=True)
class Picture:
    """A figure with the words for those who cannot see it."""

    figure: Figure
    alt: str
    caption: str


@dataclass(frozen=True)
class Grid:
    """A table; the first cell of a row names it."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Layer:
    """How much of a layer is left."""

    name: str
    kept: int
    units: int


@dataclass(frozen=True)
class Section:
    """A part of the page; what is empty is left out."""

    title: str
    text: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # large numbers at the top
    tables: Sequence[Grid] = ()
    layers: Sequence[Layer] = ()
    pictures: Sequence[Picture] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


def page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """The whole page, in the order of the sections."""
    if not sections:
        raise ValueError("a report needs at least one section; name at least one run")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_style())),
    )
    header = tag("header", tag("h1", title), tag("p", subtitle) if subtitle else "")
    parts = [_section(section, f"part-{n}") for n, section in enumerate(sections, 1)]
    body = tag("body", tag("main", header, _contents(sections), *parts))
    return f"<!doctype html>\n{tag('html', head, body, lang='en').text}\n"


def write_page(path: Path, html: str) -> None:
    """Write the page, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html)


def _style() -> str:
    return (files("l0arm.lab.plots") / "report.css").read_text(encoding="utf-8")


def _contents(sections: Sequence[Section]) -> Markup:
    if len(sections) == 1:
        return Markup("")
    links = [tag("a", s.title, href=f"#part-{n}") for n, s in enumerate(sections, 1)]
    return tag("nav", tag("ul", *(tag("li", link) for link in links)), aria_label="Contents")


def _section(section: Section, name: str) -> Markup:
    return tag(
        "section",
        tag("h2", section.title),
        *(tag("p", paragraph) for paragraph in section.text),
        _facts(section.facts),
        *(_grid(grid) for grid in section.tables),
        _layers(section.layers),
        *(_picture(picture) for picture in section.pictures),
        _settings(section.settings),
        id=name,
    )


def _facts(facts: Mapping[str, str]) -> Markup:
    cards = [tag("div", tag("dt", key), tag("dd", value)) for key, value in facts.items()]
    return tag("dl", *cards, class_="facts") if cards else Markup("")


def _grid(grid: Grid) -> Markup:
    header = tag("tr", *(tag("th", cell, scope="col") for cell in grid.header))
    rows = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in grid.rows
    ]
    caption = tag("caption", grid.caption) if grid.caption else ""
    table = tag("table", caption, tag("thead", header), tag("tbody", *rows))
    return tag("div", table, class_="wide", tabindex="0")  # wide tables scroll, also by keyboard


def _layers(layers: Sequence[Layer]) -> Markup:
    """Units kept of units, as bars; the numbers are in the text too."""
    if not layers:
        return Markup("")
    rows = [
        tag(
            "tr",
            tag("th", layer.name, scope="row"),
            tag("td", f"{layer.kept:,} of {layer.units:,}"),
            tag("td", _bar(layer), class_="bar"),
        )
        for layer in layers
    ]
    heads = (tag("th", head, scope="col") for head in ("group", "units kept", "share"))
    body = joined(tag("thead", tag("tr", *heads)), tag("tbody", *rows))
    return tag("table", tag("caption", "What is left, layer by layer"), body, class_="layers")


def _bar(layer: Layer) -> Markup:
    share = 100.0 * layer.kept / layer.units
    fill = tag("span", style=f"width:{share:.1f}%")
    return joined(tag("span", fill, class_="track", aria_hidden="true"), f"{share:.1f} %")


def _picture(picture: Picture) -> Markup:
    """An image of its own, so that names inside one drawing cannot meet those of another."""
    data = base64.b64encode(rendered(picture.figure, "svg")).decode()
    inches = float(picture.figure.get_figwidth())
    style = f"min-width:{LEAST * inches:.0f}px;max-width:{MOST * inches:.0f}px"
    image = tag("img", src=f"data:image/svg+xml;base64,{data}", alt=picture.alt, style=style)
    frame = tag("div", image, class_="wide paper", tabindex="0")
    return tag("figure", frame, tag("figcaption", picture.caption))


def _settings(settings: Mapping[str, str]) -> Markup:
    if not settings:
        return Markup("")
    rows = [
        tag("tr", tag("th", key, scope="row"), tag("td", value)) for key, value in settings.items()
    ]
    return tag("details", tag("summary", "Settings"), tag("table", tag("tbody", *rows)))
