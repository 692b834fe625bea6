"""Table 1 is read from the network: as many filters, blocks and weights as the paper says."""

import json
from pathlib import Path

from l0arm.lab.tables.architecture_table import table1, write_table1


def test_the_rows_are_those_of_the_paper() -> None:
    assert [(row["group"], row["layers"]) for row in table1()] == [
        ("conv1", "[Conv (16)]"),
        *((f"conv{n + 2}", f"[L0-ARM Conv ({w}); Conv ({w})] x 4") for n, w in enumerate(WIDTHS)),
    ]
    assert [row["activation map"] for row in table1()] == ["32 x 32", "32 x 32", "16 x 16", "8 x 8"]


def test_gates_and_weights_are_counted() -> None:
    rows = table1()[1:]
    assert [row["gates"] for row in rows] == [4 * width for width in WIDTHS]
    before = (16, 160, 320)
    firsts = [9 * w * (b + 3 * w) for b, w in zip(before, WIDTHS, strict=True)]
    assert [row["weights with gates"] for row in rows] == firsts
    shortcuts = [b * w for b, w in zip(before, WIDTHS, strict=True)]
    seconds = [4 * 9 * w * w for w in WIDTHS]
    parts = zip(firsts, seconds, shortcuts, strict=True)
    assert [row["all weights"] for row in rows] == [sum(part) for part in parts]


def test_both_files_are_written(tmp_path: Path) -> None:
    markdown, data = write_table1(tmp_path / "results")
    assert "| conv2 | [L0-ARM Conv (160); Conv (160)] x 4 | 32 x 32 | 640 |" in markdown.read_text()
    assert json.loads(data.read_text())["rows"] == table1()


WIDTHS = (160, 320, 640)
