"""The code blocks of docs/parallel.md run as they stand; one that needs an extra says which."""

import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

PAGE = (Path(__file__).parent.parent / "docs/parallel.md").read_text()
BLOCKS = re.findall(r"^```python ?(\w*)\n(.*?)^```", PAGE, re.M | re.S)
EXTRAS = ["", "lightning", "transformers", "accelerate", "lightning"]


def test_the_page_has_an_example_for_each() -> None:
    assert [extra for extra, _ in BLOCKS] == EXTRAS


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environment of torchrun for a single process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    yield
    distributed.destroy_process_group()


def trained(block: str, tmp_path: Path) -> dict[str, Any]:
    """What the block leaves behind."""
    namespace: dict[str, Any] = {"folder": str(tmp_path)}
    exec(compile(block, "docs/parallel.md", "exec"), namespace)
    return namespace


def test_ddp(one_process: None, tmp_path: Path) -> None:
    left = trained(BLOCKS[0][1], tmp_path)
    assert left["loss"].total.isfinite()
    assert left["gated"].phi.grad.abs().max() > 0


@pytest.mark.parametrize("number", range(1, len(EXTRAS)))
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory", "ignore:.*LeafSpec")
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_adapters(number: int, tmp_path: Path) -> None:
    extra, block = BLOCKS[number]
    pytest.importorskip(extra, reason="needs pip install 'l0arm[integrations]'")
    pytest.importorskip("accelerate", reason="needs pip install 'l0arm[integrations]'")
    left = trained(block, tmp_path)
    gated = left["gated"] if "gated" in left else left["digits"].gated
    assert gated.phi.isfinite().all()
    assert isinstance(left.get("small", gated.compact()), torch.nn.Module)


def test_every_example_is_short() -> None:
    assert all(len(block.strip().splitlines()) <= 20 for _, block in BLOCKS)
