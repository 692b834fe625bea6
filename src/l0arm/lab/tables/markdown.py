"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table. Bars inside cells are escaped.

    >>> grid(["units", "|w|"], [["3", "0.5"]])
    ['| units | \\\\|w\\\\| |', '| --- | --- |', '| 3 | 0.5 |']
    """
    lines = (header, ["---"] * len(header), *rows)
    escaped = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return [f"| {' | '.join(line)} |" for line in escaped]
