"""``l0arm bench``: what a step and a prediction cost, against dense networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from l0arm.benchmarks import run
from l0arm.experiments.errors import UserError, nearest


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(help="lenet5, mlp, wrn, inference or plot; may be given several times."),
    ] = None,
    threads: Annotated[list[int] | None, typer.Option(min=1, help="1 and 2 unless told.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repeats: does it run?")] = False,
    out: Annotated[Path, typer.Option(help="Where text, JSON and plot go.")] = Path(
        "benchmarks/results"
    ),
) -> None:
    """Time training steps and inference against dense networks, interleaved in one run.

    Ratios with their spread for the networks of the paper, sliced beside masked, and a plot of
    step time against the open fraction. A full run takes under ten minutes on two cores; leave
    the machine alone meanwhile.

        l0arm bench --only mlp --threads 1
    """
    for name in only or []:
        if name not in run.SECTIONS:
            raise UserError(f"nothing to measure as '{name}'; {nearest(name, run.SECTIONS)}")
    line = ["--out", str(out), "--threads", *map(str, threads or [1, 2])]
    line += ["--only", *(only or run.SECTIONS)] + (["--quick"] if quick else [])
    run.main(line)
