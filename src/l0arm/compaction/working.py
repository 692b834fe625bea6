"""A smaller network that trains in the place of a gated one, which keeps its full size.

``shrink`` returns a network that counts its units anew. Here the whole network stays what is
evaluated, saved and reported, and only the steps are those of the smaller one.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from l0arm.compaction._expand import grid_of
from l0arm.compaction._shrink import cut_to
from l0arm.compaction.optimizer import cut_state, is_shaped
from l0arm.gating import Gated
from l0arm.gating.draw import Draw
from l0arm.gating.layout import named_tensors
from l0arm.gating.norms import shrunk_weight
from l0arm.penalties import L0, BetaPrior

State = MutableMapping[Tensor, Any]  # an optimizer's, by parameter


class Working:
    """A smaller copy of a gated network, and the way back of what it learns.

    Args:
        whole: The network at its full size.
        keep: The gates that stay, as a mask. The others are closed in the smaller network.

    Attributes:
        gated: The smaller network. It needs an optimizer of its own, of the same kind.

    Example:
        >>> import l0arm
        >>> whole = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0)
        >>> working = Working(whole, torch.arange(11) % 2 == 0)
        >>> [group.units for group in working.gated.groups]
        [3, 3]
        >>> _ = working.gated.phi.data.fill_(2.0)
        >>> working.write_gates()
        >>> (whole.phi == 2.0).int().tolist()
        [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    """

    def __init__(self, whole: Gated, keep: Tensor) -> None:
        self.whole, self.keep = whole, keep.to(whole.phi.device)
        self._draw = Draw(whole.layout, self.keep.to(whole.phi.dtype), writes=False)
        self.gated, self._small = cut_to(whole, self._draw)
        self.gated.sizes = whole.sizes[self.keep]  # |g| of Eq. 17: the objective stays what it is

    def take(self, state: State, into: State) -> None:
        """Cut the optimizer state of the whole network for that of the smaller network."""
        for name, parameter, small in self.parameters():
            into[small] = {
                key: self._cut(name, value, parameter, key)
                for key, value in state.get(parameter, {}).items()
            }

    def write_back(self, state: State, into: State) -> None:
        """Copy weights, buffers, phi and the optimizer's state into the whole network.

        What belongs to removed units stays as it was when they were removed.
        """
        self.write_gates()
        self.whole.penalty_weight = self.gated.penalty_weight
        with torch.no_grad():
            for name, tensor in named_tensors(self.whole.model).items():
                spec, small = self.whole.layout.tensors.get(name), self._small[name]
                if spec is not None and spec.rms is not None:
                    small = shrunk_weight(small, spec.rms, len(tensor))
                tensor[self._places(name, tensor)] = small
            for name, parameter, small in self.parameters():
                values = state.get(small, {})
                if not values:
                    into.pop(parameter, None)
                for key, value in values.items():
                    place = into.setdefault(parameter, {})
                    if not is_shaped(value, small, key):
                        place[key] = value.clone() if isinstance(value, Tensor) else value
                        continue
                    if key not in place:
                        place[key] = torch.zeros_like(parameter, dtype=value.dtype)
                    place[key][self._places(name, parameter)] = value

    def write_gates(self) -> None:
        """Copy phi alone, which is all that expected costs depend on."""
        self.whole.phi.data[self.keep] = self.gated.phi.detach()

    def parameters(self) -> list[tuple[str, Tensor, Tensor]]:
        """Names, parameters of the whole network, and those of the smaller one. phi has no name."""
        named = self.whole.model.named_parameters()
        pairs: list[tuple[str, Tensor, Tensor]] = [(n, p, self._small[n]) for n, p in named]
        return [*pairs, ("", self.whole.phi, self.gated.phi)]

    def _cut(self, name: str, value: Any, parameter: Tensor, key: str) -> Any:
        if name:
            spec = self.whole.layout.tensors.get(name)
            cut = cut_state(value, parameter, spec, self._draw, key)
        else:
            cut = value[self.keep] if is_shaped(value, parameter, key) else value
        return cut.clone() if isinstance(cut, Tensor) else cut

    def _places(self, name: str, tensor: Tensor) -> Any:
        """The positions of a tensor that the smaller network has."""
        if not name:
            return self.keep
        spec = self.whole.layout.tensors.get(name)
        axes = {} if spec is None else spec.axes
        if not axes:
            return ...
        kept = [
            self._draw.kept(axes[dim]).index if dim in axes else None for dim in range(tensor.dim())
        ]
        return grid_of(kept, tensor.shape, tensor.device)


def replaceable(gated: Gated) -> bool:
    """Whether a smaller network can train in the place of this one.

    Its gates must be 0 or 1, so that a closed unit is gone. The penalties must be functions of the
    gates alone: L1 and L2 also count weights that a unit shares with removed ones. Not if the
    method has parts that know the network at its full size: extras, stages that change it,
    something to do after a step, an estimator with a memory, a budget.
    """
    method = gated.method
    if not all(isinstance(penalty, L0 | BetaPrior) for penalty in method.penalties):
        return False
    plain = method.after_step is None and all(stage.enter is None for stage in method.stages)
    own = gated.budget is not None or gated.extras or gated.estimator_state is not None
    cut = gated.execution == "sliced" and not gated.layout.branches
    return plain and cut and not own and gated.estimator.takes == "binary"
