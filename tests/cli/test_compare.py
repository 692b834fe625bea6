"""``l0arm compare estimators``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[[str], Any]


def test_the_quadratic_shows_disarm_below_arm(cli: Cli, tmp_path: Path) -> None:
    ended = cli("compare estimators --only disarm --only straight-through --draws 60 --quiet")
    assert (ended.code, ended.out) == (0, "")
    written = json.loads((tmp_path / "results/estimators-quadratic.json").read_text())
    lines = {(line["estimator"], line["stage"]): line for line in written["lines"]}
    assert {name for name, _ in lines} == {"arm", "disarm", "straight-through"}
    assert [stage for name, stage in lines if name == "arm"] == ["start", "polarised", "converged"]
    for stage in ("polarised", "converged"):
        assert lines["disarm", stage]["variance"] < 0.6 * lines["arm", stage]["variance"]
    assert not lines["straight-through", "start"]["unbiased"]
    assert lines["arm", "start"]["evaluations"] == 2
    assert (tmp_path / "results/estimators-quadratic.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "results/estimators-quadratic.md").read_text()
    assert "l0arm compare estimators --problem quadratic --draws 60" in text
    assert text.count("| disarm |") == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compare methods", "there are estimators"),
        ("compare estimators --only disram", "did you mean 'disarm'"),
        ("compare estimators --problem cubic", "no problem 'cubic'"),
    ],
)
def test_bad_input(cli: Cli, line: str, message: str) -> None:
    ended = cli(line)
    assert ended.code == 2
    assert message in ended.err


@pytest.mark.slow
def test_the_mlp_shows_the_same(cli: Cli, tmp_path: Path) -> None:
    assert cli("compare estimators --problem mlp --only disarm --draws 100 --quiet").code == 0
    written = json.loads((tmp_path / "results/estimators-mlp.json").read_text())
    variance = {(x["estimator"], x["stage"]): x["variance"] for x in written["lines"]}
    ratios = [variance["disarm", s] / variance["arm", s] for s in ("start", "converged")]
    assert ratios[1] < 0.2 < ratios[0]
