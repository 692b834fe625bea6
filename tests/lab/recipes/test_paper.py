"""The recipes of Tables 2 and 3, in the order of the paper."""

import importlib.util
import sys
from pathlib import Path

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.recipes.paper import table_recipes

OURS = ["l0-ar", "l0-arm", "l0-ar-separate", "l0-arm-separate"]
CONTROLS = ["l0-hc-control", "l0-ar-control", "l0-arm-control"]


def test_the_rows_of_table_2_are_in_the_order_of_the_paper() -> None:
    rows = [recipe.name for recipe in table_recipes(2)]
    hard_concrete = ["l0-hc", "l0-hc-separate"]
    mlp = ["dense", "sparse-vd", "bc-gnj", "bc-ghs", *hard_concrete, *OURS, *CONTROLS]
    lenet5 = ["dense", "sparse-vd", "group-lasso", "generalized-dropout", "sbp", "bc-gnj", "bc-ghs"]
    lenet5 += [*hard_concrete, *OURS, *CONTROLS]
    assert rows == [f"mlp-{name}" for name in mlp] + [f"lenet5-{name}" for name in lenet5]


def test_the_rows_of_table_3() -> None:
    names = ["dense", "dropout", "l0-hc-001", "l0-hc-002"]
    names += ["l0-ar-001", "l0-arm-001", "l0-ar-002", "l0-arm-002", *CONTROLS]
    rows = [recipe.name for recipe in table_recipes(3)]
    assert rows == [f"wrn-{data}-{name}" for data in ("cifar10", "cifar100") for name in names]


def test_a_table_without_recipes_is_refused() -> None:
    with pytest.raises(UserError, match="no recipe belongs to table 4; there are 2 and 3"):
        table_recipes(4)


def test_the_counts_of_table_3_are_those_of_a_fair_coin() -> None:
    """Figures that docs/wrn.md quotes."""
    path = Path(__file__).parents[3] / "scripts/table3_coin.py"
    spec = importlib.util.spec_from_file_location("table3_coin", path)
    coin = importlib.util.module_from_spec(spec)
    sys.modules["table3_coin"] = coin  # dataclasses look their module up
    spec.loader.exec_module(coin)
    rows = coin.printed_rows()
    chi2, freedom = coin.chi_square(rows)
    assert (round(chi2, 1), freedom) == (83.9, 96)
    assert coin.tail(chi2, freedom) == pytest.approx(0.81, abs=0.005)
    opened, filters = coin.open_of(rows)
    assert filters == 8 * 4480
    assert opened / filters == pytest.approx(0.4991, abs=5e-5)
    weak = coin.open_of(row for row in rows if row.lam == 0.001)
    strong = coin.open_of(row for row in rows if row.lam == 0.002)
    assert coin.difference(weak, strong) == pytest.approx(1.5, abs=0.05)
    first = coin.open_of(rows, range(4))
    assert first[0] / first[1] == pytest.approx(0.490, abs=5e-4)
    # 96 degrees of freedom: the median is near 95.3, and 119.9 is exceeded with probability 0.05.
    assert coin.tail(95.33, 96) == pytest.approx(0.5, abs=1e-3)
    assert coin.tail(119.87, 96) == pytest.approx(0.05, abs=1e-3)
