"""The examples run to their end, and what remains is smaller and certified."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "transformer", "pretrained"])
def test_an_example_ends_with_a_smaller_network(name: str) -> None:
    if name == "transformer":
        pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "the small network equals the gated one" in done.stdout
    dense, small = re.findall(r"(\S+) weights, (\S+) MACs, (\S+) ms", done.stdout)[-2:]
    for before, after in zip(dense[:2], small[:2], strict=True):
        assert int(after.replace(",", "")) < 0.8 * int(before.replace(",", ""))
    if name == "transformer":
        assert "1 3 5 goes on with 7 9 11 13 15" in done.stdout
    else:
        right = [float(n) for n in re.findall(r"([\d.]+) % ", done.stdout)]
        assert right[-1] > 85
