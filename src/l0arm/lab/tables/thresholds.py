"""How prune rate and accuracy of a finished run depend on the threshold tau (Eq. 14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from l0arm._sparsify import sparsify
from l0arm.files import read_json
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import ModelSpec
from l0arm.lab.runs.building import network_for
from l0arm.lab.runs.folder import RunFolder
from l0arm.metrics import pruned_percentage

THRESHOLDS = tuple(n / 20 for n in range(2, 19))  # 0.1, 0.15, ..., 0.9
CLASSES = 10  # of MNIST and CIFAR-10; the check below refuses other networks


@dataclass(frozen=True)
class ThresholdCurve:
    """One run. Accuracies are those of ``l0arm sweep``; without it there are none."""

    network: str
    label: str
    epochs: int
    prune_rates: dict[float, float]  # percent by tau, as the paper counts
    accuracies: dict[float, float]  # percent by tau


def threshold_curve(path: Path) -> ThresholdCurve:
    """Read a finished run: g(phi) of its gates, and its sweep.json if there is one.

    Raises:
        UserError: The run is not finished, or its gates are not Bernoulli gates with tau = 1/2.
    """
    folder = RunFolder(path)
    recipe = folder.recipe()
    if not folder.finished:
        raise UserError(f"the run in {path} is not finished; resume it, or leave it out")
    result = folder.read_result()
    rates = prune_rates(recipe.model, result["gates"], THRESHOLDS)
    if not result["gates"] or abs(rates[0.5] - result["prune_rate"]) > 1e-6:
        raise UserError(
            f"the run in {path} was not pruned by g(phi) > 0.5: it has no tau to change"
        )
    network, _, method = (recipe.title or recipe.name).partition(", ")
    return ThresholdCurve(
        network=network,
        label=f"{method}, seed {recipe.training.seed}",
        epochs=result["epochs"],
        prune_rates=rates,
        accuracies=_swept(path / "sweep.json"),
    )


def prune_rates(
    spec: ModelSpec, gates: dict[str, list[float]], thresholds: Sequence[float]
) -> dict[float, float]:
    """The prune rate of a network with these g(phi) at every threshold, in percent."""
    image = {"lenet5": (1, 28, 28), "wide-resnet": (3, 32, 32)}.get(spec.name)
    image = image or (1, 1, len(next(iter(gates.values()), [0])))
    gated = sparsify(network_for(spec, image, CLASSES, "the run has"), method="l0-arm", lam=0.0)
    pi = torch.tensor([p for part in gates.values() for p in part], dtype=torch.float64)
    if len(pi) != len(gated.phi):
        return dict.fromkeys(thresholds, 0.0)
    return {tau: pruned_percentage(gated, (pi > tau).float()) for tau in thresholds}


def _swept(path: Path) -> dict[float, float]:
    """Accuracy by threshold. A point of a sweep may stand for several thresholds in a row."""
    if not path.exists():
        return {}
    try:
        points = [(p["threshold"], p["upto"], p["accuracy"]) for p in read_json(path)["points"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error!r}); run l0arm sweep again") from None
    ends = {tau: accuracy for first, last, accuracy in points for tau in (first, last)}
    return dict(sorted(ends.items()))
