"""The code blocks of docs/deployment.md run one after the other, with less training."""

import re
import time
from pathlib import Path

import pytest
import torch

from l0arm.cli.main import VERBS

pytest.importorskip("onnxruntime")

PAGE = (Path(__file__).parent.parent / "docs" / "deployment.md").read_text()
SHORTER = {
    "epochs = 6\n": "epochs = 1\n",
    "digits.train_images[:, None]": "digits.train_images[:300, None]",
    "digits.train_labels\n": "digits.train_labels[:300]\n",
}


@pytest.fixture(autouse=True)
def _own_times(tmp_path, monkeypatch):
    """A cache of its own, and the time of this thread, which other programs do not prolong."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("l0arm.latency_pricing.wall_clock", lambda device: time.thread_time)


@pytest.mark.filterwarnings("ignore::l0arm.latency_pricing.LatencyWarning")  # a busy machine
def test_the_code_blocks_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    page = PAGE
    for long, short in SHORTER.items():
        assert page.count(long) == 1
        page = page.replace(long, short)
    namespace: dict[str, object] = {"__name__": "deployment"}
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, "deployment.md", "exec"), namespace)
    out = capsys.readouterr().out
    assert "% right" in out
    assert "Budget(milliseconds <= 70.0 %)" in out
    assert {"stem", "blocks.0.conv1", "fc"} <= namespace["table"].layers.keys()
    files = {path.name for path in (tmp_path / "work").iterdir()}
    assert files == {"digits-small", "digits.onnx", "digits.int8.onnx", "digits.pt2"}
    small, logits = namespace["small"], namespace["logits"]
    with torch.no_grad():
        want = small(namespace["x_test"][:64])
    torch.testing.assert_close(torch.from_numpy(logits), want, rtol=1e-3, atol=1e-4)


def test_the_verbs_of_the_page_exist():
    told = set(re.findall(r"^    l0arm (\w+)", PAGE, re.M))
    assert told == {"compact", "inspect", "export", "bench", "report", "sweep"}
    assert told <= {verb.__name__ for verb in VERBS}
