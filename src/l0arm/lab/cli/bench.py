"""``l0arm bench``: the cost of a training step and of a prediction, against dense networks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from l0arm.files import write_json, write_text
from l0arm.lab.bench.deployed import deployed_text, forms_of, measure
from l0arm.lab.bench.run import SECTIONS, run
from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.limits import MOST_THREADS, check_size
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
from l0arm.lab.errors import UserError, nearest
from l0arm.lab.tables.bench_record import bench_file


def bench(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN|FOLDER", help="Measure this network in all its forms, instead of steps."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Only one of {', '.join(SECTIONS)}. Repeatable."),
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(min=1, max=MOST_THREADS, help="Repeatable. Default: 1 and 2."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="With a network. Repeatable. Default: 1, 16 and 256."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repeats, to see that it runs.")] = (
        False
    ),
    out: Annotated[Path | None, typer.Option(help="Folder to write to.")] = None,
    model: Model = None,
    size: Size = None,
    force: Force = False,
    data_dir: DataDir = None,
    method: OutsideMethod = None,
    as_json: Json = False,
) -> None:
    """Time training steps against dense networks, or one network in all its forms.

    Without a network: steps and inference of the paper's networks, sliced and masked, as ratios to
    dense networks with their spread, and a plot of step time by open fraction. Writes text, JSON
    and plot to benchmarks/results. A full run takes about half an hour on two idle cores. Rows
    that are slower than the figures in the folder, beyond their spread, are named. With --only, the
    other figures stay. Quick runs go to benchmarks/results/quick. growth: time and memory by gates,
    width and depth. whole: trainings from start to end. plan: time and memory of plans.

    With a run or a saved network: parameters, MACs, bytes, latency and peak memory of dense,
    compact, ONNX and 8-bit ONNX side by side. Writes bench.txt and bench.json to RUN/bench, where
    `l0arm report RUN` finds them, or to FOLDER-bench.

    Examples:

        l0arm bench --only mlp --threads 1
        l0arm bench runs/lenet5-l0-arm/seed-0 --batch 1 --batch 64
    """
    if path is None:
        results = Path("benchmarks/results") / ("quick" if quick else "")
        _steps(only, threads, quick, out or results)
        return
    if only:
        raise UserError(
            f"--only {only[0]} chooses a part of the step benchmark, not of {path}; leave --only "
            f"out, or leave {path} out: l0arm bench --only {only[0]}"
        )
    stem = out or _home(path)
    files = [stem / "bench.txt", stem / "bench.json"]
    check_absent(files, force=force)
    use_outside(method)
    found = deployment(path, data_dir, model, size, quiet=as_json)
    with tempfile.TemporaryDirectory() as folder:
        batches, counts = batch or [1, 16, 256], threads or [1, 2]
        check_size("--batch", max(batches), [max(batches), *found.example.shape[1:]])
        forms = forms_of(found, Path(folder))
        result = measure(forms, found.example, batches=batches, threads=counts, quick=quick)
    stem.mkdir(parents=True, exist_ok=True)
    write_text(files[0], deployed_text(result))
    write_json(files[1], result)
    if as_json:
        say_json(result)
    else:
        say(f"{deployed_text(result)}\nwrote {files[0]} and {files[1]}")


def _home(path: Path) -> Path:
    """The folder of the run that is measured or that contains the network; the report reads it."""
    for folder in (path, path.parent):
        if (folder / "recipe.json").is_file():
            return bench_file(folder).parent
    return Path(f"{path}-bench")


def _steps(only: list[str] | None, threads: list[int] | None, quick: bool, out: Path) -> None:
    for name in only or []:
        if name not in SECTIONS:
            raise UserError(f"nothing to measure as '{name}'; {nearest(name, SECTIONS)}")
    run(only or SECTIONS, threads or [1, 2], quick=quick, out=out)
