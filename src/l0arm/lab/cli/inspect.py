"""``l0arm inspect``: the content of a saved network."""

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
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Folder that l0arm compact or l0arm.save wrote."),
    ],
    as_json: Json = False,
) -> None:
    """Check a saved network and list what is left of each group and each tensor.

    Checks everything that needs no model: schema, checksums, header, shapes. Executes no code of
    the folder. Writes nothing.

    Examples:

        l0arm inspect runs/lenet5-l0-arm/seed-0/compact
        l0arm inspect small --json
    """
    saved = inspect_saved(folder)
    if as_json:
        say_json(_facts(saved))
        return
    for line in _lines(saved):
        say(_printable(line))


def _lines(saved: Description) -> Iterator[str]:
    dense, small = saved.parameters
    yield f"{saved.model}: {small:,} of {dense:,} parameters, {100 * small / max(dense, 1):.1f} %"
    for group in _groups(saved):
        yield f"  group {group['name']}: {group['kept']:,} of {group['units']:,} units"
    for name, fact in saved.tensors.items():
        before = saved.original.get(name) or saved.original.get(name.replace(".module.", "."))
        was = "" if before is None or before == fact else f", was {_shape(before)}"
        yield f"  {name}: {_shape(fact)} {fact.dtype}{was}"
    for key, value in saved.metrics.items():
        yield f"  {key}: {value}"
    yield f"  certificate: {_certificate(saved)}"


def _certificate(saved: Description) -> str:
    """The figures of the certificate. The single comparisons are in l0arm.json."""
    if saved.certificate is None:
        return "none, no example inputs were known when it was saved"
    figures = {k: v for k, v in saved.certificate.items() if not isinstance(v, list)}
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in figures.items())


def _shape(fact: TensorInfo) -> str:
    return " x ".join(map(str, fact.shape)) or "one number"


def _printable(line: str) -> str:
    """Replace control characters: a name from a file must not control the terminal."""
    return "".join(c if c.isprintable() else "?" for c in line)


def _groups(saved: Description) -> list[dict[str, Any]]:
    return [
        {"name": group.name, "units": group.units, "kept": len(kept)}
        for group, kept in zip(saved.groups, saved.kept, strict=True)
    ]


def _facts(saved: Description) -> dict[str, Any]:
    return {
        "model": saved.model,
        "parameters": list(saved.parameters),
        "groups": _groups(saved),
        "tensors": {
            name: {"shape": list(f.shape), "dtype": f.dtype} for name, f in saved.tensors.items()
        },
        "replaced": list(saved.replaced),
        "attributes": dict(saved.attributes),
        "metrics": dict(saved.metrics),
        "certificate": saved.certificate,
    }
