"""Training without the units that are closed for good.

The rule is that of ``compaction/shrinking.py``. What is evaluated, saved and reported is the whole
network, into which the smaller one writes what it learned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from l0arm.compaction.shrinking import remove_closed
from l0arm.compaction.working import Working, replaceable
from l0arm.gating import Gated
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs.building import build_optimizer

if TYPE_CHECKING:
    from l0arm.lab.runs.session import Session


class Smaller:
    """A smaller network with its optimizer, cut from a session's."""

    def __init__(
        self, whole: Gated, keep: Tensor, recipe: Recipe, optimizer: torch.optim.Optimizer
    ) -> None:
        self.working = Working(whole, keep)
        self.gated = self.working.gated
        self.optimizer = build_optimizer(recipe, self.gated)
        self.working.take(optimizer.state, self.optimizer.state)

    def write_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy network and optimizer state into those of full size."""
        self.working.write_back(self.optimizer.state, optimizer.state)


def begin_smaller(session: Session, recipe: Recipe) -> bool:
    """At the start of an epoch, or of a resumed one: train a smaller network if it is worth it.

    Returns:
        Whether another network takes the steps from now on.
    """
    whole = session.trainee
    if not isinstance(whole, Gated) or not replaceable(whole):
        return False
    keep, resumed = session.kept, session.kept is not None and session.smaller is None
    if session.step == 0:  # a resumed epoch goes on with the gates that it began with
        found = remove_closed(whole, keep, recipe.training.shrink_below)
        keep = keep if found is None else found
    if keep is None or (keep is session.kept and not resumed):
        return False
    session.kept = keep
    session.smaller = Smaller(whole, keep, recipe, session.optimizer)
    return True
