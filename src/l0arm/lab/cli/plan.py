"""``l0arm plan``: which parts of a user's model can be gated."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch import Tensor

from l0arm.files import write_text
from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.limits import check_size, whole_numbers
from l0arm.lab.cli.options import Force, Json, Quiet
from l0arm.lab.cli.outside import made_by
from l0arm.lab.errors import UserError, nearest, shown
from l0arm.planning import PlanError
from l0arm.planning import plan as plan_of

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.int32, torch.bool)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*FLOATS, *OTHERS)}


def plan(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:FACTORY", help="What makes the model, or a model."),
    ],
    shapes: Annotated[
        list[str],
        typer.Option("--input", help="Shape of an input: 1,3,224,224 or name=1,16. Repeatable."),
    ],
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Type of the inputs, or of each in turn. Default: float32."),
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="Gate only layers that match, as 'fc*'. Repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Leave matching layers alone. Repeatable."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Gate the residual stream too.")] = False,
    depth: Annotated[bool, typer.Option("--depth", help="Gate residual branches too.")] = False,
    experts: Annotated[bool, typer.Option("--experts", help="Gate whole experts too.")] = False,
    head_dims: Annotated[
        bool, typer.Option("--head-dims", help="Gate positions within heads too.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds after which nothing further is tried.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Draw the plan into this file.")] = None,
    quiet: Quiet = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show which parts of a model can be gated, what each group frees, and what is left alone.

    This imports MODULE (also from the current folder) and calls FACTORY without arguments, so it
    runs that code: name only code that you trust. Inputs are random numbers (integers: 0 or 1).
    Plan.from_json reads what --json prints. A terminal shows the progress.

    Writes nothing without --html, which draws the network as a graph into one file.

    Examples:

        l0arm plan torchvision.models:resnet50 --input 1,3,224,224
        l0arm plan mynets:net --input 1,16 --dtype int64 --exclude 'head*' --json
        l0arm plan mynets:net --input 1,16 --dtype int64 --stream --html plan.html
    """
    args, kwargs = _inputs(shapes, dtype or ["float32"])
    if time_limit is not None and not time_limit > 0:
        raise UserError(f"--time-limit {time_limit:g}: give a number of seconds above 0")
    if html is not None and html.exists() and not force:
        raise UserError(f"{html} exists; choose another file with --html, or --force")
    model = made_by(target)
    console = Console(stderr=True, quiet=quiet or not sys.stderr.isatty())
    try:
        with console.status("planning", spinner="line") as status:
            found = plan_of(
                model,
                args,
                kwargs,
                include=include or None,
                exclude=exclude or None,
                stream=stream,
                depth=depth,
                experts=experts,
                head_dims=head_dims,
                time_limit=time_limit,
                progress=lambda line: status.update(f"planning: {line}"),
            )
    except PlanError as error:
        raise UserError(str(error)) from error
    if html is not None:
        write_text(html, found.to_html())
    if as_json:
        say_json(json.loads(found.to_json()))
    else:
        say(str(found), quiet=quiet)


def _inputs(
    shapes: Sequence[str], dtypes: Sequence[str]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Positional and named inputs. The last type applies to all inputs that follow."""
    if len(dtypes) > len(shapes):
        raise UserError(f"there are {len(dtypes)} types for {len(shapes)} inputs")
    args, kwargs = [], {}
    for text, dtype in zip(shapes, chain(dtypes, repeat(dtypes[-1])), strict=False):
        name, _, shape = text.rpartition("=")
        value = _tensor(_shape(shape), dtype)
        if name:
            kwargs[name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _shape(text: str) -> tuple[int, ...]:
    sizes = whole_numbers(text.replace("x", ","))
    if not sizes:
        raise UserError(f"--input: expected a shape such as 1,3,224,224, got {shown(text)}")
    check_size("--input", text, sizes)
    return tuple(sizes)


def _tensor(shape: tuple[int, ...], name: str) -> Tensor:
    if name not in DTYPES:
        raise UserError(f"unknown type '{name}'; {nearest(name, DTYPES)}")
    dtype = DTYPES[name]
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(2, shape).to(dtype)
