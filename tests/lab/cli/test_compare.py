"""``l0arm compare``: estimators, and runs."""

import json
import math
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
    for line in lines.values():
        error = {name for name in line if name.endswith(("_error", "_spread", "_limit"))}
        assert {"variance_error", "ratio_error", "bias_error", "seconds_spread"} < error
        assert line["ratio"] == line["variance"] / lines["arm", line["stage"]]["variance"]
    assert (tmp_path / "results/estimators-quadratic.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "results/estimators-quadratic.md").read_text()
    asked = "--problem quadratic --draws 60 --only disarm --only straight-through\n"
    assert f"l0arm compare estimators {asked}" in text
    assert text.count("| disarm |") == 3


def test_the_table_fits_a_narrow_terminal(cli: Cli) -> None:
    printed = cli("compare estimators --only straight-through --only concrete --draws 30").out
    assert max(len(line.rstrip()) for line in printed.splitlines()[:-1]) <= 80
    assert printed.count("straight-through") == 3
    assert "…" not in printed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compare methods", "No such command 'methods'"),
        ("compare runs nowhere", "is it the folder of a run?"),
        ("compare estimators --only disram", "did you mean 'disarm'"),
        ("compare estimators --problem cubic", "no problem 'cubic'"),
        ("compare estimators --draws 29", "greater than or equal to 30"),
        ("compare estimators --results /dev/null/x", "cannot write results to /dev/null/x: Not a"),
    ],
)
def test_bad_input(cli: Cli, line: str, message: str) -> None:
    ended = cli(line)
    assert ended.code == 2
    assert message in ended.err


# ARM's total variance over DisARM's on another network, and the factor ours may differ by.
EXCESS = {"start": (1.3, 1.1), "polarised": (8.5, 1.25), "converged": (69.0, 1.4)}


@pytest.mark.slow
def test_the_mlp_shows_the_same(cli: Cli, tmp_path: Path) -> None:
    """ARM's excess grows from 1.3 to about 70; AR is 30 to 3,000 times worse than ARM."""
    command = "compare estimators --problem mlp --only disarm --only ar --draws 200 --quiet"
    assert cli(command).code == 0
    written = json.loads((tmp_path / "results/estimators-mlp.json").read_text())
    lines = {(x["estimator"], x["stage"]): x for x in written["lines"]}
    for stage, (excess, margin) in EXCESS.items():
        disarm, ar = lines["disarm", stage], lines["ar", stage]
        error = disarm["ratio_error"] / disarm["ratio"]
        assert error < 0.2
        assert abs(math.log(disarm["ratio"] * excess)) < math.log(margin) + 3 * error
        worse = {"start": 30, "polarised": 300, "converged": 3000}[stage]  # with the size of f
        error = ar["ratio_error"] / ar["ratio"]
        assert abs(math.log(ar["ratio"] / worse)) < math.log(1.5) + 3 * error
        assert not disarm["bias_shown"]
        assert not ar["bias_shown"]


def test_runs_from_one_network_share_units_and_others_are_not_compared(
    cli: Cli, tmp_path: Path
) -> None:
    start = "{quick} --quiet --set optimizer.gate_lr=0.1 --set method.lam=0.0"
    cli(f"train mlp-l0-arm {start} --set training.init_seed=5")
    cli(f"train mlp-l0-arm {start} --set training.init_seed=5 --seed 1")
    cli(f"train mlp-l0-arm {start} --seed 2")
    cli("train mlp-dense {quick} --quiet")
    folders = [f"runs/mlp-l0-arm/seed-{n}" for n in range(3)] + ["runs/mlp-dense/seed-0"]
    ended = cli(f"compare runs {' '.join(folders)} --out out/four")
    assert ended.code == 0
    written = json.loads((tmp_path / "out/four.json").read_text())
    assert [row["seed"] for row in written["runs"]] == [0, 1, 2, 0]
    (pair,) = written["pairs"]
    assert [pair["one"][-6:], pair["other"][-6:]] == ["seed 0", "seed 1"]
    architectures = [row["architecture"].split("-") for row in written["runs"][:2]]
    assert pair["kept"] == [sum(map(int, units)) for units in architectures]
    assert 0 < pair["overlap"]["common"] <= min(pair["kept"])
    text = (tmp_path / "out/four.md").read_text()
    assert text in ended.out
    assert f"l0arm compare runs {folders[0]}" in text
    assert pair["sigmas"] == pytest.approx(
        (pair["overlap"]["common"] - pair["overlap"]["by_chance"]) / pair["overlap"]["deviation"]
    )
    assert (tmp_path / "out/four.png").read_bytes().startswith(b"\x89PNG")


def test_dense_runs_alone_have_no_gates_to_draw(cli: Cli, tmp_path: Path) -> None:
    cli("train mlp-dense {quick} --quiet")
    ended = cli("compare runs runs/mlp-dense/seed-0 --quiet")
    assert (ended.code, ended.out) == (0, "")
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [
        "runs.json",
        "runs.md",
    ]


def test_runs_of_one_title_and_seed_get_different_labels(cli: Cli, tmp_path: Path) -> None:
    cli("train mlp-l0-arm {quick} --quiet --run-dir one")
    cli("train mlp-l0-arm {quick} --quiet --run-dir two")
    cli("train lenet5-l0-arm {quick} --quiet --run-dir three")
    assert cli("compare runs one two three --quiet --title It's").code == 0
    written = json.loads((tmp_path / "results/runs.json").read_text())
    mlp = "MLP 784-300-100, L0-ARM (λ = 0.1/N), seed 0"
    assert [row["run"] for row in written["runs"]] == [
        f"{mlp} (one)",
        f"{mlp} (two)",
        "LeNet-5 20-50-800-500, L0-ARM (λ = 0.1/N), seed 0",
    ]
    (pair,) = written["pairs"]
    assert pair["overlap"]["common"] == pair["kept"][0] == pair["kept"][1]  # the same run twice
    assert """--title 'It'"'"'s'""" in (tmp_path / "results/runs.md").read_text()
