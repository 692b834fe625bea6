"""``l0arm export``: the compact network for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from l0arm.export import Exported, OnnxNetwork, export_onnx, export_program
from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import (
    DataDir,
    Force,
    Json,
    Model,
    OutsideMethod,
    Size,
    Target,
    check_absent,
    deployment,
)
from l0arm.lab.cli.outside import use_outside
from l0arm.lab.errors import UserError
from l0arm.lab.runs.trained import Deployment


def export(
    path: Target,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, .onnx or .pt2. Default: model.onnx in the folder."),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also write NAME.int8.onnx.")] = False,
    model: Model = None,
    size: Size = None,
    force: Force = False,
    data_dir: DataDir = None,
    method: OutsideMethod = None,
    as_json: Json = False,
) -> None:
    """Write the compact network as ONNX or as a torch.export program, for any batch size.

    Writes model.onnx into the folder, or the file that --out names. Its outputs are compared with
    those of the network, for batches of 1, 7 and 64.

    Examples:

        l0arm export runs/lenet5-l0-arm/seed-0 --int8
        l0arm export runs/lenet5-l0-arm/seed-0/compact --out lenet5.pt2
    """
    file = out or path / "model.onnx"
    if file.suffix not in (".onnx", ".pt2") or (int8 and file.suffix != ".onnx"):
        raise UserError(f"cannot export to {file.name}: .onnx, or .pt2 without --int8")
    check_absent([file, *([file.with_suffix(".int8.onnx")] if int8 else [])], force=force)
    use_outside(method)
    found = deployment(path, data_dir, model, size, quiet=as_json)
    if file.suffix == ".pt2":
        done = export_program(found.compact, found.example, file, force=force)
    else:
        done = export_onnx(found.compact, found.example, file, quantise=int8, force=force)
    for each in (done, *([done.quantised] if done.quantised else [])):
        facts = _facts(each, found)
        say_json(facts) if as_json else say(_sentences(facts))


def _facts(done: Exported, found: Deployment) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "path": str(done.path),
        "bytes": done.bytes,
        "differences": {str(batch): away for batch, away in done.parity.differences.items()},
        "agreement": done.parity.agreement,
    }
    if done.path.suffix == ".onnx" and found.trained is not None:
        network = OnnxNetwork(done.path)

        def call(x: Tensor) -> Tensor:
            return network(x)[0]

        facts["accuracy"] = found.accuracy(call)
        facts["compact_accuracy"] = found.accuracy(found.compact)
    return facts


def _sentences(facts: dict[str, Any]) -> str:
    parity = ", ".join(f"{away:.1e} for {batch}" for batch, away in facts["differences"].items())
    right = ""
    if "accuracy" in facts:
        right = f"{facts['accuracy']:.2f} % right, the network {facts['compact_accuracy']:.2f} %\n"
    return (
        f"wrote {facts['path']} ({facts['bytes']:,} bytes)\n{right}"
        f"largest difference by batch, as a share of the largest output: {parity}"
    )
