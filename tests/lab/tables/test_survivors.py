"""The units that runs share, against chance by enumeration."""

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path

import pytest

from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.trained import trained_network
from l0arm.lab.runs.training import train
from l0arm.lab.tables.survivors import overlap, survivors


def test_chance_is_the_mean_and_deviation_over_all_choices() -> None:
    sizes = {"a": 5, "b": 4}
    kept = {"a": frozenset({0, 3}), "b": frozenset({1, 2, 3})}
    choices = [
        {"a": frozenset(a), "b": frozenset(b)}
        for a, b in product(combinations(range(5), 3), combinations(range(4), 2))
    ]
    found = [overlap(kept, choice, sizes) for choice in choices]
    common = [len(kept["a"] & c["a"]) + len(kept["b"] & c["b"]) for c in choices]
    assert [one.common for one in found] == common
    mean = sum(common) / len(common)
    variance = sum((n - mean) ** 2 for n in common) / len(common)
    assert found[0].by_chance == pytest.approx(mean)
    assert found[0].deviation ** 2 == pytest.approx(variance)
    assert found[0].sigmas == pytest.approx((common[0] - mean) / variance**0.5)


def test_groups_that_leave_chance_no_choice_tell_nothing() -> None:
    whole = {"a": frozenset({0}), "b": frozenset({0, 1, 2})}
    found = overlap(whole, whole, {"a": 1, "b": 3})
    assert (found.common, found.by_chance, found.sigmas) == (4, 4.0, 0.0)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("l0-arm", ["optimizer.gate_lr=0.05", "method.lam=0.0"]),
        ("l0-hc", ["optimizer.gate_lr=0.8", "method.lam=0.0"]),
        ("l1-filter", []),
    ],
)
def test_the_units_are_those_that_z_bar_keeps(
    folder: RunFolder,
    quick: Callable[..., Recipe],
    digits: Dataset,
    method: str,
    options: list[str],
) -> None:
    train(folder, quick(f"mlp-{method}", *options), digits)
    gated = trained_network(folder, digits).gated()
    kept = {
        name: frozenset(part.nonzero().flatten().tolist())
        for name, part in gated.per_group(gated.deterministic()).items()
    }
    assert survivors(folder) == kept
    assert any(0 < len(kept[group.name]) < group.units for group in gated.groups)


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not finished"):
        survivors(RunFolder(tmp_path))
