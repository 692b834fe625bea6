"""Code blocks of the documentation that are marked ``python run`` do run, page by page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from l0arm.planning.registry import RULES

DOCS = Path(__file__).parent.parent / "docs"
BLOCKS = {
    page.name: re.findall(r"^```python run\n(.*?)^```", page.read_text(), re.M | re.S)
    for page in sorted(DOCS.glob("*.md"))
}
RUNNING = [name for name, blocks in BLOCKS.items() if blocks]


@pytest.fixture(autouse=True)
def _rules() -> Iterator[None]:
    """A page may register rules."""
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


@pytest.mark.parametrize("name", RUNNING)
def test_the_code_blocks_run(name: str) -> None:
    namespace: dict[str, object] = {"__name__": name}
    for block in BLOCKS[name]:
        exec(compile(block, name, "exec"), namespace)


def test_pages_with_code_to_run_are_found() -> None:
    assert len(BLOCKS["any-model.md"]) == 5


def test_what_the_page_on_any_model_prints(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "any-model.md"}
    for block in BLOCKS["any-model.md"][:3]:
        exec(compile(block, "any-model.md", "exec"), namespace)
    out = capsys.readouterr().out
    assert "3 groups, 64 units" in out
    assert "the small network equals the gated one" in out


@pytest.mark.parametrize("page", sorted(BLOCKS))
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (DOCS / page).read_text())
    assert [link for link in links if not (DOCS / link).exists()] == []
