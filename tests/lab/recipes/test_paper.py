"""The recipes of Tables 2 and 3, in the order of the paper."""

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
