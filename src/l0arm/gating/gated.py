"""``Gated``: a user's model, its groups, and phi."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from l0arm.contracts import Extra, Gates, Method
from l0arm.gating.constancy import Constancy
from l0arm.gating.draw import Draw
from l0arm.gating.engine import Engine
from l0arm.gating.evaluation import Evaluation
from l0arm.gating.exclusive import Exclusive
from l0arm.gating.group import Group
from l0arm.gating.layout import resolve
from l0arm.gating.mask import Threshold, checked_multiple, deterministic_mask
from l0arm.gating.norms import exchange_norms
from l0arm.gating.randomness import Noise
from l0arm.gating.settings import Execution, Setting, Settings
from l0arm.gating.sharing import Agreement
from l0arm.gating.step import Closure, Loss, Objective, check_phi, depends
from l0arm.gating.synchrony import check_synchronised
from l0arm.gating.undoing import undone_if_refused
from l0arm.gating.validation import check_gates

if TYPE_CHECKING:
    from l0arm.costs.budget import Constraint
    from l0arm.costs.status import Status
    from l0arm.equality.example import Example

ExtraType = TypeVar("ExtraType", bound=Extra)


class EmptyGroupWarning(UserWarning):
    """A draw closed every unit of a group; a stand-in unit with zero weight keeps the shapes."""


class Gated(Exclusive):
    """A model whose units are gated by ``z ~ Ber(g(phi))``.

    Calling it takes a fresh draw in training mode and z-bar (Eq. 14) in eval mode. ``loss`` gives
    the objective of Eq. 8. The model inside keeps its own parameters at full size; ``gated.model``
    called on its own is the dense network. ``sparsify`` makes a ``Gated`` from any model.

    Args:
        model: The network. It is used, not copied, and gets forward hooks.
        groups: Where the gates sit.
        method: Gates, estimator and penalties.
        settings: Everything that can also be set later, such as ``threshold``.
        generator: The source of the random numbers of phi's start. None: the global one.
    """

    phi: nn.Parameter
    group_of: Tensor  # flat gate -> number of its group
    sizes: Tensor  # |g|: how many weights each gate answers for (Eq. 17)

    threshold: Setting[Threshold] = Setting()
    width_multiple: Setting[int] = Setting()
    penalty_weight: Setting[float] = Setting()
    outputs: Setting[tuple[str, ...]] = Setting()
    execution: Setting[Execution] = Setting()
    sharing: Setting[bool | None] = Setting()
    averaged_elsewhere: Setting[bool] = Setting()
    example: Setting[Example | None] = Setting()

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[Group],
        method: Method,
        *,
        settings: Settings | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.layout = resolve(model, groups)
        self.method = method
        self.estimator = copy.deepcopy(method.estimator)  # its state belongs to this model
        self.estimator_state = self.estimator.state
        self.model = model
        self.before_reading: Callable[[], object] | None = None  # brings phi and weights up to date
        self.budget: Constraint | None = None  # a limit on the expected cost, instead of lambda
        self._budgeted: tuple[int, Tensor] | None = None  # phi at the budget's last update
        self.noise = Noise()
        self.agreement = Agreement(self.layout)
        self.constancy = Constancy()  # of losses without a backward pass
        self._constants: dict[int, tuple[object, Tensor, Tensor]] = {}
        self._warned: set[str] = set()
        device = next(model.parameters()).device
        mean = torch.cat([torch.full((g.units,), g.initial) for g in self.groups])
        self.phi = nn.Parameter(method.gate.initial(mean, generator).to(device))
        self.register_buffer("group_of", self.layout.group_of.to(device), persistent=False)
        self.register_buffer("sizes", self.layout.sizes.to(device), persistent=False)
        with torch.enable_grad():  # the graph shows whether phi can be trained
            gates = self.gates
        check_gates(self.estimator, gates, [self.groups[n] for n in self.layout.twice])
        with undone_if_refused(model):
            exchange_norms(model, self.groups)
            self.engine = Engine(model, self.layout)
            self.extras = nn.ModuleDict({} if method.extras is None else method.extras(self))
            self._has_extras = len(self.extras) > 0
            with torch.enable_grad():
                penalty = self.penalty()  # refuse now a strength that does not fit the groups
            self._priced = depends(penalty, self.phi)  # a NaN in phi is then one in the penalty
            if method.check is not None:
                method.check(self)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups, in the order of their gates in phi."""
        return self.layout.groups

    @property
    def gates(self) -> Gates:
        """All gates at the present phi, with their graph."""
        if self.before_reading is not None:
            self.before_reading()
        # Straight from the dictionaries of the module: a step asks often, and `self.phi` is slow.
        family = self.method.gate.within(cast(Tensor, self._buffers["group_of"]))
        return family(cast(Tensor, self._parameters["phi"]))

    def extra(self, kind: type[ExtraType]) -> ExtraType:
        """The method's extra of a class.

        Raises:
            LookupError: If the method has none.
        """
        for extra in self.extras.values():
            if isinstance(extra, kind):
                return extra
        raise LookupError(
            f"method '{self.method.name}' has no {kind.__name__} among its extras; a part of it "
            "needs one: give Method(extras=...) a function that makes it"
        )

    def constant(self, owner: object, make: Callable[[], Tensor]) -> Tensor:
        """``make()``, computed once for an owner, and again after the network was moved or cast."""
        known, sizes = self._constants.get(id(owner)), cast(Tensor, self._buffers["sizes"])
        if known is None or known[0] is not owner or known[1] is not sizes:
            known = self._constants[id(owner)] = owner, sizes, make()
        return known[2]

    def per_group(self, gates: Tensor) -> dict[str, Tensor]:
        """A flat vector over all gates, split by group."""
        return {g.name: gates[self.layout.span(n)] for n, g in enumerate(self.groups)}

    def deterministic(self, width_multiple: int | None = None) -> Tensor:
        """z-bar of all gates (Eq. 14), with the threshold of each group.

        Raises:
            NonFiniteLoss: phi is NaN. The message names the group.
        """
        multiple = self.width_multiple if width_multiple is None else width_multiple
        checked_multiple(multiple)
        with torch.no_grad():
            gates = self.gates
            check_phi(self.layout, gates)
            return deterministic_mask(self.layout, gates, self.threshold, multiple)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model under the draw in force, else under a fresh one (training) or z-bar (eval).

        A draw is a constant to autograd: ``gated(x)`` outside of ``loss`` trains the weights only,
        and leaves ``phi.grad`` as it was. If another thread uses the model, this one waits.
        """
        draw = self.engine.draw_now()
        if draw is not None:
            return self._call(draw, *args, **kwargs)
        return self.engine.alone(lambda: self._draw_and_call(*args, **kwargs))

    def _draw_and_call(self, *args: Any, **kwargs: Any) -> Any:
        self.check_mode(trains=False)
        if self.training:
            check_phi(self.layout, self.gates)
        with self.drawn(self.gates.sample() if self.training else self.deterministic()) as draw:
            return self._call(draw, *args, **kwargs)

    def _call(self, draw: Draw, /, *args: Any, **kwargs: Any) -> Any:
        engine = self.engine
        try:
            engine.hush(draw)
            if not self._has_extras:
                output = cast(nn.Module, self._modules["model"])(*args, **kwargs)
            else:
                with ExitStack() as stack:
                    for extra in self.extras.values():
                        stack.enter_context(cast(Extra, extra).active(self))
                    output = self.model(*args, **kwargs)
        except RuntimeError as error:
            error.add_note(self._state_of_gates())
            raise
        finally:
            if engine.hushed:
                engine.listen()
        engine.warn_of_uncalled()
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
        self.engine.alone(self.engine.detach)
        return self.model

    def loss(
        self,
        closure: Closure,
        generator: torch.Generator | None = None,
        *,
        backward: bool = True,
    ) -> Loss:
        """The objective of Eq. 8: ``closure`` computes the data loss from ``self(x)``.

        The estimator calls the closure as often as it needs to (draw the batch outside it). All
        evaluations see the same state of the random number generators, and only the first with a
        graph writes buffers. If anything raises (a loss that is not finite, an interrupt), weights
        and buffers are as before. Other threads that use the model wait meanwhile.

        Args:
            closure: Computes the data loss.
            generator: The source of random numbers of the draws. None: the global one.
            backward: False: only phi gets a gradient, by forward passes alone. No graph of the
                model is made, so the memory is that of inference, and no weight or buffer is
                written. The closure may return any number: an accuracy, a latency, the answer of
                another program. Estimators that differentiate the loss are refused.

        Returns:
            The objective. ``loss.total.backward()`` is called in either case.

        Example:
            >>> import l0arm
            >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.01)
            >>> x, y = torch.rand(8, 6), torch.arange(8) % 2
            >>> def errors() -> float:
            ...     return (gated(x).argmax(1) != y).double().mean().item()
            >>> gated.loss(errors, backward=False).total.backward()
            >>> gated.phi.grad.shape, gated.model.fc1.weight.grad
            (torch.Size([10]), None)
        """
        objective = Objective(self, closure, backward=backward)
        phi = None if self.budget is None else self.phi.detach().clone()
        try:
            return self.engine.alone(lambda: self._loss(objective, generator))
        except BaseException:  # an interrupt too
            objective.undo()
            if phi is not None:
                self.phi.data.copy_(phi)
                self._budgeted = None
            raise

    def _loss(self, objective: Objective, generator: torch.Generator | None) -> Loss:
        check_synchronised(self)
        self.check_mode(trains=True)
        paid = self.training and self.penalty_weight > 0.0
        acts = self.budget is not None and paid and self._stepped()
        if acts:
            assert self.budget is not None
            self.budget.follow(self)
            self._budgeted = self.phi._version, self.phi.detach().clone()
        gates = self.gates
        penalty = self.penalty(gates)
        if not self._priced:
            check_phi(self.layout, gates)
        objective.begin(gates)
        data = self.estimator(objective, gates, generator)
        objective.end(penalty.detach())
        if acts and self.budget is not None:
            self.budget.ascend(gates.open_probability.detach())
        return Loss(data + penalty, data, penalty)

    def _stepped(self) -> bool:
        """Whether phi changed since the last call: micro-batches of one optimizer step count once.

        Fused optimizers do not count their changes in the version, so the values are compared too.
        """
        version, phi, last = self.phi._version, self.phi.detach(), self._budgeted
        if last is not None and last[0] == version and torch.equal(last[1], phi):
            return False
        self._budgeted = version, phi.clone()
        return True

    def penalty(self, gates: Gates | None = None) -> Tensor:
        """The sum of the method's penalties (at the present phi), times ``penalty_weight``."""
        gates = self.gates if gates is None else gates
        penalties = [penalty(self, gates) for penalty in self.method.penalties]
        if self.budget is not None:
            penalties.append(self.budget(gates.open_probability))
        total = sum(penalties[1:], penalties[0]) if penalties else self.phi.new_zeros(())
        weight = self.settings.penalty_weight
        return total if weight == 1.0 else weight * total

    def drawn(self, z: Tensor, *, writes: bool = True, like: Draw | None = None) -> Evaluation:
        """Calls of ``self`` inside use the gates z; ``writes=False`` leaves all buffers alone.

        If the estimator asks for the derivative in closed gates too, nothing is dropped.
        """
        engine = self.engine
        engine.check_attached()
        if not isinstance(z, Tensor):
            raise TypeError(f"a draw is a tensor with the gates of all units; got {z!r}")
        drops = self.estimator.drops or not z.requires_grad
        sliced = self.settings.execution == "sliced" and drops
        known = engine.recent if like is None else (like, *engine.recent[1:])
        # A gate with a graph would get a gradient from the stand-in of its closed unit.
        rounds = sliced and self.training and not z.requires_grad
        multiples = engine.widths.multiples() if rounds else None
        draw = Draw(self.layout, z, sliced=sliced, writes=writes, known=known, multiples=multiples)
        if draw.empty and not all(
            self.groups[number].name in self._warned for number in draw.empty
        ):
            check_phi(self.layout, self.gates)  # a NaN closes gates, too
            self.warn_of_empty(draw)
        if draw.binary and not torch.is_inference_mode_enabled():  # else backward could not use it
            engine.remember(draw)
        return engine.evaluating(draw)

    def parameter_groups(
        self, lr: float = 1e-3, gate_lr: float | None = None, **weights: Any
    ) -> list[dict[str, Any]]:
        """For an optimizer: the weights; then phi and the method's extras, without weight decay."""
        trained = self.engine.alone(lambda: list(self.model.parameters()))
        parameters = [p for p in trained if p.requires_grad]
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
        outputs: Sequence[str | int] | None = None,
        certify: bool = True,
    ) -> nn.Module:
        """A plain, smaller copy of the model with z-bar made permanent; see ``l0arm.compact``."""
        from l0arm.compaction import compact  # a layer above: the verb, offered as a method

        return compact(
            self,
            optimizer=optimizer,
            round_to=round_to,
            example_inputs=example_inputs,
            example_kwargs=example_kwargs,
            outputs=outputs,
            certify=certify,
        )

    def status(self) -> Status:
        """What the gates and the budget are doing now. ``print(gated.status())`` is one screen."""
        from l0arm.costs.status import status_of

        return status_of(self)

    def warn_of_empty(self, draw: Draw) -> None:
        """Say, once for each group, that a draw closed it whole."""
        for group in (self.groups[number] for number in draw.empty):
            name = group.name
            gone = all(draw.is_absent(piece.tensor) for piece in group.reads)  # with its branch
            if name not in self._warned and not gone:
                self._warned.add(name)
                cure = "lower lam" if self.budget is None else "raise the budget, set Group.floor"
                warnings.warn(
                    f"every unit of group '{name}' is closed in this draw; a stand-in unit with "
                    f"zero weight keeps the layer running (exact). If it stays so, {cure} or start "
                    "the group at a higher keep probability",
                    EmptyGroupWarning,
                    stacklevel=3,
                )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """phi is saved by group, so that it can only be loaded into groups of the same names."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, part in self.per_group(destination.pop(f"{prefix}phi")).items():
            destination[f"{prefix}phi.{name}"] = part.clone() if not keep_vars else part

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if f"{prefix}_extra_state" not in state_dict:
            warnings.warn(
                "the checkpoint has no settings (threshold, width_multiple, ...), as those of "
                "earlier versions; the network keeps its own",
                stacklevel=2,
            )
            state_dict[f"{prefix}_extra_state"] = self.get_extra_state()
        names = [f"{prefix}phi.{group.name}" for group in self.groups]
        if all(name in state_dict for name in names):
            state_dict[f"{prefix}phi"] = torch.cat([state_dict.pop(name) for name in names])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def get_extra_state(self) -> Tensor:
        """The settings that are part of the network, in the state dict."""
        return self.settings.to_tensor()

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the settings of a state dict."""
        self.settings = self.settings.with_saved(state)

    def extra_repr(self) -> str:
        return f"groups={[f'{g.name}({g.units})' for g in self.groups]}, execution={self.execution}"
