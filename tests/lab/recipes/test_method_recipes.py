"""The recipes of the comparison methods carry the rows that the paper quotes."""

import pytest

from l0arm.lab.recipes.recipe import load_recipe, recipe_names
from l0arm.methods import METHODS
from l0arm.models import MLP, LeNet5

# Tables 2 and 3, typed from the paper: name, architecture, prune rate, accuracy.
PRINTED = {
    "mlp-sparse-vd": ("Sparse VD", "219-214-100", 74.72, 98.2),
    "mlp-bc-gnj": ("BC-GNJ", "278-98-13", 89.24, 98.2),
    "mlp-bc-ghs": ("BC-GHS", "311-86-14", 89.45, 98.2),
    "mlp-l0-hc": ("L0-HC (λ = 0.1/N)", "219-214-100", 73.98, 98.6),
    "mlp-l0-hc-separate": ("L0-HC (λ sep.)", "266-88-33", 89.99, 98.2),
    "lenet5-sparse-vd": ("Sparse VD", "14-19-242-131", 90.7, 99.0),
    "lenet5-group-lasso": ("GL", "3-12-192-500", 76.3, 99.0),
    "lenet5-generalized-dropout": ("GD", "7-13-208-16", 98.62, 99.0),
    "lenet5-sbp": ("SBP", "3-18-284-283", 80.34, 99.0),
    "lenet5-bc-gnj": ("BC-GNJ", "8-13-88-13", 99.05, 99.0),
    "lenet5-bc-ghs": ("BC-GHS", "5-10-76-16", 99.36, 99.0),
    "lenet5-l0-hc": ("L0-HC (λ = 0.1/N)", "20-25-45-462", 91.1, 99.1),
    "lenet5-l0-hc-separate": ("L0-HC (λ sep.)", "9-18-65-25", 98.6, 99.0),
    "wrn-cifar10-l0-hc-001": ("L0-HC (λ = 0.001/N)", "full model", 0.0, 96.17),
    "wrn-cifar10-l0-hc-002": ("L0-HC (λ = 0.002/N)", "full model", 0.0, 96.07),
    "wrn-cifar100-l0-hc-001": ("L0-HC (λ = 0.001/N)", "full model", 0.0, 81.25),
    "wrn-cifar100-l0-hc-002": ("L0-HC (λ = 0.002/N)", "full model", 0.0, 80.96),
}
UNPRINTED = ["mlp-magnitude", "lenet5-magnitude", "mlp-l1-filter", "lenet5-l1-filter"]
UNPRINTED += ["mlp-vibnet", "lenet5-vibnet"]


def printed_rate(architecture: str) -> float:
    """The paper's prune rate of an architecture (weights of the gated layers)."""
    kept = [int(units) for units in architecture.split("-")]
    if len(kept) == 3:
        a, b, c = kept
        return 100 * (1 - (a * b + b * c + 10 * c) / 266_200)
    a, b, c, d = kept
    return 100 * (1 - (25 * a + 25 * a * b + c * d + 10 * d) / 430_500)


@pytest.mark.parametrize(("name", "row"), PRINTED.items())
def test_a_recipe_carries_the_row_the_paper_prints(
    name: str, row: tuple[str, str, float, float]
) -> None:
    paper = load_recipe(name).paper
    assert paper is not None
    assert (paper.method, paper.architecture, paper.prune_rate, paper.accuracy) == row
    assert paper.table == (3 if name.startswith("wrn") else 2)


@pytest.mark.parametrize("name", [n for n in PRINTED if not n.startswith("wrn")])
def test_rates_and_architectures_belong_together_but_for_one_misprint(name: str) -> None:
    _, architecture, rate, _ = PRINTED[name]
    misprinted = name == "mlp-sparse-vd"
    assert (abs(printed_rate(architecture) - rate) < 0.08) != misprinted
    if misprinted:
        assert printed_rate("512-114-72") == pytest.approx(rate, abs=0.01)


@pytest.mark.parametrize("name", [*PRINTED, *UNPRINTED])
def test_runs_are_as_long_as_the_papers_own_unless_gates_are_faster(name: str) -> None:
    recipe = load_recipe(name)
    batch = 128 if name.startswith("wrn") else 100
    fast = recipe.optimizer.gate_lr == 10 * recipe.optimizer.lr  # gates that are done earlier
    assert fast == (recipe.method.name in ("sbp", "bc-gnj", "bc-ghs", "vibnet"))
    assert (recipe.training.epochs, recipe.training.batch) == (60 if fast else 200, batch)
    assert recipe.method.name in METHODS
    assert name.partition("-")[2].startswith((recipe.method.name, "cifar"))


@pytest.mark.parametrize("name", UNPRINTED)
def test_methods_the_paper_has_not_claim_no_row(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.paper is None
    model = MLP() if name.startswith("mlp") else LeNet5()
    if "keep" in recipe.method.options:
        assert len(recipe.method.options["keep"]) == len(model.groups())


@pytest.mark.parametrize("name", [n for n in recipe_names() if "-l0-hc" in n])
def test_l0_hc_differs_from_its_control_in_lambda_alone_and_runs_like_l0_arm(name: str) -> None:
    recipe = load_recipe(name)
    described = {"name", "title", "control", "paper"}
    twin = load_recipe(name.replace("l0-hc", "l0-arm"))
    same = {"method": twin.method.model_copy(update={"name": "l0-hc"})}
    mine = recipe.model_dump(exclude=described)
    assert mine == twin.model_copy(update=same).model_dump(exclude=described)
    if recipe.control is not None:
        control = load_recipe(recipe.control)
        assert control.method.lam == 0.0
