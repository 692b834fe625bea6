"""Text cannot become markup; the page is read back as a browser reads it."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from l0arm.lab.plots import gate_functions
from l0arm.lab.plots.report import (
    Grid,
    Layer,
    Markup,
    Picture,
    Section,
    joined,
    page,
    tag,
    write_page,
)

VOID = {"img", "meta"}
NASTY = "<script>alert(\"1\")</script> & 'x'"


class Reader(HTMLParser):
    """Elements with their attributes, the text of each kind of element, and whether all close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open:
            self.texts.append((self.open[-1], data))

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, *tags: str) -> list[str]:
        return [text for tag, text in self.texts if tag in tags]


@pytest.fixture
def sections() -> list[Section]:
    return [
        Section(
            "First " + NASTY,
            text=["A paragraph.", NASTY],
            facts={"accuracy": "98.30 %", NASTY: NASTY},
            tables=[Grid(("run", "rate"), [("one", "1"), ("two", NASTY)], caption="T")],
            layers=[Layer("conv1", 6, 20), Layer("fc1", 0, 800), Layer("fc2", 1500, 1500)],
            pictures=[Picture(gate_functions(), alt="curves " + NASTY, caption="Fig. 1")],
            settings={"method.lam": "0.1", "model": NASTY},
        ),
        Section("Second"),
    ]


def test_the_page_is_well_formed_for_any_screen(sections: list[Section]) -> None:
    html = page("Title", sections, subtitle="made by hand")
    reader = Reader(html)
    assert html.startswith("<!doctype html>")
    assert reader.open == []
    assert reader.text("title", "h1") == ["Title", "Title"]
    viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    assert viewport in reader.of("meta")
    assert {"charset": "utf-8"} in reader.of("meta")
    assert reader.of("html") == [{"lang": "en"}]
    assert "prefers-color-scheme: dark" in reader.text("style")[0]


def test_nothing_comes_from_elsewhere_and_nothing_runs(sections: list[Section]) -> None:
    html = page("Title", sections)
    reader = Reader(html)
    names = {name for name, _ in reader.elements}
    assert not names & {"script", "link", "iframe", "object", "base"}
    for name, attributes in reader.elements:
        assert not [key for key in attributes if key.startswith("on")]
        for key in ("src", "href"):
            value = attributes.get(key, "#")
            assert value.startswith(("#", "data:image/svg+xml;base64,")), (name, value[:60])
    outside_images = re.sub(r"base64,[\w+/=]+", "", html)
    assert not re.search(r"https?:|//\w|url\(|@import", outside_images)


def test_text_from_a_run_is_shown_not_interpreted(sections: list[Section]) -> None:
    reader = Reader(page(NASTY, sections, subtitle=NASTY))
    assert reader.text("script") == []
    assert reader.text("h1", "title") == [NASTY, NASTY]
    for name in ("p", "dt", "dd", "td"):
        assert NASTY in reader.text(name)
    assert reader.of("img")[0]["alt"] == "curves " + NASTY


def test_every_figure_has_alternative_text_and_is_a_drawing(sections: list[Section]) -> None:
    reader = Reader(page("Title", sections))
    images = reader.of("img")
    assert len(images) == len(reader.of("figure")) == 1
    assert all(image["alt"] for image in images)
    assert reader.text("figcaption") == ["Fig. 1"]
    drawing = base64.b64decode(images[0]["src"].partition("base64,")[2])
    assert b"<svg " in drawing[:1000]
    assert drawing.rstrip().endswith(b"</svg>")


def test_all_rows_facts_layers_and_settings_are_there(sections: list[Section]) -> None:
    reader = Reader(page("Title", sections))
    heads = ["run", "rate", "one", "two", "group", "units kept", "share"]
    assert reader.text("th") == [*heads, "conv1", "fc1", "fc2", "method.lam", "model"]
    cells = reader.text("td")
    assert cells[:2] == ["1", NASTY]
    assert cells[2:8:2] == ["6 of 20", "0 of 800", "1,500 of 1,500"]
    assert cells[3:8:2] == ["30.0 %", "0.0 %", "100.0 %"]
    assert cells[8:] == ["0.1", NASTY]
    bars = [a["style"] for a in reader.of("span") if "style" in a]
    assert bars == ["width:30.0%", "width:0.0%", "width:100.0%"]
    assert reader.text("dt", "dd") == ["accuracy", "98.30 %", NASTY, NASTY]


def test_the_contents_lead_to_every_section(sections: list[Section]) -> None:
    reader = Reader(page("Title", sections))
    assert reader.text("a") == [section.title for section in sections]
    targets = [attributes["id"] for attributes in reader.of("section")]
    assert [link["href"] for link in reader.of("a")] == [f"#{target}" for target in targets]
    assert len(set(targets)) == 2
    assert Reader(page("Title", sections[1:])).of("nav") == []


def test_what_is_empty_is_left_out() -> None:
    names = {name for name, _ in Reader(page("Title", [Section("Only")])).elements}
    assert not names & {"dl", "table", "figure", "details", "nav", "img"}


def test_a_page_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="name at least one run"):
        page("Title", [])


def test_the_page_is_written_atomically(tmp_path: Path, sections: list[Section]) -> None:
    html = page("λ", sections)
    write_page(tmp_path / "out" / "report.html", html)
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8") == html
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_text_and_attributes_are_escaped() -> None:
    made = tag("p", "<script>&", title='"><b>').text
    assert made == '<p title="&quot;&gt;&lt;b&gt;">&lt;script&gt;&amp;</p>'


def test_markup_is_written_as_it_is() -> None:
    assert tag("p", tag("b", "a"), " < ", Markup("<i>b</i>")).text == (
        "<p><b>a</b> &lt; <i>b</i></p>"
    )
    assert joined("a<", Markup("<br>")).text == "a&lt;<br>"


def test_elements_without_content_are_not_closed() -> None:
    assert tag("img", alt="x").text == '<img alt="x">'


def test_names_of_attributes_may_be_words_of_python() -> None:
    assert tag("i", class_="a", aria_hidden="true").text == '<i class="a" aria-hidden="true"></i>'


def test_on_a_phone_every_cell_has_the_name_of_its_column() -> None:
    html = page("Runs", [Section("All", tables=[Grid(("run", "accuracy"), [("a", "98 %")])])])
    assert '<td data-column="accuracy">98 %</td>' in html
    assert ".rows td::before { content: attr(data-column);" in html
