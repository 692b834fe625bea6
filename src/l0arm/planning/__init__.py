"""Which units of a model can be gated, found on the model's captured graph."""

from l0arm.gating.attention import HeadAttention, exchange
from l0arm.planning._plan import Plan, PlannedGroup, Skipped
from l0arm.planning.capture import PlanError
from l0arm.planning.planner import plan
from l0arm.planning.rules import rule

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
