"""Which recipes make up a table of the paper, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe, load_recipe, recipe_names

Role = Literal["dense", "method", "control"]
ROLES: tuple[Role, ...] = ("dense", "method", "control")
NETWORKS = ("mlp", "lenet5", "wide-resnet")  # in the order of the paper
BASELINES = ("sparse-vd", "group-lasso", "generalized-dropout", "sbp", "bc-gnj", "bc-ghs", "l0-hc")


def table_recipes(number: int) -> list[Recipe]:
    """The recipes of a table in the order of its rows.

    These are the rows that the paper prints, the dense networks, and the controls with lambda = 0,
    which show what noise alone closes.

    >>> [recipe.name for recipe in table_recipes(2)][:3]
    ['mlp-dense', 'mlp-sparse-vd', 'mlp-bc-gnj']
    """
    known = [load_recipe(name) for name in recipe_names()]
    printed = [recipe for recipe in known if recipe.paper and recipe.paper.table == number]
    if not printed:
        numbers = sorted({str(recipe.paper.table) for recipe in known if recipe.paper})
        raise UserError(f"no recipe belongs to table {number}; there are {' and '.join(numbers)}")
    # A dense network with other data or fewer epochs is a teacher, not a row.
    comparable = {_training_of(recipe) for recipe in printed}
    controls = controls_of(printed)
    chosen = (
        recipe
        for recipe in known
        if recipe in printed
        or recipe.name in controls
        or (not recipe.gated and _training_of(recipe) in comparable)
    )
    return sorted(chosen, key=lambda recipe: _order(recipe, controls))


def controls_of(recipes: Iterable[Recipe]) -> set[str]:
    """The names of the recipes' controls."""
    return {recipe.control for recipe in recipes if recipe.control}


def role_of(recipe: Recipe, controls: set[str]) -> Role:
    """What a recipe is in a table with these controls."""
    if not recipe.gated:
        return "dense"
    return "control" if recipe.name in controls else "method"


def _training_of(recipe: Recipe) -> tuple[str, str, int]:
    return recipe.model.name, recipe.data.name, recipe.training.epochs


def _order(recipe: Recipe, controls: set[str]) -> tuple[object, ...]:
    """The order of the paper: by network, then baselines, then L0-AR(M) by lambda and method."""
    lam, method = recipe.method.lam, recipe.method.name
    strengths = lam if isinstance(lam, list) else [lam]
    baseline = BASELINES.index(method) if method in BASELINES else len(BASELINES)
    return (
        NETWORKS.index(recipe.model.name),
        recipe.data.name,
        ROLES.index(role_of(recipe, controls)),
        baseline,
        len(strengths),
        strengths,
        method,
        recipe.name,
    )
