"""Any model: what of it can be gated, found on its captured graph."""

from l0arm.gating.attention import HeadAttention, exchange
from l0arm.planning._plan import Plan, PlannedGroup, Skipped
from l0arm.planning.capture import PlanError
from l0arm.planning.planner import plan
from l0arm.planning.registry import rule

__all__ = [
    "HeadAttention",
    "Plan",
    "PlanError",
    "PlannedGroup",
    "Skipped",
    "exchange",
    "plan",
    "rule",
]
