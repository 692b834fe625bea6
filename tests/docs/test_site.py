"""mkdocs.yml lists every page once, links and named files exist, fences have a known language."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.docs.pages import DOCS, PAGES, ROOT, fences, links

INSIDE = r"`((?!src|tests|examples|scripts)\w+/[\w/]*\w+\.py)`"  # of the package: `gating/draw.py`
LANGUAGES = {"python", "bash", "toml", "json", "text"}


def paths(nav: list[Any]) -> Iterator[str]:
    """The files of a navigation, in order."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
            continue
        for value in entry.values():
            yield from paths(value) if isinstance(value, list) else [value]


def test_the_navigation_is_all_pages() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = list(paths(config["nav"]))
    there = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(listed) == there


def test_nothing_on_the_site_comes_from_elsewhere() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert config["theme"]["font"] is False
    files = [*config.get("extra_javascript", []), *config.get("extra_css", [])]
    assert [name for name in files if not (DOCS / name).exists()] == []
    assert all((ROOT / hook).exists() for hook in config["hooks"])


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_lead_to_files(name: str) -> None:
    place = (ROOT / name).parent
    assert [link for link in links(PAGES[name]) if not (place / link).exists()] == []


@pytest.mark.parametrize("name", sorted(set(PAGES) - {"README.md"}))
def test_links_stay_on_the_site(name: str) -> None:
    place = (ROOT / name).parent
    outside = [x for x in links(PAGES[name]) if DOCS not in (place / x).resolve().parents]
    assert outside == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_source_files_that_are_named_exist(name: str) -> None:
    named = re.findall(r"`((?:src|tests|examples|scripts)/[\w/]+\.\w+)`", PAGES[name])
    named += [f"src/l0arm/{path}" for path in re.findall(INSIDE, PAGES[name])]
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_fences_are_of_known_kinds(name: str) -> None:
    page = PAGES[name]
    assert {fence.language for fence in fences(page)} <= LANGUAGES
    assert page.count("```") == 2 * len(fences(page))  # none is left open, none inside another
