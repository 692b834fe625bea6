"""One model, several processes: the loss to wrap in DDP, and what processes tell each other."""

from l0arm.distributed.launched import NoBackend, launched_team
from l0arm.distributed.team import ProcessLost, Team, noticing_losses
from l0arm.distributed.whole_loss import WholeLoss

__all__ = ["NoBackend", "ProcessLost", "Team", "WholeLoss", "launched_team", "noticing_losses"]
