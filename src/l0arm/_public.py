"""The public names of ``l0arm``. The package imports this module when the first one is used."""

from l0arm import (
    contracts,
    costs,
    distributed,
    estimators,
    gates,
    methods,
    metrics,
    models,
    penalties,
)
from l0arm._search import SearchResult, search
from l0arm._sparsify import sparsify
from l0arm.compaction import (
    Certificate,
    CertificateError,
    SavedError,
    certificate,
    compact,
    expand,
    load,
    save,
    shrink,
)
from l0arm.contracts import Method, Stage
from l0arm.costs import BudgetWarning, expected_flops, fit_threshold
from l0arm.estimators import ESTIMATORS
from l0arm.gates import HardSigmoid, ScaledSigmoid
from l0arm.gating import (
    Borrow,
    Branch,
    ConstantObjective,
    EmptyGroupWarning,
    Gated,
    Group,
    Loss,
    NonFiniteLoss,
    Norm,
    NotSynchronised,
    Patch,
    Pick,
    Resize,
    Route,
    Slice,
)
from l0arm.methods import METHODS, Course
from l0arm.metrics import architecture, expected_l0, prune_rate
from l0arm.planning import Plan, PlanError, plan
from l0arm.pruning import PruneResult, prune

__all__ = [
    "ESTIMATORS",
    "METHODS",
    "Borrow",
    "Branch",
    "BudgetWarning",
    "Certificate",
    "CertificateError",
    "ConstantObjective",
    "Course",
    "EmptyGroupWarning",
    "Gated",
    "Group",
    "HardSigmoid",
    "Loss",
    "Method",
    "NonFiniteLoss",
    "Norm",
    "NotSynchronised",
    "Patch",
    "Pick",
    "Plan",
    "PlanError",
    "PruneResult",
    "Resize",
    "Route",
    "SavedError",
    "ScaledSigmoid",
    "SearchResult",
    "Slice",
    "Stage",
    "architecture",
    "certificate",
    "compact",
    "contracts",
    "costs",
    "distributed",
    "estimators",
    "expand",
    "expected_flops",
    "expected_l0",
    "fit_threshold",
    "gates",
    "load",
    "methods",
    "metrics",
    "models",
    "penalties",
    "plan",
    "prune",
    "prune_rate",
    "save",
    "search",
    "shrink",
    "sparsify",
]
