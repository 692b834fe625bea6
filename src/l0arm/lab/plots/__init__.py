"""The paper's figures and one page about a run, from plain values."""

from l0arm.lab.plots.accuracy import accuracy_by_epoch
from l0arm.lab.plots.cost_curve import cost_curve
from l0arm.lab.plots.deployed_forms import deployed_forms
from l0arm.lab.plots.estimator_comparison import estimator_comparison
from l0arm.lab.plots.flops_by_step import flops_by_step
from l0arm.lab.plots.gate_functions import gate_functions
from l0arm.lab.plots.gate_histograms import gate_histograms
from l0arm.lab.plots.last_histograms import last_histograms
from l0arm.lab.plots.pruning import prune_rate_and_flops
from l0arm.lab.plots.saving import save
from l0arm.lab.plots.surviving import surviving_filters, surviving_inputs

__all__ = [
    "accuracy_by_epoch",
    "cost_curve",
    "deployed_forms",
    "estimator_comparison",
    "flops_by_step",
    "gate_functions",
    "gate_histograms",
    "last_histograms",
    "prune_rate_and_flops",
    "save",
    "surviving_filters",
    "surviving_inputs",
]
