"""An executor that runs a campaign as Ray tasks, on a cluster or on this machine."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l0arm.lab.errors import UserError
from l0arm.lab.runs import ray_worker
from l0arm.lab.runs.executors import End, Work

REACH_SECONDS = 10.0


@dataclass(frozen=True)
class RayTask:
    """A task that was submitted."""

    ray: Any
    reference: Any
    token: Path

    def poll(self) -> End | None:
        ended, _ = self.ray.wait([self.reference], timeout=0)
        return self._end() if ended else None

    def stop(self) -> None:
        # The worker asks the run to save and exit (ray_worker.py). A waiting task never begins.
        self.ray.cancel(self.reference, force=False)

    def wait(self) -> None:
        self.ray.wait([self.reference], timeout=None)
        self._end()

    def _end(self) -> End:
        self.token.unlink(missing_ok=True)
        try:
            return End(*self.ray.get(self.reference))
        except self.ray.exceptions.RayError as error:
            message = " ".join(str(error).split()) or "no message"
            return End(1, f"Ray lost the task: {type(error).__name__}: {message}")


@dataclass(frozen=True)
class RayTasks:
    """An executor on the cluster to which ``ray`` is connected."""

    ray: Any
    remote: Any

    def slots(self) -> int:
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def start(self, work: Work) -> RayTask:
        self._check_cores(work.threads)
        token = work.log.with_name(f".{work.log.stem}.{uuid.uuid4().hex}.shared")
        token.touch()
        task = self.remote.options(num_cpus=work.threads, max_retries=0)  # the campaign retries
        return RayTask(self.ray, task.remote(work.arguments, str(work.log), str(token)), token)

    def _check_cores(self, threads: int) -> None:
        """Ray waits forever for a machine with more cores than any has."""
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        largest = int(max((found.get("CPU", 0) for found in alive), default=0))
        if threads > largest:
            raise UserError(
                f"the recipe uses training.threads={threads}, but no machine of the Ray cluster "
                f"has more than {largest} cores"
            )


@contextmanager
def ray_tasks(address: str | None = None) -> Iterator[RayTasks]:
    """Connect to the cluster at ``address`` or $RAY_ADDRESS, or start one on this machine.

    An existing connection is used and stays open.
    """
    try:
        import ray
    except ImportError:
        raise UserError(
            "Ray is not installed; pip install 'l0arm[ray]', or leave out --executor ray"
        ) from None
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local")
    ray.cloudpickle.register_pickle_by_value(ray_worker)
    try:
        yield RayTasks(ray, ray.remote(ray_worker.train))
    finally:
        ray.cloudpickle.unregister_pickle_by_value(ray_worker)
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    own = {"include_dashboard": False} if address == "local" else {}
    try:
        _check_listening(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"no Ray cluster at '{address}' ({' '.join(str(error).split())}); start one with "
            "`ray start --head`, or leave out --ray-address and RAY_ADDRESS for one of this machine"
        ) from None


def _check_listening(address: str) -> None:
    """Raise OSError if nothing listens at host:port. Ray itself would retry for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS):
            pass
