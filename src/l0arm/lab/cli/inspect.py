"""``l0arm inspect``: what is in a saved folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from l0arm.compaction import inspect_saved
from l0arm.compaction.saved.description import Description
from l0arm.compaction.saved.weights import TensorInfo
from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import Json


def inspect(
    folder: Annotated[Path, typer.Argument(help="What `l0arm compact` or l0arm.save wrote.")],
    as_json: Json = False,
) -> None:
    """Check a saved network and tell what is left of each group and each tensor.

    All checks that need no model: schema, sums, header, shapes. Nothing is executed.
    """
    told = inspect_saved(folder)
    if as_json:
        say_json(_facts(told))
        return
    for line in _lines(told):
        say(_printable(line))


def _lines(told: Description) -> Iterator[str]:
    dense, small = told.parameters
    yield f"{told.model}: {small:,} of {dense:,} parameters, {100 * small / max(dense, 1):.1f} %"
    for group in _groups(told):
        yield f"  group {group['name']}: {group['kept']:,} of {group['units']:,} units"
    for name, fact in told.tensors.items():
        before = told.original.get(name) or told.original.get(name.replace(".module.", "."))
        was = "" if before is None or before == fact else f", was {_shape(before)}"
        yield f"  {name}: {_shape(fact)} {fact.dtype}{was}"
    for key, value in told.metrics.items():
        yield f"  {key}: {value}"
    yield f"  certificate: {_certificate(told)}"


def _certificate(told: Description) -> str:
    """Its figures; the comparisons one by one are in l0arm.json."""
    if told.certificate is None:
        return "none, no example inputs were known when it was saved"
    figures = {k: v for k, v in told.certificate.items() if not isinstance(v, list)}
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in figures.items())


def _shape(fact: TensorInfo) -> str:
    return " x ".join(map(str, fact.shape)) or "one number"


def _printable(line: str) -> str:
    """A name from a file must not steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in line)


def _groups(told: Description) -> list[dict[str, Any]]:
    return [
        {"name": group.name, "units": group.units, "kept": len(kept)}
        for group, kept in zip(told.groups, told.kept, strict=True)
    ]


def _facts(told: Description) -> dict[str, Any]:
    return {
        "model": told.model,
        "parameters": list(told.parameters),
        "groups": _groups(told),
        "tensors": {
            name: {"shape": list(f.shape), "dtype": f.dtype} for name, f in told.tensors.items()
        },
        "replaced": list(told.replaced),
        "attributes": dict(told.attributes),
        "metrics": dict(told.metrics),
        "certificate": told.certificate,
    }
