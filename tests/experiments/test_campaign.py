"""A campaign runs what is missing, tries again what failed, and leaves what is done alone."""

import subprocess
from pathlib import Path

import pytest

from l0arm.experiments import campaign as campaigns
from l0arm.experiments.archive import archive
from l0arm.experiments.campaign import Campaign, Job, jobs_of, recipes_of
from l0arm.experiments.errors import UserError
from l0arm.experiments.folder import RunFolder
from l0arm.experiments.recipe import load_recipe
from l0arm.experiments.records import read

QUICK = ["data.name=mnist-mini", "data.limit=200", "training.epochs=1"]


def job(tmp_path: Path, name: str = "mlp-dense", seed: int = 0) -> Job:
    """A job whose command line says what its recipe does."""
    recipe = load_recipe(name, [*QUICK, f"training.seed={seed}"])
    made = Job(recipe, RunFolder(tmp_path / name / f"seed-{seed}"))
    made.command = lambda data_dir: [  # type: ignore[method-assign]
        "train", name, "--resume", "--quiet", "--run-dir", str(made.folder.path),
        "--seed", str(seed), *(part for q in QUICK for part in ("--set", q)),
    ]  # fmt: skip
    return made


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaigns, "POLL_SECONDS", 0.05)


def test_two_runs_at_a_time(tmp_path: Path) -> None:
    jobs = [job(tmp_path, seed=seed) for seed in range(3)]
    most = 0

    def watch(campaign: Campaign) -> None:
        nonlocal most
        most = max(most, len(campaign.running))

    assert Campaign(jobs).run(2, watch) == []
    assert most == 2
    assert [len(read(j.folder.records)) for j in jobs] == [1, 1, 1]


def test_what_is_done_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = job(tmp_path)
    done.folder.path.mkdir(parents=True)
    done.folder.result.write_text("{}")

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a finished run was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert Campaign([done]).run(1, lambda _: None) == []


def test_a_failure_is_tried_once_more_and_told(tmp_path: Path) -> None:
    broken = job(tmp_path)
    broken.command = lambda data_dir: ["train", "no-such-recipe"]  # type: ignore[method-assign]
    assert Campaign([broken]).run(1, lambda _: None) == [broken]
    assert broken.attempts == 2
    assert broken.failure.startswith("error: no recipe 'no-such-recipe'")


def test_an_interrupt_lets_the_runs_save_themselves(tmp_path: Path) -> None:
    long = job(tmp_path, "lenet5-l0-arm-control")
    command = long.command(None)
    long.command = lambda data_dir: [*command, "--epochs", "500"]  # type: ignore[method-assign]

    def interrupt(campaign: Campaign) -> None:
        if long.epochs_done() > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Campaign([long]).run(1, interrupt)
    assert not long.folder.finished
    assert list(long.folder.checkpoints.glob("*.json"))


def test_a_job_is_the_command_a_person_would_type(tmp_path: Path) -> None:
    (first,) = jobs_of([load_recipe("mlp-l0-arm")], tmp_path, seeds=1, epochs=7)
    assert first.command(Path("data")) == [
        "train", "mlp-l0-arm", "--resume", "--quiet",
        "--run-dir", str(tmp_path / "mlp-l0-arm/seed-0"),
        "--seed", "0", "--epochs", "7", "--data-dir", "data",
    ]  # fmt: skip


def test_table_2_is_its_rows_the_dense_networks_and_the_controls() -> None:
    names = {recipe.name for recipe in recipes_of("table2")}
    assert {"mlp-l0-arm", "lenet5-l0-ar-separate", "mlp-dense", "lenet5-l0-arm-control"} <= names
    assert not any(name.startswith("wrn-") for name in names)
    only = recipes_of("table2", "mlp-l0-ar*")
    assert {recipe.name for recipe in only} == {
        "mlp-l0-ar", "mlp-l0-ar-separate", "mlp-l0-ar-control",
        "mlp-l0-arm", "mlp-l0-arm-separate", "mlp-l0-arm-control",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("what", "only", "message"),
    [("table4", "*", "there are table2, table3"), ("table2", "vgg*", "matches 'vgg")],
)
def test_nothing_to_reproduce_is_told(what: str, only: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        recipes_of(what, only)
    assert message in str(caught.value)


def test_an_archive_holds_the_records_and_no_checkpoint(tmp_path: Path) -> None:
    finished = job(tmp_path)
    Campaign([finished]).run(1, lambda _: None)
    copy = RunFolder(archive(finished.folder, tmp_path / "results"))
    assert sorted(path.name for path in copy.path.iterdir()) == [
        "environment.json", "epochs.jsonl.gz", "recipe.json", "result.json",
    ]  # fmt: skip
    assert read(copy.records) == read(finished.folder.records)
    assert copy.recipe() == finished.folder.recipe()
    assert copy.finished
