"""The code blocks of docs/parallel.md run as they stand; one that needs an extra says which."""

import importlib
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset

from l0arm import sparsify
from l0arm.models import MLP

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


def trained(block: str, given: dict[str, Any]) -> dict[str, Any]:
    """What the block leaves behind."""
    exec(compile(block, "docs/parallel.md", "exec"), given)
    return given


def given_with(extra: str, folder: Path) -> dict[str, Any]:
    """What the page says to have before the block."""
    given: dict[str, Any] = {"MLP": MLP, "sparsify": sparsify, "F": F, "folder": str(folder)}
    if extra == "lightning":
        data = TensorDataset(torch.rand(24, 20), torch.randint(4, (24,)))
        given |= {"lightning": importlib.import_module(extra), "loader": DataLoader(data, 8)}
        given |= vars(importlib.import_module("l0arm.integrations.lightning"))
    if extra == "transformers":
        library = importlib.import_module(extra)
        sizes = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 8}
        config = library.BertConfig(
            vocab_size=50, num_hidden_layers=1, num_attention_heads=2, **sizes
        )
        given |= vars(importlib.import_module("l0arm.integrations.transformers"))
        given |= {"Trainer": library.Trainer, "TrainingArguments": library.TrainingArguments}
        given["model"] = library.BertForSequenceClassification(config)
        given["rows"] = [
            {"input_ids": torch.randint(3, 50, (7,)), "labels": torch.tensor(n % 2)}
            for n in range(16)
        ]
    return given


def test_ddp(one_process: None, tmp_path: Path) -> None:
    left = trained(BLOCKS[0][1], {})
    assert left["loss"].total.isfinite()
    assert left["gated"].phi.grad.abs().max() > 0


@pytest.mark.parametrize("number", range(1, len(EXTRAS)))
@pytest.mark.filterwarnings("ignore")  # what the other packages warn of is theirs
def test_adapters(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, block = BLOCKS[number]
    for package in (extra, "accelerate"):
        pytest.importorskip(package, reason="needs pip install 'l0arm[integrations]'")
    monkeypatch.chdir(tmp_path)  # where they write their logs
    left = trained(block, given_with(extra, tmp_path))
    gated = left["gated"] if "gated" in left else left["digits"].gated
    assert gated.phi.isfinite().all()
    assert gated.phi.grad is not None or extra == "transformers"  # Trainer sets it to None
    assert "small" not in left or isinstance(left["small"], torch.nn.Module)


def test_every_example_is_short() -> None:
    assert all(len(block.strip().splitlines()) <= 18 for _, block in BLOCKS)
