"""Processes of this machine: ended by their code, out of reach of the terminal's Ctrl-C."""

import os
from pathlib import Path

from l0arm.lab.runs.executors import End, LocalProcesses, Work


def test_a_process_has_a_group_of_its_own_and_ends_with_its_code(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("before\n")
    handle = LocalProcesses().start(Work(("train", "no-such-recipe"), log))
    assert handle.poll() is None
    assert os.getpgid(handle.process.pid) == handle.process.pid != os.getpgrp()
    handle.wait()
    assert handle.poll() == End(2)
    assert log.read_text().startswith("before\nerror: no recipe 'no-such-recipe'")


def test_as_many_at_a_time_as_there_are_cores() -> None:
    assert LocalProcesses().slots() == os.cpu_count()
