"""Table 1: the layers of the Wide-ResNet, and which of them have gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from l0arm.files import write_json, write_text
from l0arm.lab.tables.markdown import grid
from l0arm.models import WideResNet

COLUMNS = ("group", "layers", "activation map", "gates", "weights with gates", "all weights")
EXPLANATION = (
    "As in the paper, the filters of the first convolution of each block have gates. The number in "
    "parentheses is that of the filters. Weights with gates are those of the first convolutions, "
    "of which Table 3 counts its prune rate."
)


def table1(depth: int = 28, widen: int = 10) -> list[dict[str, Any]]:
    """The rows of Table 1, read from the network itself.

    >>> [row["layers"] for row in table1()][:2]
    ['[Conv (16)]', '[L0-ARM Conv (160); Conv (160)] x 4']
    """
    with torch.device("meta"):
        model, x = WideResNet(depth, widen).eval(), torch.empty(1, 3, 32, 32)
    gates = {group.name: group.units for group in model.groups()}
    x = model.conv1(x)
    first = model.conv1.weight
    rows = [_row("conv1", f"[Conv ({first.shape[0]})]", x, 0, 0, first.numel())]
    per_stage = len(model.blocks) // 3
    for stage in range(3):
        blocks = range(stage * per_stage, (stage + 1) * per_stage)
        units = [gates[f"blocks.{n}.conv1"] for n in blocks]
        second = model.get_parameter(f"blocks.{blocks[0]}.conv2.weight").shape[0]
        layers = f"[L0-ARM Conv ({units[0]}); Conv ({second})] x {per_stage}"
        gated = sum(model.get_parameter(f"blocks.{n}.conv1.weight").numel() for n in blocks)
        weights = [p.numel() for n in blocks for p in model.blocks[n].parameters() if p.dim() > 1]
        for n in blocks:
            x = model.blocks[n](x)
        rows.append(_row(f"conv{stage + 2}", layers, x, sum(units), gated, sum(weights)))
    return rows


def _row(group: str, layers: str, x: torch.Tensor, gates: int, gated: int, weights: int) -> Any:
    maps = f"{x.shape[2]} x {x.shape[3]}"
    return dict(zip(COLUMNS, (group, layers, maps, gates, gated, weights), strict=True))


def write_table1(folder: Path) -> tuple[Path, Path]:
    """Write ``table1.md`` and ``table1.json`` atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, paths = table1(), (folder / "table1.md", folder / "table1.json")
    cells = [[f"{v:,}" if isinstance(v, int) else v for v in row.values()] for row in rows]
    lines = ["# Table 1: WRN-28-10", "", EXPLANATION, "", *grid(COLUMNS, cells), ""]
    write_text(paths[0], "\n".join(lines))
    write_json(paths[1], {"table": 1, "network": "WRN-28-10", "rows": rows})
    return paths
