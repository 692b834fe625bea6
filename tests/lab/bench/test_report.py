"""From measured times to rows, text and plot; the stored results stay readable."""

import json
from pathlib import Path

import pytest

from l0arm.lab.bench import report, steps
from l0arm.lab.bench.run import work
from l0arm.lab.bench.timing import Contestant, Plan, interleave

RESULTS = Path(__file__).parents[3] / "benchmarks/results"


@pytest.mark.parametrize("threads", [1, 2])
def test_stored_results_give_the_stored_text(threads: int) -> None:
    result = json.loads((RESULTS / f"steps-{threads}t.json").read_text())
    assert report.text(result) == (RESULTS / f"steps-{threads}t.txt").read_text()


def test_a_new_result_has_the_keys_of_the_stored_ones(tmp_path: Path) -> None:
    work([], threads=1, quick=True, path=str(tmp_path / "new/steps-1t.json"))
    result = json.loads((tmp_path / "new/steps-1t.json").read_text())
    stored = json.loads((RESULTS / "steps-1t.json").read_text())
    assert list(result) == list(stored)
    assert list(result["environment"]) == list(stored["environment"])
    assert report.text(result).startswith("QUICK RUN, not for comparison\nthreads 1, torch")

    network, plan = steps.mlp(), Plan(rounds=1, steps=1, warm=0)
    section = report.section(network, plan, steps.measure(network, plan))
    (of_mlp,) = (s for s in stored["steps"] if s["network"] == "MLP")
    assert list(section) == list(of_mlp)
    assert [(row["state"], row["name"], list(row)) for row in section["rows"]] == [
        (row["state"], row["name"], list(row)) for row in of_mlp["rows"]
    ]
    flops = [row["flops"] for row in of_mlp["rows"] if row["flops"]]
    assert [row["flops"] for row in section["rows"] if row["flops"]] == pytest.approx(flops)


def test_what_a_gated_step_takes_beyond_a_plain_one_is_a_difference_in_milliseconds() -> None:
    network = steps.shrunk(steps.mlp(), "converged 159-74-73")
    (state,) = network.states
    times = {
        (steps.DENSE, steps.PLAIN): [4.0, 2.0],
        (steps.DENSE, steps.OURS): [3.0, 1.5],
        (state, steps.ARM): [2.0, 1.0],
        (state, steps.ALONE): [1.0, 0.6],
    }
    section = report.section(network, Plan(2, 1), steps.Measured(times, {}))
    row = section["rows"][-1]
    assert row["name"] == report.BEYOND
    assert row["ms"] == pytest.approx({"median": 0.7, "low": 0.4, "high": 1.0})
    assert row["to_plain"] == pytest.approx({"median": 0.225, "low": 0.2, "high": 0.25})
    assert row["fastest"] == pytest.approx(0.2)
    assert row["result"] == "missed"  # 0.6 ms are allowed


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curve = json.loads((RESULTS / "steps-1t.json").read_text())["curve"]
    report.draw({1: curve, 2: curve}, tmp_path / "plots/step-time.png")
    assert (tmp_path / "plots/step-time.png").read_bytes().startswith(b"\x89PNG")


def test_contestants_take_turns_and_the_order_alternates() -> None:
    calls: list[str] = []
    contestants = {
        name: Contestant(lambda name=name: calls.append(name), lambda: calls.append("prepare"))
        for name in "ab"
    }
    times = interleave(contestants, Plan(rounds=2, steps=2, warm=1))
    block = {name: ["prepare", name, name, name] for name in "ab"}
    assert calls == block["a"] + block["b"] + block["b"] + block["a"]
    assert {name: len(ms) for name, ms in times.items()} == {"a": 2, "b": 2}
    assert len(interleave(contestants, Plan(rounds=9, steps=1, seconds=0.0))["a"]) == 1
