"""Training without the units that are closed for good, while the whole network keeps its size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from l0arm.compaction._shrink import staying
from l0arm.compaction.working import State, Working, replaceable
from l0arm.gating import Gated

BELOW = 1e-3  # gates that are open with a smaller probability are removed,
WORTH = 0.1  # if they are at least this share of the gates that are still trained


def remove_closed(whole: Gated, kept: Tensor | None, below: float) -> Tensor | None:
    """Decide which gates are trained from now on. The others are closed for good.

    Gates that the threshold keeps open stay: what is evaluated and saved must have been trained.
    Units that lose their path to the output go too. Their phi becomes that of a closed gate, since
    no price closes them any more, and they would be counted as open.

    Args:
        whole: The network at its full size.
        kept: The gates that are still trained. None: all.
        below: Gates that are open with a smaller probability may go.

    Returns:
        A mask of the gates that stay. None: too few would go.
    """
    with torch.no_grad():
        probability = whole.gates.open_probability
        found = staying(whole, below, also=whole.deterministic() > 0)
        trained = whole.layout.gates if kept is None else int(kept.sum())
        if int(found.sum()) > (1 - WORTH) * trained:
            return None
        closed = ~found & (probability < below)
        cut_off = ~found & ~closed
        if bool(closed.any()):
            whole.phi[cut_off] = whole.phi[probability.masked_fill(~closed, -1.0).argmax()]
    return found


class Shrinking:
    """Lets an optimizer train a smaller network in the place of a gated one.

    ``begin`` removes the gates that are open with a probability below a bound, and closed by the
    threshold, if they are at least the share ``WORTH`` of those that are still trained. The
    optimizer object stays the same, and holds the parameters of the smaller network. The whole
    network keeps its size and gets back what was learned: when ``write_back`` is called, before it
    runs, and before its state dict or that of the optimizer is made. Both state dicts have their
    full size. A removed gate stays closed. Networks that ``replaceable`` refuses are left as they
    are.

    Args:
        whole: The network at its full size.
        optimizer: Holds parameters of the network. It has its full size too.
        below: The bound.

    Attributes:
        gated: The network that takes the steps: ``whole``, or a smaller one.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0, initial=0.9)
        >>> optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
        >>> shrinking = Shrinking(gated, optimizer)
        >>> gated.phi.data[6:8] = -9.0
        >>> small = shrinking.begin()
        >>> [group.units for group in small.groups]
        [6, 3]
        >>> small.loss(lambda: small(torch.rand(4, 6)).square().sum()).backward()
        >>> optimizer.step()
        >>> (gated.phi == shrinking.write_back().phi).all().item(), len(gated.phi)
        (True, 11)
    """

    def __init__(
        self, whole: Gated, optimizer: torch.optim.Optimizer, *, below: float = BELOW
    ) -> None:
        self.whole, self.optimizer, self.below = whole, optimizer, below
        self.kept: Tensor | None = None  # the gates that are still trained
        self._working: Working | None = None
        self._state: State = {}  # of the optimizer, for the parameters of the whole network
        self._current = True  # whether the whole network has what was learned
        self._replaced = False  # whether a smaller network ever took the steps
        whole.before_reading = _Hook(lambda: self.write_back())
        before_saving = _Hook(lambda *_: self.write_back())
        after_loading = _Hook(self._after_loading)
        self._handles = [
            whole.register_forward_pre_hook(_Hook(self._before_forward)),
            whole.register_state_dict_pre_hook(before_saving),  # type: ignore[no-untyped-call]
            whole.register_load_state_dict_post_hook(after_loading),  # type: ignore[no-untyped-call]
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_pre_hook(self._before_saving_optimizer),
            optimizer.register_state_dict_post_hook(self._after_saving_optimizer),
            optimizer.register_load_state_dict_pre_hook(self._after_loading),
        ]

    @property
    def gated(self) -> Gated:
        """The network that takes the steps."""
        return self.whole if self._working is None else self._working.gated

    def begin(self, *, decide: bool = True) -> Gated:
        """Go on with a smaller network, if it is worth it. Call it at the start of an epoch.

        Args:
            decide: False: keep the gates of before, as after a checkpoint within an epoch.

        Returns:
            The network that takes the steps from now on.
        """
        if not replaceable(self.whole):
            return self.whole
        self.write_back()
        kept = remove_closed(self.whole, self.kept, self.below) if decide else None
        if kept is None and (self.kept is None or self._working is not None):
            return self.gated
        self._train_whole()
        self.kept = self.kept if kept is None else kept
        assert self.kept is not None
        working, state = Working(self.whole, self.kept), dict[Tensor, Any]()
        working.take(self.optimizer.state, state)
        self._state, self._working = self._exchange(working, state), working
        self._replaced = True
        return self.gated

    def write_back(self) -> Gated:
        """Copy what the smaller network learned into the whole one, and return that."""
        if self._working is not None and not self._current:
            self._working.write_back(self.optimizer.state, self._state)
            self._current = True
        return self.whole

    def end(self) -> Gated:
        """Train the whole network from now on, and remove all hooks."""
        self.write_back()
        self._train_whole()
        for handle in self._handles:
            handle.remove()
        self.whole.before_reading = None
        return self.whole

    def _exchange(self, working: Working, state: State, *, back: bool = False) -> State:
        """Let the optimizer hold the smaller network with this state, or the whole one again.

        Returns:
            The state that it had for the parameters it held.
        """
        pairs = [(p, small) for _, p, small in working.parameters()]
        new = {id(p): small for p, small in pairs} | {id(small): small for _, small in pairs}
        if back:
            new = {id(small): p for p, small in pairs} | {id(p): p for p, _ in pairs}
        held = self.optimizer.state
        before = {p: held.pop(p) for p in [p for p in held if id(p) in new]}
        held.update({p: values for p, values in state.items() if values})
        for group in self.optimizer.param_groups:
            group["params"] = [new.get(id(p), p) for p in group["params"]]
        return before

    def _train_whole(self) -> None:
        """Give the optimizer the whole network again."""
        if self._working is not None:
            self._exchange(self._working, self._state, back=True)
            self.whole.penalty_weight = self._working.gated.penalty_weight
        self._working, self._state, self._current = None, {}, True

    def _before_step(self, _: object, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        closure = any(value is not None for value in (*args[1:], *options.values()))
        if self._replaced and not closure and self.gated.phi.grad is None:
            raise RuntimeError(
                "phi of the network that the optimizer trains now has no gradient; compute the "
                "loss of each step from the network that takes the steps, which changes when an "
                "epoch begins and when a state is loaded: "
                "course.gated.loss(lambda: criterion(course.gated(x), y))"
            )

    def _after_step(self, *_: Any) -> None:
        self._current = self._working is None

    def _before_forward(self, *_: Any) -> None:
        if self._working is not None and self.whole.training:
            raise RuntimeError(
                "a smaller network is trained in the place of this one; call course.gated in "
                "training, and this one in eval mode"
            )
        self.write_back()

    def _after_loading(self, *_: Any) -> None:
        """Something else is in the whole network, or in its optimizer: cut it anew."""
        self._train_whole()

    def _before_saving_optimizer(self, *_: Any) -> None:
        self.write_back()
        if self._working is not None:
            self._state = self._exchange(self._working, self._state, back=True)

    def _after_saving_optimizer(self, *_: Any) -> None:
        if self._working is not None:
            self._state = self._exchange(self._working, self._state)


class _Hook:
    """A hook of the whole network. In copies and pickles of the network it does nothing."""

    def __init__(self, call: Callable[..., object] | None = None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        if self._call is not None:
            self._call(*args)

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()
