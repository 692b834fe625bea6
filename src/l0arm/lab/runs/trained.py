"""The network of a run, as its newest checkpoint left it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from l0arm.gating import Gated
from l0arm.lab.data import Dataset, Preprocess
from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.measuring import evaluate
from l0arm.lab.runs.preparation import prepared, preprocess_of
from l0arm.lab.runs.session import Session, new_session
from l0arm.metrics import architecture, prune_rate


@dataclass(frozen=True)
class Trained:
    """A run's network and the data it is measured on."""

    session: Session
    data: Dataset
    preprocess: Preprocess

    def gated(self) -> Gated:
        """The network with its gates."""
        if not isinstance(self.session.trainee, Gated):
            raise UserError("the run has no gates: there is nothing to compact")
        return self.session.trainee

    def compact(self) -> nn.Module:
        """The plain, small network."""
        return self.gated().compact().eval()

    def measured(self) -> dict[str, Any]:
        """Accuracy as it is and, with gates, compacted; and how far the two differ."""
        trainee = self.session.trainee
        test = (self.data.test_images, self.data.test_labels, self.preprocess)
        facts: dict[str, Any] = {
            "epoch": self.session.epoch,
            "test_accuracy": evaluate(trainee, *test)[1],
        }
        if isinstance(trainee, Gated):
            small = self.compact()
            facts |= {
                "architecture": architecture(trainee),
                "prune_rate": prune_rate(trainee),
                "prune_rate_realised": prune_rate(trainee, "realised"),
                "compact_accuracy": evaluate(small, *test)[1],
                "largest_difference": self.largest_difference(trainee, small),
            }
        return facts

    def largest_difference(self, gated: Gated, small: nn.Module) -> float:
        """Between the outputs of the gated and the compacted network on 1,000 test images."""
        x = self.preprocess(self.data.test_images[:1000])
        gated.eval()
        with torch.no_grad():
            return float((gated(x) - small(x)).abs().max())


def trained_network(folder: RunFolder, data: Dataset) -> Trained:
    """Load the newest sound checkpoint of a run."""
    data = prepared(data, folder.recipe().data)
    return Trained(restored(folder, data), data, preprocess_of(data))


def restored(folder: RunFolder, data: Dataset) -> Session:
    """A run as its newest sound checkpoint left it, on data as its recipe uses them."""
    session = new_session(folder.recipe(), data)
    state, damaged = newest_checkpoint(folder.checkpoints)
    if state is None:
        why = damaged[0] if damaged else "there is none"
        raise UserError(f"no checkpoint to load in {folder.path}: {why}")
    session.restore(state)
    return session
