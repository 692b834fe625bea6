"""What z is: gate functions g with pi = g(phi), and one file per family of gates."""

from l0arm.contracts import GateFamily, Gates
from l0arm.gates.bernoulli import Bernoulli, BernoulliGates
from l0arm.gates.fixed import Fixed, FixedGates
from l0arm.gates.functions import CustomGate, GateFunction, HardSigmoid, ScaledSigmoid
from l0arm.gates.gaussian import Gaussian, GaussianGates
from l0arm.gates.hard_concrete import HardConcrete, HardConcreteGates
from l0arm.gates.horseshoe import Horseshoe, HorseshoeGates
from l0arm.gates.threshold import valley
from l0arm.gates.truncated_log_normal import TruncatedLogNormal, TruncatedLogNormalGates

__all__ = [
    "Bernoulli",
    "BernoulliGates",
    "CustomGate",
    "Fixed",
    "FixedGates",
    "GateFamily",
    "GateFunction",
    "Gates",
    "Gaussian",
    "GaussianGates",
    "HardConcrete",
    "HardConcreteGates",
    "HardSigmoid",
    "Horseshoe",
    "HorseshoeGates",
    "ScaledSigmoid",
    "TruncatedLogNormal",
    "TruncatedLogNormalGates",
    "valley",
]
