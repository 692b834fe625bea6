"""``l0arm compare``: things side by side."""

from __future__ import annotations

import typer

from l0arm.lab.cli.compare_estimators import estimators
from l0arm.lab.cli.compare_runs import runs

compare = typer.Typer(no_args_is_help=True, help="Estimators, or finished runs, side by side.")
for thing in (estimators, runs):
    compare.command()(thing)
