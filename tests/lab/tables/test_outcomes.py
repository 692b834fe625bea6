"""Outcomes of runs that are finished, running, archived, or of another recipe."""

import gzip
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import load_recipe
from l0arm.lab.runs.records import EpochRecord, append
from l0arm.lab.tables.outcomes import Outcome, comparable, median_run, outcomes

MLP = "mlp-l0-arm"


def record(epoch: int) -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        steps=600 * epoch,
        lr=1e-3,
        train_loss=0.1,
        penalty=0.1,
        train_accuracy=99.0,
        test_loss=0.1,
        test_accuracy=90.0 + epoch,
        seconds=float(epoch),
        prune_rate=50.0 + epoch,
        prune_rate_realised=40.0 + epoch,
        architecture=f"{epoch}-2-3",
        undecided=0.5,
    )


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., Path]:
    """A run folder with its recipe and the records of some epochs, and nothing else."""

    def make(seed: int, *overrides: str, epochs: int = 0, recipe: str = MLP) -> Path:
        folder = tmp_path / recipe / f"seed-{seed}"
        folder.mkdir(parents=True)
        settings = load_recipe(recipe, [f"training.seed={seed}", *overrides]).model_dump()
        (folder / "recipe.json").write_text(json.dumps(settings))
        for epoch in range(1, epochs + 1):
            append(folder / "epochs.jsonl", record(epoch))
        return folder

    return make


RESULT = {
    "epochs": 200,
    "test_accuracy": 98.25,
    "prune_rate": 87.5,
    "prune_rate_realised": 86.5,
    "architecture": "143-153-78",
    "undecided": 0.01,
    "seconds_per_epoch": 7.5,
    "gates": {},
}


def finish(folder: Path, **figures: Any) -> None:
    (folder / "result.json").write_text(json.dumps(RESULT | figures))


def test_a_finished_run_is_its_result(tmp_path: Path, begin: Callable[..., Path]) -> None:
    finish(begin(3))  # without records: they are not needed
    assert outcomes(tmp_path, load_recipe(MLP)) == (
        Outcome(
            seed=3,
            finished=True,
            epochs=200,
            planned=200,
            accuracy=98.25,
            prune_rate=87.5,
            prune_rate_realised=86.5,
            architecture="143-153-78",
            undecided=0.01,
            seconds_per_epoch=7.5,
        ),
    )


