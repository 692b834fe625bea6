"""A campaign runs what is missing, retries what failed, and skips what is finished."""

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.helpers.quick_jobs import job

from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import load_recipe
from l0arm.lab.runs import campaign as campaigns
from l0arm.lab.runs.campaign import Campaign, jobs_of, recipes_of
from l0arm.lab.runs.executors import End, Work
from l0arm.lab.runs.folder import RunFolder, archive
from l0arm.lab.runs.records import read


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaigns, "POLL_SECONDS", 0.05)


@dataclass
class Pretended:
    """A run that ends at its second poll, as its script says."""

    work: Work
    end: End
    polls: int = 0
    heard: list[str] = field(default_factory=list)

    def poll(self) -> End | None:
        self.polls += 1
        if self.polls < 2:
            return None
        folder = RunFolder(Path(self.work.arguments[self.work.arguments.index("--run-dir") + 1]))
        if self.end == End(0):
            folder.result.write_text("{}")
        return self.end

    def stop(self) -> None:
        self.heard.append("stop")

    def wait(self) -> None:
        self.heard.append("wait")


@dataclass
class Script:
    """An executor that starts nothing. Its runs end as given, one after the other."""

    ends: list[End]
    started: list[Pretended] = field(default_factory=list)

    def slots(self) -> int:
        return 1

    def start(self, work: Work) -> Pretended:
        self.started.append(Pretended(work, self.ends[len(self.started)]))
        return self.started[-1]


def test_two_runs_at_a_time(tmp_path: Path) -> None:
    jobs, script = [job(tmp_path, seed=seed) for seed in range(5)], Script([End(0)] * 5)
    most = []
    failed = Campaign(jobs, executor=script).run(2, lambda c: most.append(len(c.running)))
    assert failed == []
    assert max(most) == 2
    assert [run.work for run in script.started] == [j.work(None) for j in jobs]


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    done = job(tmp_path)
    done.folder.path.mkdir(parents=True)
    done.folder.result.write_text("{}")
    script = Script([])
    assert Campaign([done], executor=script).run(1, lambda _: None) == []
    assert script.started == []


def test_a_failure_is_tried_once_more_after_the_others_and_reported(tmp_path: Path) -> None:
    broken, good = job(tmp_path), job(tmp_path, seed=1)
    script = Script([End(1, "lost"), End(0), End(3, "lost again")])
    assert Campaign([broken, good], executor=script).run(1, lambda _: None) == [broken]
    assert (broken.attempts, good.attempts) == (2, 1)
    assert (broken.failure, good.failure) == ("lost again", "")


def test_a_second_try_that_works_is_no_failure(tmp_path: Path) -> None:
    shaky = job(tmp_path)
    assert Campaign([shaky], executor=Script([End(1), End(0)])).run(1, lambda _: None) == []
    assert (shaky.attempts, shaky.failure) == (2, "")


def test_a_failure_is_the_last_line_of_the_log(tmp_path: Path) -> None:
    broken = job(tmp_path)
    broken.log.parent.mkdir(parents=True)
    broken.log.write_text("first\nerror: the disk is full\n")
    Campaign([broken], executor=Script([End(1)] * 2)).run(1, lambda _: None)
    assert broken.failure == "error: the disk is full"
    silent = job(tmp_path, seed=1)
    Campaign([silent], executor=Script([End(-9)] * 2)).run(1, lambda _: None)
    assert silent.failure == "it ended without a word"


def test_a_result_that_does_not_appear_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "RESULT_SECONDS", 0.1)
    lost = job(tmp_path)
    script = Script([End(0, "elsewhere")] * 2)
    assert Campaign([lost], executor=script).run(1, lambda _: None) == [lost]
    assert f"it ended well, but {lost.folder.result} did not appear" in lost.failure
    assert "share the folder of the runs" in lost.failure


