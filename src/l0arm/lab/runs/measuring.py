"""What is measured of a network: its accuracy, the record of an epoch, the result of a run."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.costs import FlopsMeter
from l0arm.gating import Gated
from l0arm.lab.data import Dataset, Preprocess
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs.building import Trainee
from l0arm.lab.runs.records import EpochRecord, GroupRecord
from l0arm.lab.runs.session import Session
from l0arm.metrics import architecture, prune_rate

BINS = 20
UNDECIDED = (0.05, 0.95)


def evaluate(
    network: Trainee | nn.Module, images: Tensor, labels: Tensor, preprocess: Preprocess
) -> tuple[float, float]:
    """Mean loss and accuracy in percent over all images, in eval mode (z-bar, Eq. 14)."""
    training = network.training
    network.train(False)
    loss, right = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(images), 1000):
            y = labels[start : start + 1000]
            logits = network(preprocess(images[start : start + 1000]))
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
            right += int((logits.argmax(1) == y).sum())
    network.train(training)
    return loss / len(images), 100.0 * right / len(images)


def epoch_record(
    session: Session,
    data: Dataset,
    preprocess: Preprocess,
    meter: FlopsMeter | None,
    lr: float,
) -> EpochRecord:
    """The record of the epoch that has just ended."""
    tally = session.tally
    test_loss, test_accuracy = evaluate(
        session.trainee, data.test_images, data.test_labels, preprocess
    )
    return EpochRecord(
        epoch=session.epoch,
        steps=session.steps,
        lr=lr,
        train_loss=tally.loss / tally.images,
        penalty=tally.penalty / tally.images,
        train_accuracy=100.0 * tally.right / tally.images,
        test_loss=test_loss,
        test_accuracy=test_accuracy,
        seconds=round(tally.seconds, 3),
        by_step=tuple((int(s), training, inference) for s, training, inference in tally.by_step),
        **({} if meter is None else _of_gates(session.trainee, meter)),
    )


def _of_gates(gated: Any, meter: FlopsMeter) -> dict[str, Any]:
    """The fields of a record that only a network with gates has."""
    flops = meter()
    pi = gated.gates.open_probability.detach()
    low, high = UNDECIDED
    return {
        "prune_rate": prune_rate(gated),
        "prune_rate_realised": prune_rate(gated, "realised"),
        "architecture": architecture(gated),
        "flops_dense": flops.dense,
        "flops_inference": flops.inference,
        "flops_training": flops.training,
        "undecided": float(((pi > low) & (pi < high)).float().mean()),
        "groups": _groups(gated, pi),
    }


def _groups(gated: Gated, pi: Tensor) -> tuple[GroupRecord, ...]:
    is_open = gated.per_group(gated.deterministic() != 0)
    return tuple(
        GroupRecord(
            name=name,
            units=len(part),
            open=int(is_open[name].sum()),
            histogram=tuple(int(n) for n in torch.histc(part, BINS, 0.0, 1.0)),
        )
        for name, part in gated.per_group(pi).items()
    )


def result_of(recipe: Recipe, epochs: list[EpochRecord], trainee: Trainee) -> dict[str, Any]:
    """The result of a run: the figures of the last epoch, never of the best one."""
    last = epochs[-1]
    return {
        "recipe": recipe.name,
        "seed": recipe.training.seed,
        "epochs": last.epoch,
        "test_accuracy": last.test_accuracy,
        "prune_rate": last.prune_rate,
        "prune_rate_realised": last.prune_rate_realised,
        "architecture": last.architecture or "full model",
        "undecided": last.undecided,
        "flops_dense": last.flops_dense,
        "flops_inference": last.flops_inference,
        "seconds_per_epoch": median(e.seconds for e in epochs),
        "gates": _final_gates(trainee),
    }


def _final_gates(trainee: Trainee) -> dict[str, list[float]]:
    """g(phi) of every gate by group, rounded to four decimals. Empty for a dense network."""
    if not isinstance(trainee, Gated):
        return {}
    pi = trainee.gates.open_probability.detach()
    return {
        name: [round(p, 4) for p in part.tolist()] for name, part in trainee.per_group(pi).items()
    }
