"""What being open costs: penalties on the gates, added to the data loss.

A penalty (``l0arm.contracts.Penalty``) is a callable ``(gated, gates) -> scalar tensor``.
"""

from l0arm.penalties.kl import GateKL
from l0arm.penalties.norms import L0, L1, L2
from l0arm.penalties.parameters import Parameters
from l0arm.penalties.prior import BetaPrior
from l0arm.penalties.strength import Strength

__all__ = ["L0", "L1", "L2", "BetaPrior", "GateKL", "Parameters", "Strength"]
