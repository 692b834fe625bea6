"""Where the runs of a campaign are executed: one file for each place."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from l0arm.lab.runs.errors import UserError, nearest
from l0arm.lab.runs.executors.local_processes import LocalProcesses
from l0arm.lab.runs.executors.protocol import End, Executor, Handle, Work
from l0arm.lab.runs.executors.ray_tasks import ray_tasks

__all__ = ["End", "Executor", "Handle", "LocalProcesses", "Work", "executor_named"]


def executor_named(name: str, ray_address: str | None = None) -> AbstractContextManager[Executor]:
    """The executor "local" or "ray", for as long as the context lasts."""
    if name not in ("local", "ray"):
        raise UserError(f"no executor '{name}'; {nearest(name, ('local', 'ray'))}")
    if name == "ray":
        return ray_tasks(ray_address)
    if ray_address:
        raise UserError("--ray-address is of use with --executor ray only")
    return nullcontext(LocalProcesses())
