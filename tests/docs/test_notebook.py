"""The notebook of a page has the code of the page, was run, and shows what it printed."""

import json

import pytest
from tests.docs.pages import DOCS, PAGES, python_blocks

NOTEBOOK = json.loads((DOCS / "smaller.ipynb").read_text())
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_its_code_is_that_of_the_page() -> None:
    blocks = [block.text.strip() for block in python_blocks(PAGES["docs/smaller.md"])]
    assert ["".join(cell["source"]) for cell in CODE] == blocks


def test_every_cell_was_run_and_the_table_is_that_of_the_page() -> None:
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    (table,) = ["".join(c["outputs"][0]["text"]) for c in CODE if "print(result)" in c["source"]]
    shown = PAGES["docs/smaller.md"].partition("```text\n")[2].partition("```")[0]
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()[1:]}
    on_the_page = {line.split()[0]: line.split()[1:] for line in shown.splitlines()[1:]}
    for row in ("parameters", "MACs", "bytes", "validate", "architecture"):
        assert rows[row] == on_the_page[row]


@pytest.mark.parametrize("key", ["nbformat", "nbformat_minor", "metadata"])
def test_it_has_what_readers_of_notebooks_need(key: str) -> None:
    assert key in NOTEBOOK
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
