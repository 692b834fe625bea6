"""What z is: gate functions and families of gates."""

from l0arm.gates.bernoulli import Bernoulli, BernoulliGates
from l0arm.gates.family import GateFamily, Gates
from l0arm.gates.functions import CustomGate, GateFunction, HardSigmoid, ScaledSigmoid
from l0arm.gates.threshold import valley

__all__ = [
    "Bernoulli",
    "BernoulliGates",
    "CustomGate",
    "GateFamily",
    "GateFunction",
    "Gates",
    "HardSigmoid",
    "ScaledSigmoid",
    "valley",
]
