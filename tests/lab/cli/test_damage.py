"""Mistyped commands and damaged files: one line of error, and nothing is lost."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[[str], Any]
RUN = "runs/mlp-l0-arm/seed-0"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train mlp-l0-arm --set foo-bar=3", "unknown field 'foo-bar'"),
        ("train mlp-l0-arm --set data.foo-bar=3", "unknown field 'data.foo-bar'"),
        ("train mlp-l0-arm --set data.foo!=3", "'foo!' is no name of a setting"),
        ("train bad.toml", "bad.toml: it is not text in UTF-8"),
        ("train mlp-dense {quick} --run-dir afile/x", "Not a directory"),
        ("train mlp-dense {quick} --run-dir t --tracker nosuch", "no tracker 'nosuch'"),
        ("evaluate afile", "is it the folder of a run?"),
        ("report afile", "is it the folder of a run?"),
        ("table table2 --runs nosuch", "no folder of runs at nosuch"),
        ("table table2 --runs afile", "no folder of runs at afile"),
    ],
)
def test_mistakes(cli: Cli, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "afile").write_text("")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    assert cli(line).refused(message)
    assert not (tmp_path / "t" / "recipe.json").exists()


def test_a_run_that_diverges_is_reported(cli: Cli) -> None:
    ended = cli("train mlp-dense {quick} --set optimizer.lr=1e30 --quiet")
    assert ended.refused("lower the learning rate", code=1)


def test_damaged_records_and_results(trained: Cli, tmp_path: Path) -> None:
    run = tmp_path / RUN
    record = (run / "epochs.jsonl").read_bytes()
    (run / "epochs.jsonl").write_bytes(b'{"epoch": 1}\n')
    assert trained(f"report {RUN}").refused("are damaged")
    (run / "epochs.jsonl").write_bytes(record.replace(b'"by_step": [[', b'"by_step": [[1], [', 1))
    assert trained(f"report {RUN}").refused("are damaged")
    (run / "epochs.jsonl").write_bytes(record.replace(b'"fc1"', b'"zz"'))
    assert trained(f"compare runs {RUN}").refused("has groups that its records lack")
    (run / "epochs.jsonl").unlink()
    (run / "epochs.jsonl.gz").write_bytes(gzip.compress(record)[:40])
    assert trained(f"report {RUN}").refused("are damaged")
    (run / "epochs.jsonl").write_bytes(b"")
    for line in (f"compare runs {RUN}", f"report {RUN}", f"figure inputs {RUN}"):
        assert trained(line).refused("is finished, but has no records")
    (run / "result.json").write_text("{}")
    for line in (f"compare runs {RUN}", f"figure inputs {RUN}"):
        assert trained(line).refused("result.json is damaged")


def test_a_checkpoint_that_is_no_state_is_skipped(trained: Cli, tmp_path: Path) -> None:
    for path in (tmp_path / RUN / "checkpoints").glob("*.json"):
        path.write_text("[]")
    assert trained(f"evaluate {RUN}").code == 2


def test_the_log_of_a_campaign_beside_a_run_is_not_a_run(trained: Cli, tmp_path: Path) -> None:
    (tmp_path / f"{RUN}.log").write_text("what it said")
    ended = trained("figure inputs --out inputs.png")
    assert ended.code == 0, ended.err


def test_two_runs_of_one_recipe_are_both_drawn(trained: Cli, tmp_path: Path) -> None:
    assert trained("train mlp-l0-arm {quick} --set method.lam=50 --run-dir other -q").code == 0
    assert trained(f"report {RUN} other").code == 0
    text = (tmp_path / "report.html").read_text()
    assert f"seed 0 ({RUN})" in text
    assert "seed 0 (other)" in text


def test_pixels_that_stay_are_as_many_as_the_records_say(cli: Cli, tmp_path: Path) -> None:
    """Hard concrete gates are open from P(z > 0) = 0.31 on."""
    assert cli("train mlp-l0-hc {quick} --quiet").code == 0
    assert cli("report runs/mlp-l0-hc/seed-0").code == 0
    result = json.loads((tmp_path / "runs/mlp-l0-hc/seed-0/result.json").read_text())
    kept = result["architecture"].split("-")[0]
    assert f"The {kept} of 784 input pixels" in (tmp_path / "report.html").read_text()


def test_a_method_by_name_is_not_taken_for_a_run_that_has_one(trained: Cli) -> None:
    assert trained(f"evaluate {RUN} --method l0-ar").refused("a run has its method")


def test_reproduce_refuses_to_take_one_run_for_another(trained: Cli, tmp_path: Path) -> None:
    ask = "reproduce table2 --only mlp-l0-arm --seeds 1 --set data.name=mnist-mini"
    before = (tmp_path / RUN / "result.json").read_bytes()
    assert trained(f"{ask} --epochs 3").refused(f"{RUN} is a finished run with other settings")
    kept = tmp_path / "results" / RUN
    kept.mkdir(parents=True)
    for name in ("recipe.json", "result.json"):
        (kept / name).write_bytes((tmp_path / RUN / name).read_bytes())
    more = "--set data.limit=200 --set training.batch=50"
    ended = trained(f"{ask} {more} --epochs 3 --runs new")
    assert ended.code == 0, ended.err
    assert "1 finished runs are not copied to results/runs" in ended.out.replace("\n", " ")
    assert (kept / "result.json").read_bytes() == before
    assert trained(f"{ask} --epochs 0").code == 2
    more = f"{more} --epochs 2"
    ended = trained(f"{ask} {more}")
    assert ended.code == 0, ended.err
    assert "1 of 1 runs are there" in ended.out


def test_a_damaged_environment_is_reported_by_a_resumed_run(trained: Cli, tmp_path: Path) -> None:
    (tmp_path / RUN / "environment.json").write_text("[]")
    ended = trained("train mlp-l0-arm {quick} --resume --quiet")
    assert ended.refused("environment.json is damaged")
