"""``l0arm train`` as a person and as a program meet it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[[str], Any]


def test_a_run_from_start_to_end(cli: Cli, tmp_path: Path) -> None:
    ended = cli("train mlp-l0-arm {quick}")
    assert ended.code == 0
    assert ended.err == ""
    first, one, two, last = ended.out.splitlines()
    assert first == "MLP 784-300-100, L0-ARM (λ = 0.1/N): runs/mlp-l0-arm/seed-0"
    assert one.startswith("epoch 1/2: loss ")
    assert "% right" in two
    assert "% pruned" in two
    assert "% FLOPs" in two
    assert last.startswith("2 epochs: ")
    written = sorted(path.name for path in (tmp_path / "runs/mlp-l0-arm/seed-0").iterdir())
    assert written == [
        "checkpoints",
        "environment.json",
        "epochs.jsonl",
        "lock",
        "recipe.json",
        "result.json",
    ]


def test_json_is_the_records_and_the_result(cli: Cli, tmp_path: Path) -> None:
    ended = cli("train mlp-l0-arm {quick} --json")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    written = (tmp_path / "runs/mlp-l0-arm/seed-0/epochs.jsonl").read_text().splitlines()
    assert lines[:-1] == [json.loads(line) for line in written]
    assert lines[-1]["result"]["epochs"] == 2


def test_quiet_says_nothing(cli: Cli) -> None:
    ended = cli("train mlp-dense {quick} --quiet")
    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_a_second_start_needs_resume_and_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    cli("train mlp-dense {quick}")
    result = tmp_path / "runs/mlp-dense/seed-0/result.json"
    before = result.read_bytes()
    ended = cli("train mlp-dense {quick}")
    assert ended.code == 2
    assert "go on with it by --resume" in ended.err
    assert result.read_bytes() == before
    assert cli("train mlp-dense {quick} --resume").code == 0


def test_other_settings_want_another_folder(cli: Cli) -> None:
    cli("train mlp-dense {quick}")
    ended = cli("train mlp-dense {quick} --set optimizer.lr=0.5 --resume")
    assert ended.code == 2
    assert "optimizer.lr: 0.001, not 0.5" in ended.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train mlp-l0arm", "no recipe 'mlp-l0arm'; did you mean 'mlp-l0-arm'"),
        ("train mlp-dense --set training.epoch=1", "unknown field 'training.epoch'; did you mean"),
        ("train mlp-dense --epochs 0", "greater than or equal to 1; got 0"),
        ("train mlp-dense --set data.name=minst", "'minst'"),
        ("train mlp-dense --set data.name=folder:nowhere", "nowhere"),
        ("train lenet5-dense --set data.name=mnist-mini --set data.limit=9000", "has 8000 images"),
        *(
            (f"train mlp-{name} {{quick}} --set method.lam=[1,2,3]", f"{name} takes one strength")
            for name in ("sparse-vd", "bc-gnj", "bc-ghs")
        ),
        ("evaluate nowhere", "no recipe.json in nowhere: is it the folder of a run?"),
        ("table table9", "table9"),
        ("figure fig9", "no figure 'fig9'; did you mean"),
        ("figure fig2", "no run to draw fig2 from; train one (l0arm train lenet5-l0-arm)"),
        ("report nowhere", "no recipe.json in nowhere"),
        ("reproduce table9", "nothing to reproduce as 'table9'; there are table2, table3"),
        ("bench --only lenet", "nothing to measure as 'lenet'; did you mean 'lenet5'"),
        ("recipes vgg*", "no recipe matches 'vgg*'"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    cli: Cli, line: str, message: str, tmp_path: Path
) -> None:
    ended = cli(line)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert message in ended.err
    assert not list(tmp_path.rglob("recipe.json"))


def test_a_run_that_fails_has_code_1(cli: Cli) -> None:
    ended = cli("train mlp-dense {quick} --set optimizer.name=sgd --set optimizer.lr=1e30")
    assert ended.code == 1
    assert ended.err.startswith("failed: epoch 1: the data loss is ")
    assert ended.err.count("\n") == 1
