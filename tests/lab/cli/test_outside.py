"""The page on adding a method is true: its method runs from outside, on the command line."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from l0arm.estimators import ESTIMATORS, DisARM
from l0arm.methods import METHODS

Cli = Callable[[str], Any]
PAGE = Path(__file__).parents[3] / "docs/adding_a_method.md"
NAME = "toymethods:l0_root"
RUN = "runs/mlp-l0-arm-with-l0-root/seed-0"


@pytest.fixture
def toy(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (block,) = [block for block in blocks if "def l0_root" in block]
    (tmp_path / "toymethods.py").write_text(block)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("l0arm.lab.cli.outside.METHODS", outside := dict(METHODS))
    monkeypatch.setattr("l0arm.lab.runs.building.METHODS", outside)
    monkeypatch.delitem(sys.modules, "toymethods", raising=False)
    return cli


def test_the_method_of_the_page_trains_and_is_evaluated(toy: Cli, tmp_path: Path) -> None:
    ended = toy(f"train mlp-l0-arm {{quick}} --method {NAME} --set method.lam=0.5")
    assert ended.code == 0, ended.err
    recipe = json.loads((tmp_path / RUN / "recipe.json").read_text())
    assert recipe["method"] == {"name": NAME, "lam": 0.5, "initial": None, "options": {}}
    assert (recipe["paper"], recipe["control"]) == (None, None)  # it is no row of the paper
    assert recipe["title"].endswith(f", with method {NAME}")
    facts = json.loads(toy(f"evaluate {RUN} --method {NAME} --json").out)
    assert facts["largest_difference"] < 1e-5
    for command in (f"sweep {RUN} --threshold 0.5", f"export {RUN} --out small.pt2"):
        ended = toy(f"{command} --method {NAME}")
        assert ended.code == 0, ended.err


def test_a_run_never_imports_by_itself(toy: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(f"train mlp-l0-arm {{quick}} --method {NAME} --quiet")
    monkeypatch.setattr("l0arm.lab.runs.building.METHODS", dict(METHODS))
    ended = toy(f"evaluate {RUN}")
    assert ended.code == 2
    assert f"name it with --method {NAME}" in ended.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toymethods:l0_rot", "cannot find the method 'toymethods:l0_rot'"),
        ("toymethods:l0_rot", "did you mean 'l0_root'"),
        ("sys:exit --set method.lam=0", "'sys:exit' raised SystemExit: no message"),
        ("builtins:list --set method.lam=0", "'builtins:list' made list, not a Method"),
        ("builtins:dict", "'builtins:dict' has no signature"),
        ("nowhere:l0", "No module named 'nowhere'"),
        ("toymethods:PAGE", "cannot find the method"),
        ("sys:version", "is a str, not a function"),
        ("l0-amr", "no method 'l0-amr'; did you mean"),
    ],
)
def test_a_name_that_is_not_there_is_refused(toy: Cli, name: str, message: str) -> None:
    ended = toy(f"train mlp-l0-arm {{quick}} --method {name}")
    assert ended.code == 2
    assert message in ended.err


def test_an_estimator_from_outside_is_compared(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toyestimators.py").write_text(
        "from l0arm.estimators import DisARM\n\n\nclass Mine(DisARM):\n    pass\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "toyestimators", raising=False)
    monkeypatch.setitem(ESTIMATORS, "toyestimators:Mine", DisARM)  # removed after the test
    ended = cli("compare estimators --only toyestimators:Mine --draws 30 --quiet")
    assert ended.code == 0, ended.err
    lines = json.loads((tmp_path / "results/estimators-quadratic.json").read_text())["lines"]
    assert {line["estimator"] for line in lines} == {"arm", "toyestimators:Mine"}
    ended = cli("compare estimators --only builtins:list")
    assert (ended.code, "made list, not an Estimator" in ended.err) == (2, True)
