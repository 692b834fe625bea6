"""``Gated``: a user's model, its groups, and phi."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from l0arm.gates.family import GateFamily, Gates
from l0arm.gates.precision import Precise
from l0arm.gates.threshold import DEFAULT_TAU
from l0arm.gating.draw import Draw
from l0arm.gating.engine import Engine
from l0arm.gating.group import Group
from l0arm.gating.layout import resolve
from l0arm.gating.mask import Threshold, checked_multiple, checked_threshold, deterministic_mask
from l0arm.gating.objective import NonFiniteLoss, Objective
from l0arm.gating.synchrony import check_synchronised
from l0arm.gating.undoing import undone_if_refused
from l0arm.gating.validation import check_gates

if TYPE_CHECKING:
    from l0arm.equality.example import Example

Execution = Literal["sliced", "masked"]


class EmptyGroupWarning(UserWarning):
    """A draw closed every unit of a group; a stand-in unit with zero weight keeps the shapes."""


class Loss(NamedTuple):
    """What to minimise: ``total.backward()`` trains theta and phi."""

    total: Tensor
    data: Tensor
    penalty: Tensor

    def backward(self) -> None:
        """The same as ``total.backward()``."""
        self.total.backward()  # type: ignore[no-untyped-call]


class GatingMethod(Protocol):
    """The triple that makes a sparsification method.

    It may also have ``extras(gated)``: modules of its own by name, trained and saved with phi. One
    that has ``acting(gated)`` is entered, as a context, around every call of the model. And
    ``check(gated)``, which raises if the method does not fit the model.
    """

    @property
    def gate(self) -> GateFamily: ...

    @property
    def estimator(self) -> Callable[..., Tensor]: ...

    @property
    def penalties(self) -> Sequence[Callable[[Gated, Gates], Tensor]]: ...


def _none(gated: Gated) -> dict[str, nn.Module]:
    """The extras of a method that has none."""
    return {}


def _fits(gated: Gated) -> None:
    """The check of a method that has none."""


class Gated(Precise):
    """A model whose units are gated by ``z ~ Ber(g(phi))``.

    Calling it takes a fresh draw in training mode and z-bar (Eq. 14) in eval mode. ``loss`` gives
    the objective of Eq. 8. The model inside keeps its own parameters at full size; ``gated.model``
    called on its own is the dense network.
    """

    phi: nn.Parameter
    group_of: Tensor  # flat gate -> number of its group
    sizes: Tensor  # |g|: how many weights each gate answers for (Eq. 17)
    penalty_weight: float = 1.0  # of all penalties together: a warm-up lowers it
    averaged_elsewhere: bool = False  # several processes: you average the gradients, not DDP
    outputs: tuple[str, ...] = ()  # those that count, by key or number; all if empty

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[Group],
        method: GatingMethod,
        *,
        execution: Execution = "sliced",
        threshold: Threshold = DEFAULT_TAU,
        sharing: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.layout = resolve(model, groups)
        self.method = method
        self.estimator = copy.deepcopy(method.estimator)  # what it remembers is this model's own
        self.estimator_state: nn.Module | None = getattr(self.estimator, "state", None)
        self.execution = execution
        self.threshold = threshold
        self.sharing = sharing  # compute once what both evaluations of a step have in common
        self.model = model
        self._lay_out_gates(next(model.parameters()).device, generator)
        self.width_multiple = 1
        self.example: Example | None = None  # inputs on which compaction shows what it did
        self.budget: nn.Module | None = None  # a limit on the expected cost, instead of lambda
        self._warned: set[str] = set()
        with undone_if_refused(model):
            self.engine = Engine(model, self.layout)
            self.extras = nn.ModuleDict(getattr(method, "extras", _none)(self))
            with torch.no_grad():
                self.penalty()  # a strength that does not fit the groups is told now
            getattr(method, "check", _fits)(self)

    def _lay_out_gates(self, device: torch.device, generator: torch.Generator | None) -> None:
        """phi at its start, what belongs to each gate, and whether the estimator can train it."""
        mean = torch.cat([torch.full((g.units,), g.initial) for g in self.groups])
        self.phi = nn.Parameter(self.method.gate.initial(mean, generator).to(device))
        self.register_buffer("group_of", self.layout.group_of.to(device), persistent=False)
        self.register_buffer("sizes", self.layout.sizes.to(device), persistent=False)
        with torch.enable_grad():  # whether phi can be trained is seen in the graph
            gates = self.gates
        check_gates(self.estimator, gates, [self.groups[n].name for n in self.layout.twice])

    @property
    def execution(self) -> Execution:
        """``sliced``: closed slices are dropped. ``masked``: zeroed where they are read."""
        return self._execution

    @execution.setter
    def execution(self, execution: Execution) -> None:
        if execution not in ("sliced", "masked"):
            raise ValueError(f"execution must be 'sliced' or 'masked'; got {execution!r}")
        self._execution: Execution = execution

    @property
    def threshold(self) -> Threshold:
        """tau of Eq. 14, or 'valley': that of each group's histogram."""
        return self._threshold

    @threshold.setter
    def threshold(self, tau: Threshold) -> None:
        self._threshold = checked_threshold(tau)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups, in the order of their gates in phi."""
        return self.layout.groups

    @property
    def gates(self) -> Gates:
        """All gates at the present phi, with their graph."""
        within = getattr(self.method.gate, "within", None)  # gates that share what a group has
        family = self.method.gate if within is None else within(self.group_of)
        return family(self.phi)

    def per_group(self, gates: Tensor) -> dict[str, Tensor]:
        """A flat vector over all gates, split by group."""
        return {g.name: gates[self.layout.span(n)] for n, g in enumerate(self.groups)}

    def deterministic(self, width_multiple: int | None = None) -> Tensor:
        """z-bar of all gates (Eq. 14), with the threshold of each group."""
        multiple = self.width_multiple if width_multiple is None else width_multiple
        checked_multiple(multiple)
        with torch.no_grad():
            return deterministic_mask(self.layout, self.gates, self.threshold, multiple)

    @property
    def width_multiple(self) -> int:
        """z-bar leaves widths (units times the positions of one) that are multiples of this, where
        some kernels are faster; 1 leaves it alone."""
        return self._width_multiple

    @width_multiple.setter
    def width_multiple(self, multiple: int) -> None:
        self._width_multiple = checked_multiple(multiple)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model under the draw in force, else under a fresh one (training) or z-bar (eval).

        A draw is a constant to autograd: ``gated(x)`` outside of ``loss`` trains the weights only,
        and leaves ``phi.grad`` as it was.
        """
        if self.engine.draw_now() is not None:
            return self._call(*args, **kwargs)
        z = self.gates.sample() if self.training else self.deterministic()
        with self.drawn(z):
            return self._call(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with ExitStack() as stack:
                for extra in self.extras.values():
                    acting: Any = getattr(extra, "acting", None)
                    if acting is not None:
                        stack.enter_context(acting(self))
                output = self.model(*args, **kwargs)
        except RuntimeError as error:
            error.add_note(self._state_of_gates())
            raise
        self.engine.warn_of_uncalled()
        return output

    def _state_of_gates(self) -> str:
        draw = self.engine.draw_now()
        counts = [] if draw is None else zip(self.groups, draw.counts, strict=True)
        widths = ", ".join(f"'{group.name}' {n} of {group.units} units" for group, n in counts)
        return (
            f"l0arm: in this pass the model kept of {widths}. If a size does not fit, a group may "
            "lack a tensor in makes (bias, BatchNorm's weight, bias, running_mean, running_var), a "
            "reader in reads, or a Patch for an attribute that counts units; gated.check(x) tells"
        )

    def check(self, *args: Any, **kwargs: Any) -> float:
        """Raise unless dropping closed units equals zeroing them on this input, group by group."""
        from l0arm.equality.check import check

        return check(self, *args, **kwargs)

    def release(self) -> nn.Module:
        """Take the hooks off and give the plain model back, dense, with all its weights.

        This Gated then refuses to run, to train and to compact: compact first if you want both.
        """
        self.engine.detach()
        return self.model

    def loss(self, closure: Callable[[], Tensor], generator: torch.Generator | None = None) -> Loss:
        """The objective of Eq. 8: ``closure`` computes the data loss from ``self(x)``.

        The estimator calls the closure as often as it needs to (draw the batch outside it). All
        evaluations see the same state of the random number generators, and only the first with a
        graph writes buffers. A loss that is not finite raises, with everything as it was.
        """
        check_synchronised(self)
        gates = self.gates
        penalty = self.penalty(gates)
        if not math.isfinite(penalty.item()):
            raise NonFiniteLoss("penalty", penalty.item())
        data = self.estimator(Objective(self, closure, gates), gates, generator)
        if self.budget is not None and self.training:
            self.budget.ascend(gates.open_probability.detach())  # type: ignore[operator]
        return Loss(data + penalty, data, penalty)

    def penalty(self, gates: Gates | None = None) -> Tensor:
        """The sum of the method's penalties (at the present phi), times ``penalty_weight``."""
        gates = self.gates if gates is None else gates
        penalties = [penalty(self, gates) for penalty in self.method.penalties]
        if self.budget is not None:
            penalties.append(self.budget(gates.open_probability))
        total = sum(penalties[1:], penalties[0]) if penalties else self.phi.new_zeros(())
        return total if self.penalty_weight == 1.0 else self.penalty_weight * total

    @contextmanager
    def drawn(self, z: Tensor, *, writes: bool = True, like: Draw | None = None) -> Iterator[Draw]:
        """Calls of ``self`` inside use the gates z; ``writes=False`` leaves all buffers alone.

        If the estimator asks for the derivative in closed gates too, nothing is dropped.
        """
        self.engine.check_attached()
        drops = getattr(self.estimator, "drops", True) or not z.requires_grad
        sliced = self.execution == "sliced" and drops
        draw = Draw(self.layout, z, sliced=sliced, writes=writes, like=like)
        self.warn_of_empty(draw)
        with self.engine.evaluating(draw):
            yield draw

    def parameter_groups(
        self, lr: float = 1e-3, gate_lr: float | None = None, **weights: Any
    ) -> list[dict[str, Any]]:
        """For an optimizer: the weights; then phi and the method's extras, without weight decay."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        gate_lr = lr if gate_lr is None else gate_lr
        return [
            {"params": parameters, "lr": lr, **weights},
            {"params": [self.phi, *self.extras.parameters()], "lr": gate_lr, "weight_decay": 0.0},
        ]

    def compact(
        self,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        round_to: int | None = None,
        example_inputs: Sequence[Any] | Any = None,
        example_kwargs: Mapping[str, Any] | None = None,
        certify: bool = True,
    ) -> nn.Module:
        """A plain, smaller copy of the model with z-bar made permanent; ``self`` is untouched."""
        from l0arm.compaction import compact  # a layer above: the verb, offered as a method

        return compact(
            self,
            optimizer=optimizer,
            round_to=round_to,
            example_inputs=example_inputs,
            example_kwargs=example_kwargs,
            certify=certify,
        )

    def warn_of_empty(self, draw: Draw) -> None:
        """Say, once for each group, that a draw closed it whole."""
        for name in (self.groups[number].name for number in draw.empty):
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(
                    f"every unit of group '{name}' is closed in this draw; a stand-in unit with "
                    "zero weight keeps the layer running (exact). If it stays so, lower lam or "
                    "start the group at a higher keep probability",
                    EmptyGroupWarning,
                    stacklevel=4,
                )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """phi is saved by group, so that it can only be loaded into groups of the same names."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, part in self.per_group(destination.pop(f"{prefix}phi")).items():
            destination[f"{prefix}phi.{name}"] = part.clone() if not keep_vars else part

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        names = [f"{prefix}phi.{group.name}" for group in self.groups]
        if all(name in state_dict for name in names):
            state_dict[f"{prefix}phi"] = torch.cat([state_dict.pop(name) for name in names])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"groups={[f'{g.name}({g.units})' for g in self.groups]}, execution={self.execution}"
