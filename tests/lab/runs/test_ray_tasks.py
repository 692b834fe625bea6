"""Runs on a real Ray cluster of this machine: the same records, failures and interruptions."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.quick_jobs import job

from l0arm.lab.errors import UserError
from l0arm.lab.runs import campaign as campaigns
from l0arm.lab.runs import ray_worker
from l0arm.lab.runs.campaign import Campaign, Job
from l0arm.lab.runs.executors import Executor, LocalProcesses, Work
from l0arm.lab.runs.ray_tasks import RayTask, ray_tasks
from l0arm.lab.runs.records import read

ray = pytest.importorskip("ray", reason="needs pip install 'l0arm[ray]'")
pytestmark = [
    pytest.mark.slow,  # a cluster takes seconds to start, and so does torch in every run
    pytest.mark.filterwarnings("ignore"),  # what Ray warns of is Ray's
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two cores."""
    settings = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    context = ray.init(address="local", num_cpus=2, **settings)
    yield context.address_info["address"]
    ray.shutdown()


@pytest.fixture
def executor(cluster: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    monkeypatch.setattr(campaigns, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(ray_worker, "PATIENCE_SECONDS", 1.0)
    with ray_tasks() as found:
        yield found
    assert ray.is_initialized()  # the connection was there before


def figures(of: Job) -> list[dict[str, Any]]:
    """The records without their times."""
    return [asdict(record) | {"seconds": 0.0} for record in read(of.folder.records)]


def test_the_records_are_those_of_local_processes(executor: Executor, tmp_path: Path) -> None:
    def jobs(runs: str) -> list[Job]:
        names = ("mlp-l0-arm", "mlp-dense")
        return [job(tmp_path / runs, name, 3, "training.epochs=2") for name in names]

    here, there = jobs("local"), jobs("ray")
    assert Campaign(here, executor=LocalProcesses()).run(1, lambda _: None) == []
    assert Campaign(there, executor=executor).run(2, lambda _: None) == []
    for one, other in zip(here, there, strict=True):
        assert len(figures(one)) == 2
        assert figures(one) == figures(other)
        files = [sorted(p.name for p in j.folder.path.rglob("*")) for j in (one, other)]
        assert files[0] == files[1]
        assert sorted(p.name for p in other.folder.path.parent.iterdir()) == [
            "seed-3", "seed-3.log",
        ]  # fmt: skip


def test_a_failure_is_tried_once_more_and_reported(executor: Executor, tmp_path: Path) -> None:
    broken = job(tmp_path)
    broken.command = lambda data_dir: ["train", "no-such-recipe"]  # type: ignore[method-assign]
    assert Campaign([broken], executor=executor).run(1, lambda _: None) == [broken]
    assert broken.attempts == 2
    assert broken.failure.startswith("error: no recipe 'no-such-recipe'")
    assert broken.log.read_text().count("error:") == 2


def test_an_interrupted_run_goes_on_where_it_was(executor: Executor, tmp_path: Path) -> None:
    whole = job(tmp_path / "whole", "mlp-l0-arm", 0, "training.epochs=40")
    torn = job(tmp_path / "torn", "mlp-l0-arm", 0, "training.epochs=40")
    behind = job(tmp_path / "torn", "mlp-l0-arm", 1)
    behind.work = lambda data_dir: Work(  # type: ignore[method-assign]
        tuple(behind.command(None)), behind.log, threads=2
    )  # waits for both cores when the end is asked for

    def interrupt(campaign: Campaign) -> None:
        if torn.epochs_done() > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Campaign([torn, behind], executor=executor).run(2, interrupt)
    assert torn.log.read_text().startswith("interrupted: saved after epoch")
    assert 1 < torn.epochs_done() < 40
    assert list(behind.folder.path.iterdir()) == []
    assert not list(tmp_path.rglob("*.shared"))
    assert Campaign([torn], executor=executor).run(1, lambda _: None) == []
    assert Campaign([whole]).run(1, lambda _: None) == []
    assert figures(torn) == figures(whole)


def test_a_worker_that_dies_is_reported(executor: Executor, tmp_path: Path) -> None:
    @ray.remote(max_retries=0)
    def die() -> None:
        import os

        os._exit(1)

    handle = RayTask(ray, die.remote(), tmp_path / ".token")
    handle.wait()
    end = handle.poll()
    assert end is not None
    assert end.code != 0
    assert end.reason.startswith("Ray lost the task: WorkerCrashedError")


def test_a_folder_that_is_not_shared_is_reported(executor: Any, tmp_path: Path) -> None:
    reference = executor.remote.remote(("train",), str(tmp_path / "a.log"), str(tmp_path / "no"))
    handle = RayTask(ray, reference, tmp_path / "no")
    handle.wait()
    end = handle.poll()
    assert end is not None
    assert f"does not see the folder {tmp_path} of this campaign" in end.reason


def test_more_cores_than_a_machine_has_are_refused(executor: Executor, tmp_path: Path) -> None:
    assert executor.slots() == 2
    with pytest.raises(UserError, match=r"threads=3, but no machine .* more than 2 cores"):
        executor.start(Work(("recipes",), tmp_path / "run.log", threads=3))


CONNECTING = """
import sys, time
from pathlib import Path
from l0arm.lab.runs.campaign import executor_named
from l0arm.lab.runs.executors import Work

with executor_named("ray", sys.argv[1]) as executor:
    handle = executor.start(Work(("recipes",), Path(sys.argv[2])))
    while handle.poll() is None:
        time.sleep(0.1)
    print(executor.slots(), handle.poll())
"""


def test_a_cluster_that_is_there_is_used(cluster: str, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    done = subprocess.run(
        [sys.executable, "-c", CONNECTING, cluster, str(log)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout == "2 End(code=0, reason='')\n"
    assert "mlp-l0-arm" in log.read_text()