@pytest.mark.parametrize("packed", [False, True])
def test_a_run_under_way_is_its_last_whole_line(
    tmp_path: Path, begin: Callable[..., Path], packed: bool
) -> None:
    folder = begin(0, epochs=3)
    lines = folder / "epochs.jsonl"
    with lines.open("a") as file:
        file.write('{"epoch": 4, "ste')  # torn: the run is writing just now
    if packed:
        lines.with_name("epochs.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
        lines.unlink()
    (run,) = outcomes(tmp_path, load_recipe(MLP))
    assert asdict(run) == {
        "seed": 0,
        "finished": False,
        "epochs": 3,
        "planned": 200,
        "changed": (),
        "accuracy": 93.0,
        "prune_rate": 53.0,
        "prune_rate_realised": 43.0,
        "architecture": "3-2-3",
        "undecided": 0.5,
        "seconds_per_epoch": 2.0,
    }


def test_a_run_without_an_epoch_has_no_figures(tmp_path: Path, begin: Callable[..., Path]) -> None:
    begin(0)
    assert outcomes(tmp_path, load_recipe(MLP)) == (Outcome(0, False, 0, 200),)


def test_seeds_come_in_order_and_other_folders_are_passed_over(
    tmp_path: Path, begin: Callable[..., Path]
) -> None:
    for seed in (10, 2, 0):
        begin(seed)
    for name in ("seed-x", "seed-5", "notes"):
        (tmp_path / MLP / name).mkdir()
    assert [run.seed for run in outcomes(tmp_path, load_recipe(MLP))] == [0, 2, 10]
    assert outcomes(tmp_path / "nowhere", load_recipe(MLP)) == ()


def test_other_settings_are_named(tmp_path: Path, begin: Callable[..., Path]) -> None:
    begin(0, "training.epochs=3")  # the number of epochs is reported separately
    begin(1, "method.lam=0.2", "data.limit=100", "method.options={k = 3}")
    plain, other = outcomes(tmp_path, load_recipe(MLP))
    assert (plain.changed, plain.planned) == ((), 3)
    assert other.changed == (
        "data.limit: 100, not 0",
        "method.lam: 0.2, not 0.1",
        "method.options: {'k': 3}, not {}",
    )


def test_a_run_older_than_a_field_is_not_changed(
    tmp_path: Path, begin: Callable[..., Path]
) -> None:
    path = begin(0) / "recipe.json"
    settings = json.loads(path.read_text())
    del settings["data"]["limit"]
    settings["training"]["gone"] = 1
    path.write_text(json.dumps(settings))
    assert outcomes(tmp_path, load_recipe(MLP))[0].changed == ()


def test_a_folder_with_another_run_is_refused(tmp_path: Path, begin: Callable[..., Path]) -> None:
    begin(0).rename(tmp_path / MLP / "seed-1")
    with pytest.raises(UserError, match="recipe 'mlp-l0-arm' with seed 0; rename the folder"):
        outcomes(tmp_path, load_recipe(MLP))
    (tmp_path / MLP).rename(tmp_path / "mlp-dense")
    with pytest.raises(UserError, match="holds a run of recipe 'mlp-l0-arm'"):
        outcomes(tmp_path, load_recipe("mlp-dense"))


def test_damaged_files_are_named(tmp_path: Path, begin: Callable[..., Path]) -> None:
    folder = begin(0)
    (folder / "result.json").write_text('{"epochs": 200, "gates": {}}')
    with pytest.raises(UserError, match=r"result\.json lacks 'test_accuracy'"):
        outcomes(tmp_path, load_recipe(MLP))
    for text in ("{", "{}", "[]"):
        (folder / "recipe.json").write_text(text)
        with pytest.raises(UserError, match=r"recipe\.json is damaged"):
            outcomes(tmp_path, load_recipe(MLP))


def run(seed: int, accuracy: float, *, epochs: int = 200, **fields: Any) -> Outcome:
    return Outcome(seed, **{"finished": True, "planned": epochs} | fields, epochs=epochs,
                   accuracy=accuracy)  # fmt: skip


@pytest.mark.parametrize(
    ("accuracies", "seed"),
    [
        ([98.1], 0),
        ([98.3, 98.1, 98.2], 2),
        ([98.3, 98.1, 98.2, 98.4], 2),  # 98.1 98.2 | 98.3 98.4: the lower middle is 98.2
        ([98.3, 98.1], 1),
        ([98.5, 97.0, 98.3, 98.2, 99.0], 2),
        ([98.2, 98.2, 98.2], 1),
    ],
)
def test_the_median_run_by_accuracy(accuracies: list[float], seed: int) -> None:
    median = median_run([run(n, accuracy) for n, accuracy in enumerate(accuracies)])
    assert median is not None
    assert median.seed == seed


def test_only_finished_runs_of_one_kind_are_compared() -> None:
    runs = [
        run(0, 99.9, finished=False, epochs=150),
        run(1, 98.0),
        run(2, 97.0, epochs=3),
        run(3, 96.0, epochs=400, changed=("method.lam: 0.2, not 0.1",)),
        run(4, 98.1),
    ]
    assert [r.seed for r in comparable(runs)] == [1, 4]
    assert [r.seed for r in comparable([runs[0], runs[2], runs[3]])] == [2]
    assert [r.seed for r in comparable([runs[3]])] == [3]
    assert median_run(runs[:1]) is None
