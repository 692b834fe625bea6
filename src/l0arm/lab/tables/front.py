"""Accuracy against prune rate of all methods: points of runs and rows that papers print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, Literal

from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe, load_recipe, recipe_names
from l0arm.lab.runs.folder import RunFolder

Source = Literal["here", "quoted"]
NETWORKS = {"mlp": "MLP 784-300-100", "lenet5": "LeNet-5 20-50-800-500"}
# Dai et al. 2018, Table 1; the architecture is 97-71-33.
ELSEWHERE = {"mlp-vibnet": (96.41, 98.4)}


@dataclass(frozen=True)
class FrontPoint:
    """A network, by the share of its weights that is left. Of runs: the median seed."""

    network: str
    method: str
    name: str  # the folder of its runs, or the recipe of the row
    source: Source
    left: float  # percent of the weights, as the paper counts
    accuracy: float  # percent
    seeds: tuple[tuple[float, float], ...] = ()  # left and accuracy of every run
    shifted: bool = False  # trained on shifted images, which no quoted row was

    def __str__(self) -> str:
        runs = f"{len(self.seeds)} run{'s' if len(self.seeds) > 1 else ''}"
        origin = runs if self.seeds else "quoted"
        rate = f"{100 - self.left:.2f} % pruned, {self.accuracy:.2f} %"
        return f"{self.network}: {self.method} ({self.name}, {origin}): {rate}"


def front_points(roots: Sequence[Path]) -> list[FrontPoint]:
    """The runs in these folders that were trained on all of MNIST, and the rows of Table 2.

    Dense networks, controls and runs that are not finished are left out.

    Raises:
        UserError: There is no such folder.
    """
    points = [point for root in roots for point in _points_of(root)]
    for recipe in map(load_recipe, recipe_names()):
        row = recipe.paper
        quoted = (row.prune_rate, row.accuracy) if row and row.table == 2 else None
        quoted = quoted or ELSEWHERE.get(recipe.name)
        if quoted is not None and recipe.gated:
            network, method = NETWORKS[recipe.model.name], method_of(recipe)
            left, accuracy = 100 - quoted[0], quoted[1]
            points.append(FrontPoint(network, method, recipe.name, "quoted", left, accuracy))
    return points


def method_of(recipe: Recipe) -> str:
    """The method by name, with what sets the runs of l0-best apart."""
    if recipe.method.name != "l0-best":
        return recipe.method.name
    teacher = "" if recipe.teacher else ", no teacher"
    return "l0-best" + (", shifted images" if recipe.data.shift else teacher)


def fronts(points: Sequence[FrontPoint]) -> dict[str, list[FrontPoint]]:
    """The points that are not dominated, among runs on unchanged images, and among all of them.

    Args:
        points: The points of all networks.

    Returns:
        The points by the name of the front. The second front is there if it has other points.

    Example:
        >>> a = FrontPoint("MLP", "a", "a", "here", left=10.0, accuracy=98.0)
        >>> b = FrontPoint("MLP", "b", "b", "here", left=9.0, accuracy=99.0, shifted=True)
        >>> {name: [point.name for point in front] for name, front in fronts([a, b]).items()}
        {'not dominated': ['a'], 'not dominated, shifted images too': ['b']}
    """
    unchanged = undominated(point for point in points if not point.shifted)
    every = undominated(points)
    found = {"not dominated": unchanged}
    return found if every == unchanged else {**found, "not dominated, shifted images too": every}


def undominated(points: Iterable[FrontPoint]) -> list[FrontPoint]:
    """The points of each network that no other one beats in one respect and equals in the other.

    >>> a = FrontPoint("MLP", "a", "a", "here", left=10.0, accuracy=98.0)
    >>> b = FrontPoint("MLP", "b", "b", "quoted", left=12.0, accuracy=98.0)
    >>> [point.name for point in undominated([b, a])]
    ['a']
    """
    points = sorted(points, key=lambda p: (p.network, p.left, -p.accuracy))
    return [p for p in points if not any(_dominates(q, p) for q in points)]


def _dominates(one: FrontPoint, other: FrontPoint) -> bool:
    as_good = one.left <= other.left and one.accuracy >= other.accuracy
    better = one.left < other.left or one.accuracy > other.accuracy
    return one.network == other.network and as_good and better


def _points_of(root: Path) -> list[FrontPoint]:
    if not root.is_dir():
        raise UserError(f"no folder of runs at {root}; name it with --runs, or train something")
    points = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        runs = [RunFolder(path) for path in sorted(folder.glob("seed-*")) if path.is_dir()]
        done = [(run.recipe(), run.read_result()) for run in runs if run.finished]
        done = [(recipe, result) for recipe, result in done if _belongs(recipe)]
        if done:
            points.append(_point(folder.name, done))
    return points


def _belongs(recipe: Recipe) -> bool:
    lam = recipe.method.lam
    control = recipe.name.endswith("-control") or (lam == 0.0 and recipe.method.name == "l0-best")
    data = recipe.data
    whole = data.name == "mnist" and not data.held_out and not data.limit
    return recipe.gated and not control and whole and recipe.model.name in NETWORKS


def _point(name: str, done: Sequence[tuple[Recipe, dict[str, Any]]]) -> FrontPoint:
    recipe = done[0][0]
    seeds = tuple((100 - r["prune_rate"], r["test_accuracy"]) for _, r in done)
    accuracy = median_low(seed[1] for seed in seeds)
    left = next(seed[0] for seed in seeds if seed[1] == accuracy)
    network = NETWORKS[recipe.model.name]
    shifted = recipe.data.shift > 0
    return FrontPoint(network, method_of(recipe), name, "here", left, accuracy, seeds, shifted)
