"""Make a trained network smaller: rank its units, learn which to keep, cut, fine-tune.

``prune`` is the whole way. ``Pruning`` has its stages for training loops of one's own. Their parts
are public too: ``SCORES`` and ``start_from`` (rank), ``Rounds`` or ``Budget.schedule`` and
``follow_target`` (learn), ``decide`` and ``l0arm.compact`` (cut), ``Taught`` (tune).
"""

from l0arm.costs.tracking import follow_target
from l0arm.pruning._prune import prune
from l0arm.pruning.deciding import decide
from l0arm.pruning.result import Costs, PruneResult
from l0arm.pruning.rounds import Rounds
from l0arm.pruning.scores import SCORES, Score, start_from
from l0arm.pruning.stages import Choice, Pruning
from l0arm.pruning.teaching import Taught

__all__ = [
    "SCORES",
    "Choice",
    "Costs",
    "PruneResult",
    "Pruning",
    "Rounds",
    "Score",
    "Taught",
    "decide",
    "follow_target",
    "prune",
    "start_from",
]
