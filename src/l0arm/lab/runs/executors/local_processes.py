"""Runs as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

from l0arm.lab.runs.executors.protocol import End, Work


@dataclass(frozen=True)
class LocalProcess:
    """A process that was started."""

    process: subprocess.Popen[bytes]

    def poll(self) -> End | None:
        code = self.process.poll()
        return None if code is None else End(code)

    def stop(self) -> None:
        self.process.terminate()

    def wait(self) -> None:
        self.process.wait()


@dataclass(frozen=True)
class LocalProcesses:
    """The default executor."""

    def slots(self) -> int:
        return os.cpu_count() or 1

    def start(self, work: Work) -> LocalProcess:
        # In a process group of its own: Ctrl-C in a terminal goes to the whole group, and the
        # SIGTERM of stop() would be a second signal, which ends a run before it has saved itself.
        with work.log.open("ab") as log:
            command = [sys.executable, "-m", "l0arm", *work.arguments]
            return LocalProcess(subprocess.Popen(command, stdout=log, stderr=log, process_group=0))
