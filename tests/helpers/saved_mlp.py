"""Saved folders of a small MLP, and other descriptions with the right checksum."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import l0arm
from l0arm import Gated
from l0arm.compaction.saved.description import digest
from l0arm.models import MLP


def small_mlp() -> MLP:
    return MLP((6, 5, 4, 3))


def gated_mlp() -> Gated:
    gated = l0arm.sparsify(small_mlp(), method="l0-arm", lam=0.0)
    closed = torch.tensor([0, 3, 7, 12])
    gated.phi.data.fill_(9.0)
    gated.phi.data[closed] = -9.0
    return gated


def edit_description(
    folder: Path, change: Callable[[dict[str, Any]], object], *, sign: bool = True
) -> None:
    """Change the description; ``sign`` gives it the right sum again."""
    path = folder / "l0arm.json"
    record = json.loads(path.read_text())
    change(record)
    if sign:
        record["sha256"] = digest(record)
    path.write_text(json.dumps(record))
