"""Make an executed notebook from a page of the documentation.

    python scripts/make_notebook.py docs/smaller.md     # writes docs/smaller.ipynb

The Python blocks of the page become cells and are run one after the other. What they print becomes
their output. Blocks of printed text on the page are left out, since the cells have their own.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

from l0arm.files import write_text

FENCE = re.compile(r"^```(python|text)\n(.*?)^```\n", re.M | re.S)


def cells(page: str) -> list[dict[str, Any]]:
    """The text and the Python blocks of a page as cells, not run yet.

    Example:
        >>> found = cells("# Sum\\n\\n```python\\nprint(1 + 1)\\n```\\n\\n```text\\n2\\n```\\n")
        >>> [(cell["cell_type"], cell["source"]) for cell in found]
        [('markdown', ['# Sum']), ('code', ['print(1 + 1)'])]
    """
    found, end = list[dict[str, Any]](), 0
    for fence in FENCE.finditer(page):
        found.append(_cell("markdown", page[end : fence.start()]))
        if fence[1] == "python":
            found.append(_cell("code", fence[2]) | {"execution_count": None, "outputs": []})
        end = fence.end()
    found.append(_cell("markdown", page[end:]))
    return [cell for cell in found if cell["source"]]


def _cell(kind: str, text: str) -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "source": text.strip().splitlines(keepends=True)}


def run(notebook: list[dict[str, Any]]) -> None:
    """Run the code cells in one namespace, and keep what they print."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
        cell["execution_count"] = number
        if text := printed.getvalue():
            lines = text.splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}]


def main() -> None:
    """Write the notebook beside the page."""
    parser = argparse.ArgumentParser(prog="python scripts/make_notebook.py")
    parser.add_argument("page", type=Path, help="a Markdown file")
    page = parser.parse_args().page
    found = cells(page.read_text(encoding="utf-8"))
    run(found)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": [{"id": f"cell-{n}", **cell} for n, cell in enumerate(found)],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    write_text(page.with_suffix(".ipynb"), json.dumps(notebook, indent=1) + "\n")


if __name__ == "__main__":
    main()
