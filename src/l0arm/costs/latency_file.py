"""A table of layer times on disk: read only if it is whole and of this very network and machine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from l0arm.costs.latency_table import LatencyTable, LayerTime
from l0arm.files import default_cache, write_text

FORMAT = 1
LARGEST = 1 << 24  # bytes; a table of ten thousand layers has a tenth of it


def table_file(digest: str, cache: Path | None = None) -> Path:
    """Where the table of a network and machine is kept."""
    return (cache or default_cache()) / "latency" / f"{digest}.json"


def write_table(path: Path, digest: str, table: LatencyTable) -> None:
    """Keep a table, whole or not at all; where nothing can be written, nothing is kept."""
    text = json.dumps(
        {"format": FORMAT, "digest": digest, **asdict(table)}, indent=1, allow_nan=False
    )
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text + "\n")


def read_table(path: Path, digest: str, tensors: Mapping[str, str]) -> LatencyTable | None:
    """The table that was kept, or None: none there, damaged, or not of these layers."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        told = json.loads(path.read_text(encoding="utf-8"))
        return _table(told, digest, tensors)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _table(told: Any, digest: str, tensors: Mapping[str, str]) -> LatencyTable:
    if told["format"] != FORMAT or told["digest"] != digest:
        raise ValueError("a table of something else")
    layers = {
        str(name): LayerTime(layer["tensor"], *_times(layer, "weights", "read", "made"))
        for name, layer in dict(told["layers"]).items()
    }
    if not layers or any(tensors.get(name) != layer.tensor for name, layer in layers.items()):
        raise ValueError("a table of other layers")
    constant, dense, deviation = _times(told, "constant", "dense", "deviation")
    if dense == 0.0:
        raise ValueError("a network that takes no time")
    return LatencyTable(layers, constant, dense, deviation)


def _times(told: Any, *keys: str) -> tuple[float, ...]:
    """Numbers as a measurement gives them: finite and not negative."""
    values = [told[key] for key in keys]
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise TypeError("not numbers")
    if any(not math.isfinite(v) or v < 0 for v in values):
        raise ValueError("not times")
    return tuple(float(v) for v in values)
