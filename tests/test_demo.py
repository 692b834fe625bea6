"""The demo runs to its table; how good the table is, a full run shows."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


@pytest.mark.slow
def test_two_epochs_of_the_demo_end_in_the_comparison():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", DEMO, "--epochs", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    for row in ("architecture", "weights", "MACs", "bytes", "batch 1,", "batch 256", "accuracy"):
        assert row in done.stdout
    assert "prune rate" in done.stdout
