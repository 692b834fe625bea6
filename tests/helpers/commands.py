"""``l0arm ...`` in processes of their own, forked from one that has imported torch already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(  # torch.optim imports torch._dynamo at the first step
    ["l0arm.__main__", "l0arm.lab.cli.train", "torch.nn.parallel", "torch._dynamo"]
)


class Command:
    """A command line that runs in a process of its own."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None):
        handle, name = tempfile.mkstemp()
        os.close(handle)
        self._errors = Path(name)
        self._process = FORKING.Process(target=_run, args=(arguments, environment or {}, name))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def running(self) -> bool:
        return self._process.exitcode is None

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ended(self, seconds: float = 120.0) -> tuple[int, str]:
        """The exit code and what was written to stderr, once the process has ended."""
        deadline = time.monotonic() + seconds
        while self.running():
            if time.monotonic() > deadline:
                self._process.kill()
                raise TimeoutError(f"l0arm runs for more than {seconds} seconds")
            time.sleep(0.01)
        code, errors = self._process.exitcode, self._errors.read_text()
        self._errors.unlink()
        assert code is not None
        return code, errors


def _run(arguments: Sequence[str], environment: Mapping[str, str], errors: str) -> None:
    from l0arm.__main__ import main

    os.environ.update(environment)
    file = os.open(errors, os.O_WRONLY)
    os.dup2(file, 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["l0arm", *arguments]
    main()
