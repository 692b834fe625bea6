"""Tables 2 and 3 of the paper beside what our runs came to; a partial table says what is missing.

A row is the *median run in terms of accuracy* over the seeds that finished, as in the paper; of an
even number of seeds, the lower of the middle two. Rows the paper does not print are the dense
networks and the controls with lambda = 0, which show what noise alone closes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from l0arm.lab.recipes.recipe import PaperRow, Recipe, load_recipe, recipe_names
from l0arm.lab.runs.errors import UserError
from l0arm.lab.tables.outcomes import Outcome, comparable, median_run, outcomes

Role = Literal["dense", "method", "control"]
BASELINES = ("sparse-vd", "group-lasso", "generalized-dropout", "sbp", "bc-gnj", "bc-ghs", "l0-hc")
NETWORKS = ("mlp", "lenet5", "wide-resnet")  # in the order of the paper
ROLES: tuple[Role, ...] = ("dense", "method", "control")


@dataclass(frozen=True)
class Row:
    """One recipe: what the paper prints, what our seeds came to, and its control."""

    recipe: str
    network: str
    method: str
    role: Role
    epochs: int  # of the recipe
    paper: PaperRow | None
    runs: tuple[Outcome, ...]
    missing_seeds: tuple[int, ...]
    control: str | None = None
    control_runs: tuple[Outcome, ...] = ()

    @property
    def median(self) -> Outcome | None:
        return median_run(self.runs)

    @property
    def control_median(self) -> Outcome | None:
        return median_run(self.control_runs)

    @property
    def counted(self) -> tuple[int, ...]:
        """The seeds that the median is of."""
        return tuple(run.seed for run in comparable(self.runs))

    def remarks(self) -> list[str]:
        """What is missing or not as the recipe says, a sentence each."""
        return [*self._unstarted(), *(note for run in self.runs for note in self._of(run))]

    def _unstarted(self) -> list[str]:
        if not self.runs:
            return ["no run"]
        missing = ", ".join(map(str, self.missing_seeds))
        return [f"seeds without a run: {missing}"] if missing else []

    def _of(self, run: Outcome) -> list[str]:
        notes = []
        if not run.finished:
            notes.append(f"seed {run.seed} is not finished: {run.epochs} of {run.planned} epochs")
        if run.planned < self.epochs:
            notes.append(f"seed {run.seed} is short: {run.planned} epochs, not {self.epochs}")
        if run.changed:
            notes.append(f"seed {run.seed} has other settings ({'; '.join(run.changed)})")
        if run.finished and run.seed not in self.counted:
            notes.append(f"seed {run.seed} does not count in the median: others are nearer")
        return notes


@dataclass(frozen=True)
class Table:
    """A table of the paper, as far as there are runs."""

    number: int
    seeds: int  # asked for
    rows: tuple[Row, ...]

    @property
    def complete(self) -> bool:
        return not any(row.remarks() for row in self.rows)


def table2(root: Path, seeds: int = 5) -> Table:
    """MLP and LeNet-5 on MNIST."""
    return paper_table(2, root, seeds)


def table3(root: Path, seeds: int = 5) -> Table:
    """Wide-ResNet on CIFAR-10 and CIFAR-100."""
    return paper_table(3, root, seeds)


def paper_table(number: int, root: Path, seeds: int = 5) -> Table:
    """The table from the runs in ``root/<recipe>/seed-<n>``; every seed found there counts."""
    recipes = table_recipes(number)
    if seeds < 1:
        raise UserError(f"a table needs at least one seed; got {seeds}")
    runs = {recipe.name: outcomes(root, recipe) for recipe in recipes}
    rows = (_row(recipe, recipes, runs, seeds) for recipe in recipes)
    return Table(number, seeds, tuple(rows))


def table_recipes(number: int) -> list[Recipe]:
    """The recipes of a table in its order: those it prints, the dense networks, the controls."""
    known = [load_recipe(name) for name in recipe_names()]
    printed = [recipe for recipe in known if recipe.paper and recipe.paper.table == number]
    if not printed:
        numbers = sorted({str(recipe.paper.table) for recipe in known if recipe.paper})
        raise UserError(f"no recipe belongs to table {number}; there are {' and '.join(numbers)}")
    alike = {_trained(recipe) for recipe in printed}  # a short teacher is no row
    controls = _controls(printed)
    return sorted(
        (
            recipe
            for recipe in known
            if recipe in printed
            or recipe.name in controls
            or (not recipe.gated and _trained(recipe) in alike)
        ),
        key=lambda recipe: _order(recipe, controls),
    )


def _trained(recipe: Recipe) -> tuple[str, str, int]:
    return recipe.model.name, recipe.data.name, recipe.training.epochs


def _controls(recipes: Iterable[Recipe]) -> set[str]:
    return {recipe.control for recipe in recipes if recipe.control}


def _role(recipe: Recipe, controls: set[str]) -> Role:
    if not recipe.gated:
        return "dense"
    return "control" if recipe.name in controls else "method"


def _order(recipe: Recipe, controls: set[str]) -> tuple[object, ...]:
    """The order of the paper: network, its baselines, then L0-AR(M) by lambda and method."""
    lam, method = recipe.method.lam, recipe.method.name
    strengths = lam if isinstance(lam, list) else [lam]
    baseline = BASELINES.index(method) if method in BASELINES else len(BASELINES)
    return (
        NETWORKS.index(recipe.model.name),
        recipe.data.name,
        ROLES.index(_role(recipe, controls)),
        baseline,
        len(strengths),
        strengths,
        method,
        recipe.name,
    )


def _row(
    recipe: Recipe, recipes: list[Recipe], runs: dict[str, tuple[Outcome, ...]], seeds: int
) -> Row:
    network, _, method = recipe.title.partition(", ")
    found = {run.seed for run in runs[recipe.name]}
    return Row(
        recipe=recipe.name,
        network=network,
        method=recipe.paper.method if recipe.paper else method,
        role=_role(recipe, _controls(recipes)),
        epochs=recipe.training.epochs,
        paper=recipe.paper,
        runs=runs[recipe.name],
        missing_seeds=tuple(seed for seed in range(seeds) if seed not in found),
        control=recipe.control,
        control_runs=runs.get(recipe.control or "", ()),
    )
