"""docs/paper.md maps equations to files; each file carries the tag of its equation."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = re.findall(r"^\| Eq\. ([\d, ]+) \|.*\| (.*) \|$", (ROOT / "docs/paper.md").read_text(), re.M)
MAPPED = [
    (number, path)
    for numbers, files in ROWS
    for number in map(int, numbers.split(","))
    for path in re.findall(r"`([^`]+\.py)`", files)
]


def test_every_equation_of_the_paper_has_a_row():
    numbers = {int(n) for row, _ in ROWS for n in row.split(",")}
    assert numbers == set(range(1, 19))


@pytest.mark.parametrize(("number", "path"), MAPPED)
def test_the_file_carries_its_tag(number, path):
    text = (ROOT / path).read_text()
    tagged = {
        n
        for first, last in re.findall(r"Eq\. (\d+)(?:-(\d+))?", text)
        for n in range(int(first), int(last or first) + 1)
    }
    tagged |= {
        int(n) for lists in re.findall(r"Eq\. ((?:\d+, )+\d+)", text) for n in lists.split(",")
    }
    assert number in tagged
