"""``l0arm bench``: what a step and a prediction cost, against dense networks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from l0arm.files import write_json, write_text
from l0arm.lab.bench.deployed import deployed_text, forms_of, measure
from l0arm.lab.bench.run import SECTIONS, run
from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import (
    DataDir,
    Force,
    Json,
    Model,
    OutsideMethod,
    Size,
    check_absent,
    deployment,
)
from l0arm.lab.cli.outside import use_outside
from l0arm.lab.runs.errors import UserError, nearest
from l0arm.lab.tables.bench_record import bench_file


def bench(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN|FOLDER]", help="Measure this network in all its forms, not steps."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="lenet5, mlp, wrn, inference or plot; may be given several times."),
    ] = None,
    threads: Annotated[list[int] | None, typer.Option(min=1, help="1 and 2 unless told.")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="With a network; 1, 16 and 256 unless told.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repeats: does it run?")] = False,
    out: Annotated[Path | None, typer.Option(help="Where text, JSON and plot go.")] = None,
    model: Model = None,
    size: Size = None,
    force: Force = False,
    data_dir: DataDir = None,
    method: OutsideMethod = None,
    as_json: Json = False,
) -> None:
    """Time training steps and inference against dense networks, interleaved in one run.

    Ratios with their spread for the networks of the paper, sliced beside masked, and a plot of
    step time against the open fraction. A full run takes under ten minutes on two cores; leave
    the machine alone meanwhile.

        l0arm bench --only mlp --threads 1

    With a run or a saved network: dense, compact, ONNX and its 8-bit form side by side, their
    parameters, MACs, bytes, latency and peak memory. In RUN/bench, `l0arm report RUN` finds it.

        l0arm bench runs/lenet5-l0-arm/seed-0
    """
    if path is None:
        _steps(only, threads, quick, out or Path("benchmarks/results"))
        return
    stem = out or _home(path)
    files = [stem / "bench.txt", stem / "bench.json"]
    check_absent(files, force=force)
    use_outside(method)
    found = deployment(path, data_dir, model, size, quiet=as_json)
    with tempfile.TemporaryDirectory() as folder:
        forms = forms_of(found, Path(folder))
        batches, counts = batch or [1, 16, 256], threads or [1, 2]
        result = measure(forms, found.example, batches=batches, threads=counts, quick=quick)
    stem.mkdir(parents=True, exist_ok=True)
    write_text(files[0], deployed_text(result))
    write_json(files[1], result)
    if as_json:
        say_json(result)
    else:
        say(f"{deployed_text(result)}\nwrote {files[0]} and {files[1]}")


def _home(path: Path) -> Path:
    """With the run, where the report looks for it, also for what was compacted inside of one."""
    for folder in (path, path.parent):
        if (folder / "recipe.json").is_file():
            return bench_file(folder).parent
    return Path(f"{path}-bench")


def _steps(only: list[str] | None, threads: list[int] | None, quick: bool, out: Path) -> None:
    for name in only or []:
        if name not in SECTIONS:
            raise UserError(f"nothing to measure as '{name}'; {nearest(name, SECTIONS)}")
    run(only or SECTIONS, threads or [1, 2], quick=quick, out=out)
