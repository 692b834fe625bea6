"""The HTML page of a report: one file without scripts or links to other files."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from l0arm.files import write_text
from l0arm.lab.plots.canvas import rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Pixels on the screen for an inch of a figure. Below the first the text is unreadable, so the
# figure scrolls instead. Above the second it is needlessly large.
LEAST, MOST = 66, 130
VOID = frozenset({"img", "meta"})  # HTML elements without content


@dataclass(frozen=True)
class Markup:
    """A finished piece of HTML. Plain strings are escaped; this is not."""

    text: str


def tag(name: str, /, *children: Markup | str, **attributes: str) -> Markup:
    """An HTML element. ``class_`` gives the attribute class.

    >>> tag("p", "1 < 2", class_="fact").text
    '<p class="fact">1 &lt; 2</p>'
    """
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    opening = f"<{name}{''.join(pairs)}>"
    return Markup(opening if name in VOID else f"{opening}{joined(*children).text}</{name}>")


def joined(*children: Markup | str) -> Markup:
    """Pieces of HTML and text, one after the other."""
    return Markup("".join(c.text if isinstance(c, Markup) else escape(c) for c in children))


@dataclass(frozen=True)
class Picture:
    """A figure with its caption and its alternative text."""

    figure: Figure
    alt: str
    caption: str


@dataclass(frozen=True)
class Grid:
    """A table. The first cell of a row is its header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Layer:
    """How many units of a layer are kept."""

    name: str
    kept: int
    units: int


@dataclass(frozen=True)
class Section:
    """A part of the page. Empty fields are left out."""

    title: str
    text: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # large numbers at the top
    warned: Mapping[str, str] = field(default_factory=dict)  # remarks on facts
    tables: Sequence[Grid] = ()
    layers: Sequence[Layer] = ()
    pictures: Sequence[Picture] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


def page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """The HTML of the whole page.

    Args:
        title: The title and main heading.
        sections: The parts of the page, in order.
        subtitle: A line below the main heading.

    Returns:
        The page as text.

    Raises:
        ValueError: There is no section.

    Example:
        >>> html = page("Runs", [Section("LeNet-5", text=["Not finished."])])
        >>> html.startswith("<!doctype html>"), "<p>Not finished.</p>" in html
        (True, True)
    """
    if not sections:
        raise ValueError("a report needs at least one section; name at least one run")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup((files("l0arm.lab.plots") / "report.css").read_text("utf-8"))),
    )
    header = tag("header", tag("h1", title), tag("p", subtitle) if subtitle else "")
    parts = [_section(section, f"part-{n}") for n, section in enumerate(sections, 1)]
    body = tag("body", tag("main", header, _contents(sections), *parts))
    return f"<!doctype html>\n{tag('html', head, body, lang='en').text}\n"


def write_page(path: Path, html: str) -> None:
    """Write the page atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html)


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
        _facts(section.facts, section.warned),
        *(_grid(grid) for grid in section.tables),
        _layers(section.layers),
        *(_picture(picture) for picture in section.pictures),
        _settings(section.settings),
        id=name,
    )


def _facts(facts: Mapping[str, str], warned: Mapping[str, str]) -> Markup:
    cards = [
        tag("div", tag("dt", key), tag("dd", value), tag("dd", warned[key]), class_="warned")
        if key in warned
        else tag("div", tag("dt", key), tag("dd", value))
        for key, value in facts.items()
    ]
    return tag("dl", *cards, class_="facts") if cards else Markup("")


def _grid(grid: Grid) -> Markup:
    header = tag("tr", *(tag("th", cell, scope="col") for cell in grid.header))
    rows = []
    for first, *rest in grid.rows:
        named = zip(grid.header[1:], rest, strict=True)
        cells = [tag("td", cell, data_column=column) for column, cell in named]
        rows.append(tag("tr", tag("th", first, scope="row"), *cells))
    caption = tag("caption", grid.caption) if grid.caption else ""
    table = tag("table", caption, tag("thead", header), tag("tbody", *rows))
    # It scrolls, by keyboard too. On a phone every row is a list, with the names of the columns.
    return tag("div", table, class_="wide rows", tabindex="0")


def _layers(layers: Sequence[Layer]) -> Markup:
    """A table of the layers: units kept, and their share as a bar with its number."""
    if not layers:
        return Markup("")
    rows = []
    for layer in layers:
        share = 100.0 * layer.kept / layer.units
        fill = tag("span", style=f"width:{share:.1f}%")
        bar = tag("span", fill, class_="track", aria_hidden="true")
        name = tag("th", layer.name, scope="row")
        kept = tag("td", f"{layer.kept:,} of {layer.units:,}")
        rows.append(tag("tr", name, kept, tag("td", bar, f"{share:.1f} %", class_="bar")))
    heads = (tag("th", head, scope="col") for head in ("group", "units kept", "share"))
    body = joined(tag("thead", tag("tr", *heads)), tag("tbody", *rows))
    return tag("table", tag("caption", "What is left, layer by layer"), body, class_="layers")


def _picture(picture: Picture) -> Markup:
    """The figure as an image of its own, so that ids of two SVGs on the page cannot clash."""
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
