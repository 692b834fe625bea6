"""``l0arm recipes``: the recipes that can be trained."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Annotated

import typer

from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import Json
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import load_recipe, recipe_names


def recipes(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Only names that match, as 'lenet5-*'.")
    ] = "*",
    as_json: Json = False,
) -> None:
    """List the recipes: one for each row of the paper's tables, and their controls.

    Writes nothing. --json prints all settings.

    Examples:

        l0arm recipes 'lenet5-*'
        l0arm recipes mlp-l0-arm --json
    """
    found = [load_recipe(name) for name in recipe_names() if fnmatch(name, pattern)]
    if not found:
        raise UserError(f"no recipe matches '{pattern}'; `l0arm recipes` lists all")
    for recipe in found:
        if as_json:
            say_json(recipe.model_dump())
        else:
            say(f"{recipe.name:<28} {recipe.title}")
