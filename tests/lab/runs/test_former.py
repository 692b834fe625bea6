"""A run of the former version of l0arm: resumed to its end, and read, by today's code.

``tests/former/run`` was interrupted at step 91, in epoch 3 of 4. ``tests/former/run-epochs.jsonl``
has the records of the same run without an interruption.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from l0arm.lab.cli.report import drawable
from l0arm.lab.data import Dataset
from l0arm.lab.plots.sections import facts_of, run_section
from l0arm.lab.recipes.recipe import load_recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.trained import trained_network
from l0arm.lab.runs.training import Callback, train
from l0arm.lab.tables.outcomes import outcomes
from l0arm.lab.tables.paper_table import table2, to_markdown
from l0arm.lab.tables.survivors import survivors

Resumed = tuple[RunFolder, list[Any]]
FORMER = Path(__file__).parents[2] / "former"
EPOCHS = [json.loads(line) for line in (FORMER / "run-epochs.jsonl").read_text().splitlines()]
DISCRETE = ("epoch", "steps", "lr", "flops_dense")
# Another processor sums in another order. A difference in the last bit of a float32 weight can flip
# a draw of a gate, after which the runs differ visibly but stay close. The run does not say which
# processor made it.
TOLERANCE = 0.05


def copied(target: Path) -> RunFolder:
    shutil.copytree(FORMER / "run", target)
    return RunFolder(target)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with the former run as it was left."""
    root = tmp_path_factory.mktemp("former")
    copied(root / "mlp-l0-arm" / "seed-0")
    return root


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> Resumed:
    """The former run, resumed to its end, and what the callbacks got."""
    heard: list[Any] = []

    class Listener(Callback):
        def on_resume(self, epoch: int, damaged: list[str]) -> None:
            heard.append((epoch, damaged))

        def on_epoch(self, record: records.EpochRecord) -> None:
            heard.append(record.epoch)

    folder = copied(tmp_path_factory.mktemp("former") / "mlp-l0-arm" / "seed-0")
    train(folder, folder.recipe(), digits, resume=True, callback=Listener())
    return folder, heard


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "seconds"}


def test_it_resumes_at_the_step_where_it_was_interrupted(
    resumed: Resumed,
) -> None:
    folder, heard = resumed
    assert heard == [(2, []), 3, 4]
    assert folder.finished


def test_its_records_are_those_of_the_run_that_was_never_interrupted(
    resumed: Resumed,
) -> None:
    folder, _ = resumed
    found = [json.loads(json.dumps(asdict(r))) for r in records.read(folder.records)]
    assert found == [json.loads(line) for line in folder.records.read_text().splitlines()]
    assert [list(record) for record in found] == [list(record) for record in EPOCHS]  # same fields
    for ours, theirs in zip(found, EPOCHS, strict=True):
        assert [ours[key] for key in DISCRETE] == [theirs[key] for key in DISCRETE]
        for key in ("train_loss", "penalty", "test_loss", "flops_inference", "undecided"):
            assert ours[key] == pytest.approx(theirs[key], rel=TOLERANCE), key


def test_the_result_is_the_last_epoch(resumed: Resumed, digits: Dataset) -> None:
    folder, _ = resumed
    result, last = folder.read_result(), records.read(folder.records)[-1]
    for key in ("test_accuracy", "prune_rate", "prune_rate_realised", "architecture", "undecided"):
        assert result[key] == asdict(last)[key]
    assert {name: len(pi) for name, pi in result["gates"].items()} == {
        group.name: group.units for group in last.groups
    }
    assert {name: len(units) for name, units in survivors(folder).items()} == {
        group.name: group.open for group in last.groups
    }
    facts = trained_network(folder, digits).measured()
    assert facts["test_accuracy"] == last.test_accuracy
    assert facts["largest_difference"] < 1e-5


def test_its_records_are_read_as_they_were_written(root: Path) -> None:
    folder = RunFolder(root / "mlp-l0-arm" / "seed-0")
    found = records.read(folder.records)
    assert [json.loads(json.dumps(asdict(record))) for record in found] == [
        json.loads(line) for line in folder.records.read_text().splitlines()
    ]
    assert [timeless(json.loads(json.dumps(asdict(r)))) for r in found] == [
        timeless(record) for record in EPOCHS[:2]
    ]


def test_it_is_a_run_of_the_table(root: Path) -> None:
    (run,) = outcomes(root, load_recipe("mlp-l0-arm"))
    assert (run.seed, run.finished, run.epochs, run.planned) == (0, False, 2, 4)
    assert run.accuracy == EPOCHS[1]["test_accuracy"]
    assert run.architecture == EPOCHS[1]["architecture"]
    assert run.changed == (
        "data.name: mnist-mini, not mnist",
        "data.limit: 2000, not 0",
        "method.lam: 0.002, not 0.1",
        "optimizer.name: sgd, not adam",
        "optimizer.lr: 0.1, not 0.001",
        "training.batch: 50, not 100",
    )
    assert "| mlp-l0-arm | 0 | 2 of 4, running or cut |" in to_markdown(table2(root))


def test_it_is_drawn_in_a_report(root: Path) -> None:
    run = drawable(root / "mlp-l0-arm" / "seed-0")
    facts = facts_of(run)
    assert (facts["epochs"], facts["architecture"]) == ("2 of 4", EPOCHS[1]["architecture"])
    section = run_section(run)
    assert section.text == ["This run is not finished."]
    assert [(layer.name, layer.units) for layer in section.layers] == [
        (group["name"], group["units"]) for group in EPOCHS[1]["groups"]
    ]
    assert section.pictures
    assert section.settings["optimizer.lr"] == "0.1"
