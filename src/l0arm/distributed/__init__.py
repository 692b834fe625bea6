"""One model, several processes: the loss to wrap in DDP, and what processes exchange."""

from l0arm.distributed.loss import WholeLoss, loss_through, unwrapped
from l0arm.distributed.team import (
    NoBackend,
    ProcessLost,
    Team,
    launched_team,
    noticing_lost_processes,
)

__all__ = [
    "NoBackend",
    "ProcessLost",
    "Team",
    "WholeLoss",
    "launched_team",
    "loss_through",
    "noticing_lost_processes",
    "unwrapped",
]
