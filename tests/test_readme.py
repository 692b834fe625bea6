"""The code blocks of the README run as they stand, one after the other."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_code_blocks_run(capsys):
    namespace: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert len(blocks) == 3
    assert "% pruned" in capsys.readouterr().out
    gated, small = namespace["gated"], namespace["small"]
    assert gated.phi.numel() == 32
    assert sum(p.numel() for p in small.parameters()) < 431_080


def test_the_two_commands_stand_at_the_top():
    head = README.split("```")[0]
    assert "make demo" in head
    assert "make test" in head
