"""``l0arm report``: one HTML page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from l0arm.lab.cli.console import say
from l0arm.lab.cli.drawing import drawables
from l0arm.lab.plots.report import page, write_page
from l0arm.lab.plots.sections import comparison_section, run_section


def report(
    run: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained page: tables, figures, what survives layer by layer, settings.

    l0arm report runs/mlp-l0-arm/seed-0 runs/mlp-l0-arm-control/seed-0 --out mlp.html
    """
    drawn = drawables(run)
    sections = [comparison_section(drawn)] if len(drawn) > 1 else []
    sections += [run_section(one) for one in drawn]
    title = drawn[0].network if len({one.network for one in drawn}) == 1 else "l0arm runs"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_page(out, page(title, sections, f"{len(drawn)} run{'s' if len(drawn) > 1 else ''}"))
    say(f"wrote {out} ({out.stat().st_size:,} bytes)")
