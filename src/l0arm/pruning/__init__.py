"""Make a trained network smaller: rank its units, learn which to keep, cut, fine-tune.

``prune`` is the whole way. Its parts are public, for training loops of one's own: ``start_from``
and ``SCORES`` (rank), ``Budget.schedule`` (learn), ``decide`` and ``l0arm.compact`` (cut).
"""

from l0arm.pruning._prune import prune
from l0arm.pruning.deciding import decide
from l0arm.pruning.result import Costs, PruneResult
from l0arm.pruning.scores import SCORES, Score, start_from

__all__ = ["SCORES", "Costs", "PruneResult", "Score", "decide", "prune", "start_from"]
