"""The card of a saved network: what a person finds in the folder, and a hub shows."""

from __future__ import annotations

from l0arm.compaction.saved.description import Description

HEAD = """---
library_name: l0arm
tags:
- l0arm
- pruning
- sparsity
---
"""


def card(told: Description, size: int) -> str:
    """The card as Markdown; ``size`` is that of the tensors in bytes."""
    dense, small = told.parameters
    name = told.model.rpartition(".")[2]
    widths = "-".join(str(len(kept)) for kept in told.kept)
    rows = "\n".join(
        f"| {_cell(group.name)} | {group.units:,} | {len(kept):,} |"
        for group, kept in zip(told.groups, told.kept, strict=True)
    )
    metrics = "\n".join(f"- {_cell(key)}: {_cell(value)}" for key, value in told.metrics.items())
    return f"""{HEAD}
# {name}, {widths}

A `{told.model}` from which l0arm removed units by learned gates:
{small:,} of {dense:,} parameters are left ({100 * small / max(dense, 1):.1f} %), {size:,} bytes.

| group | units before | units left |
|---|---|---|
{rows}
{f"{chr(10)}{metrics}{chr(10)}" if metrics else ""}
## How to load it

```python
import l0arm
from {told.model.rpartition(".")[0]} import {name}

model = l0arm.load("path/of/this/folder", {name})  # or a function that returns the original model
```

`{name}()` must build the model as it was before units were removed; `l0arm.json` says which units
are left, and `model.safetensors` has the weights. Nothing in this folder is executed.
"""


def _cell(value: object) -> str:
    """Text that cannot break out of its line or cell."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("`", "'")[:200]
