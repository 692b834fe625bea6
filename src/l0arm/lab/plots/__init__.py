"""The paper's figures, and figures of estimators and deployed networks.

Every function takes records and returns a matplotlib ``Figure``; `save` writes it to a file. The
HTML report about runs is in ``report`` (the page) and ``sections`` (what a run puts on it).
"""

from l0arm.lab.plots.canvas import save
from l0arm.lab.plots.deployment import cost_curve, deployed_forms
from l0arm.lab.plots.estimators import estimator_comparison
from l0arm.lab.plots.front import pareto_front
from l0arm.lab.plots.gates import gate_functions, gate_histograms, last_histograms
from l0arm.lab.plots.surviving import surviving_filters, surviving_inputs
from l0arm.lab.plots.thresholds import threshold_curves
from l0arm.lab.plots.training_curves import accuracy_by_epoch, flops_by_step, prune_rate_and_flops

__all__ = [
    "accuracy_by_epoch",
    "cost_curve",
    "deployed_forms",
    "estimator_comparison",
    "flops_by_step",
    "gate_functions",
    "gate_histograms",
    "last_histograms",
    "pareto_front",
    "prune_rate_and_flops",
    "save",
    "surviving_filters",
    "surviving_inputs",
    "threshold_curves",
]
