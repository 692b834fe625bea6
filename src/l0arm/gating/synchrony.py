"""Refuse a loss whose gradients DistributedDataParallel would not average.

DistributedDataParallel averages what is computed inside its own forward. With a loss computed
outside of it every process would train a model of its own, silently.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from l0arm.gating.gated import Gated


class NotSynchronised(RuntimeError):
    """Several processes train, but this loss would not be averaged over them."""


def several_processes() -> bool:
    """Whether this process is one of a group."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def check_synchronised(gated: Gated) -> None:
    """Raise NotSynchronised for a loss with a graph that nothing will average."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return  # one process: nothing can be sharded, and nothing has to be averaged
    _refuse_sharded(gated)
    if gated.settings.averaged_elsewhere or not (several_processes() and torch.is_grad_enabled()):
        return
    wrapper = torch.nn.parallel.DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if wrapper is None or all(module is not gated for module in wrapper.modules()):
        raise NotSynchronised(
            f"there are {torch.distributed.get_world_size()} processes, but this loss is computed "
            "outside DistributedDataParallel: its gradients would not be averaged. Wrap the whole "
            "loss, `step = DistributedDataParallel(l0arm.distributed.WholeLoss(gated))`, and call "
            "`step(closure, weight=len(y))`; or set gated.averaged_elsewhere = True if you average "
            "the gradients yourself"
        )


def _refuse_sharded(gated: Gated) -> None:
    """Refuse FSDP2: it shards parameters, but a draw cuts whole rows and columns."""
    tensors = sys.modules.get("torch.distributed.tensor")  # not loaded: nothing can be sharded
    if tensors is None:
        return
    for name, parameter in gated.named_parameters():
        if isinstance(parameter, tensors.DTensor):
            raise NotSynchronised(
                f"'{name}' is sharded (a DTensor, as fully_shard makes them), but a draw cuts "
                "whole rows and columns, and phi is one vector that all processes need; use "
                "DistributedDataParallel(l0arm.distributed.WholeLoss(gated)), or shard the "
                "compact model after training"
            )
