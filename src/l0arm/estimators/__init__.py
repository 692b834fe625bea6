"""How phi gets a gradient: one file per estimator, all with the contract ``Estimator``.

``ESTIMATORS`` maps names to the estimators of binary draws. ``Pathwise`` is for gates with smooth
draws, ``Deterministic`` for gates that a method sets itself.
"""

from __future__ import annotations

from collections.abc import Callable

from l0arm.contracts import Estimator
from l0arm.estimators.ar import AR
from l0arm.estimators.arm import ARM
from l0arm.estimators.arms import ARMS
from l0arm.estimators.bitflip import Bitflip
from l0arm.estimators.concrete import Concrete
from l0arm.estimators.deterministic import Deterministic
from l0arm.estimators.disarm import DisARM
from l0arm.estimators.disarm_slopes import DisARMSlopes
from l0arm.estimators.double_cv import DoubleCV
from l0arm.estimators.exact import Exact
from l0arm.estimators.local_expectation import LocalExpectation
from l0arm.estimators.muprop import MuProp
from l0arm.estimators.pathwise import Pathwise
from l0arm.estimators.rebar import REBAR
from l0arm.estimators.reinforce import Reinforce
from l0arm.estimators.reinforce_loo import ReinforceLOO
from l0arm.estimators.reinmax import ReinMax
from l0arm.estimators.relax import RELAX
from l0arm.estimators.rodeo import RODEO
from l0arm.estimators.st_gumbel import STGumbel
from l0arm.estimators.straight_through import StraightThrough
from l0arm.estimators.ugc import UGC

ESTIMATORS: dict[str, Callable[..., Estimator]] = {
    "ar": AR,
    "arm": ARM,
    "arms": ARMS,
    "bitflip": Bitflip,
    "concrete": Concrete,
    "disarm": DisARM,
    "disarm-slopes": DisARMSlopes,
    "double-cv": DoubleCV,
    "exact": Exact,
    "local-expectation": LocalExpectation,
    "muprop": MuProp,
    "rebar": REBAR,
    "reinforce": Reinforce,
    "reinforce-loo": ReinforceLOO,
    "reinmax": ReinMax,
    "relax": RELAX,
    "rodeo": RODEO,
    "st-gumbel": STGumbel,
    "straight-through": StraightThrough,
    "ugc": UGC,
}

__all__ = [
    "AR",
    "ARM",
    "ARMS",
    "ESTIMATORS",
    "REBAR",
    "RELAX",
    "RODEO",
    "UGC",
    "Bitflip",
    "Concrete",
    "Deterministic",
    "DisARM",
    "DisARMSlopes",
    "DoubleCV",
    "Estimator",
    "Exact",
    "LocalExpectation",
    "MuProp",
    "Pathwise",
    "ReinMax",
    "Reinforce",
    "ReinforceLOO",
    "STGumbel",
    "StraightThrough",
]