def test_a_result_that_appears_late_is_a_result(tmp_path: Path) -> None:
    late = job(tmp_path)
    late.folder.path.mkdir(parents=True)
    writer = threading.Timer(0.5, late.folder.result.write_text, ["{}"])  # as on a network disk
    writer.start()
    script = Script([End(0, "elsewhere")] * 2)
    assert Campaign([late], executor=script).run(1, lambda _: None) == []
    writer.join()
    assert (late.attempts, late.failure) == (1, "")


def test_all_runs_are_asked_to_stop_before_one_is_waited_for(tmp_path: Path) -> None:
    jobs, script = [job(tmp_path, seed=seed) for seed in range(3)], Script([End(0)] * 3)

    def interrupt(campaign: Campaign) -> None:
        assert [run.heard for run in script.started] == [[], []]
        heard: list[str] = []
        for run in script.started:
            run.heard = heard  # one list for both, in the order of the calls
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Campaign(jobs, executor=script).run(2, interrupt)
    assert len(script.started) == 2
    assert script.started[0].heard == ["stop", "stop", "wait", "wait"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_campaign_that_is_ended_stops_its_runs_as_with_ctrl_c(
    tmp_path: Path, number: signal.Signals
) -> None:
    before, script = signal.getsignal(number), Script([End(0)])
    with pytest.raises(KeyboardInterrupt):
        Campaign([job(tmp_path)], executor=script).run(1, lambda _: signal.raise_signal(number))
    assert script.started[0].heard == ["stop", "wait"]
    assert signal.getsignal(number) is before


def test_processes_of_this_machine(tmp_path: Path) -> None:
    """One run finishes. The other fails and is tried twice."""
    good, broken = job(tmp_path), job(tmp_path, seed=1)
    broken.command = lambda data_dir: ["train", "no-such-recipe"]  # type: ignore[method-assign]
    assert Campaign([good, broken]).run(2, lambda _: None) == [broken]
    assert len(read(good.folder.records)) == 1
    assert broken.attempts == 2
    assert broken.failure.startswith("error: no recipe 'no-such-recipe'")


def test_an_interrupt_lets_the_runs_save_themselves(tmp_path: Path) -> None:
    long = job(tmp_path, "lenet5-l0-arm-control", 0, "training.epochs=500")

    def interrupt(campaign: Campaign) -> None:
        if long.epochs_done() > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Campaign([long]).run(1, interrupt)
    assert not long.folder.finished
    assert list(long.folder.checkpoints.glob("*.json"))
    assert long.log.read_text().startswith("interrupted: saved after epoch")


def test_a_job_is_the_command_a_person_would_type(tmp_path: Path) -> None:
    settings = ["method.lam=0.3", "training.threads=2"]
    (first,) = jobs_of([load_recipe("mlp-l0-arm")], tmp_path, 1, 7, settings)
    assert (first.recipe.method.lam, first.recipe.training.threads) == (0.3, 2)
    assert first.command(Path("data")) == [
        "train", "mlp-l0-arm", "--resume", "--quiet",
        "--run-dir", str(tmp_path / "mlp-l0-arm/seed-0"),
        "--seed", "0", "--epochs", "7",
        "--set", "method.lam=0.3", "--set", "training.threads=2", "--data-dir", "data",
    ]  # fmt: skip
    work = first.work(Path("data"))
    assert work.arguments == tuple(first.command(Path("data")))
    assert (work.log, work.threads) == (tmp_path / "mlp-l0-arm/seed-0.log", 2)


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
def test_nothing_to_reproduce_is_refused(what: str, only: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        recipes_of(what, only)
    assert message in str(caught.value)


def test_an_archive_holds_the_records_and_no_checkpoint(
    tmp_path: Path, finished: Callable[..., RunFolder]
) -> None:
    run = finished("mlp-dense")
    copy = RunFolder(archive(run, tmp_path / "results"))
    assert sorted(path.name for path in copy.path.iterdir()) == [
        "environment.json", "epochs.jsonl.gz", "recipe.json", "result.json",
    ]  # fmt: skip
    assert read(copy.records) == read(run.records)
    assert copy.recipe() == run.recipe()
    assert copy.finished
