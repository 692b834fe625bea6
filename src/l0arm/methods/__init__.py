"""Methods of sparsification: one file per method. ``METHODS`` maps a name to its factory.

A factory returns a ``Method``: a combination of gates, an estimator, penalties and stages.
``Course`` runs the stages in any training loop.
"""

from __future__ import annotations

from collections.abc import Callable

from l0arm.contracts import Method, Stage
from l0arm.methods._bc_ghs import bc_ghs
from l0arm.methods._bc_gnj import bc_gnj
from l0arm.methods._generalized_dropout import generalized_dropout
from l0arm.methods._group_lasso import group_lasso
from l0arm.methods._l0 import l0, l0_ar, l0_arm, l0_disarm
from l0arm.methods._l0_best import l0_best
from l0arm.methods._l0_hc import l0_hc
from l0arm.methods._l1_filter import l1_filter
from l0arm.methods._magnitude import magnitude
from l0arm.methods._random_units import random_units
from l0arm.methods._sbp import sbp
from l0arm.methods._sparse_vd import sparse_vd
from l0arm.methods._vibnet import vibnet
from l0arm.methods.course import Course

METHODS: dict[str, Callable[..., Method]] = {
    "bc-ghs": bc_ghs,
    "bc-gnj": bc_gnj,
    "generalized-dropout": generalized_dropout,
    "group-lasso": group_lasso,
    "l0": l0,
    "l0-ar": l0_ar,
    "l0-arm": l0_arm,
    "l0-best": l0_best,
    "l0-disarm": l0_disarm,
    "l0-hc": l0_hc,
    "l1-filter": l1_filter,
    "magnitude": magnitude,
    "random": random_units,
    "sbp": sbp,
    "sparse-vd": sparse_vd,
    "vibnet": vibnet,
}

__all__ = [
    "METHODS",
    "Course",
    "Method",
    "Stage",
    "bc_ghs",
    "bc_gnj",
    "generalized_dropout",
    "group_lasso",
    "l0",
    "l0_ar",
    "l0_arm",
    "l0_best",
    "l0_disarm",
    "l0_hc",
    "l1_filter",
    "magnitude",
    "random_units",
    "sbp",
    "sparse_vd",
    "vibnet",
]
