"""Whether units of planned groups can be dropped: tested on a scratch copy of the model.

Tested is all that happens to a unit later: sliced execution in eval and train mode, and the small
network that compaction makes. Inputs have several scales, since saturation hides differences.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from l0arm.equality.difference import has_comparable_entries, output_difference
from l0arm.equality.example import Example
from l0arm.equality.inputs import SEED, Closed, at_scale, has_floats, mask_with_closed
from l0arm.equality.scratch import (
    VISIBLE,
    Mode,
    Outputs,
    ScratchModel,
    first_line,
    invisible_groups,
)
from l0arm.gating import Group
from l0arm.gating.layout import Layout, named_tensors, resolve

CLOSED: tuple[Closed, ...] = ("one", "most", "rest")  # the second also for the small network
MODES: tuple[Mode, Mode] = ("eval", "train")
SCALES = (1 / 16, 1 / 256)  # of inputs, beside that of the example
PERTURBED = 1.2  # with the weights there are, signals of a deep network neither vanish nor explode
MIXES = "dropping its units gives other values than zeroing them: the forward mixes or counts them"
COUNTS = (
    "compaction would change the values: the forward uses an attribute that counts its units, such "
    "as out_features"
)
ROUNDING = (
    "rounding alone moves the outputs by {rounding:.0e} on the example, so dropping could not be "
    "tried; plan with a larger batch, or larger or more varied inputs"
)
TILE = 2**20 - 3  # numbers of noise before it repeats; a prime, so that no two rows are alike
AMPLIFIED = 100.0  # sums in another order differ by at most this many roundings of the weights
REMEMBERED, LARGEST = 8, 2**20  # outputs that may be needed again, and how large they may be
BLIND = "no output holds finite numbers other than whole ones, so that nothing shows a difference"


class _Case(NamedTuple):
    """One comparison: gates, input, mode, and whether to test the small network too."""

    z: Tensor
    x: Example
    mode: Mode
    small: bool


@dataclass(frozen=True)
class Fault:
    """What goes wrong when units are dropped, and how many comparisons went well before."""

    reason: str
    passed: int = 0


@dataclass
class Watch:
    """Who hears of the progress, and when there is no time left."""

    report: Callable[[str], None] = lambda line: None
    seconds: float = math.inf
    trials: int = 0

    def __post_init__(self) -> None:
        self.start = time.monotonic()

    @classmethod
    def of(cls, report: Callable[[str], None] | None, seconds: float | None) -> Watch:
        """From what a user passes. ValueError: the time is not positive."""
        if seconds is not None and not seconds > 0:
            raise ValueError(f"time_limit is a number of seconds above 0; got {seconds!r}")
        return cls(report or (lambda line: None), math.inf if seconds is None else seconds)

    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() - self.start > self.seconds

    @property
    def reason(self) -> str:
        """What keeps a group from being tried then."""
        return f"the time limit of {self.seconds:g} s was over before it could be tried"


class Trial:
    """Tests groups on a scratch model.

    Its weights are perturbed, so that the zeros of a fresh network hide no difference.
    """

    def __init__(
        self,
        scratch: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        outputs: Collection[str],
        weights: Mapping[str, Tensor] | None = None,
        *,
        watch: Watch | None = None,
    ) -> None:
        """``weights`` are the tensors that the copy was made of, if somebody else keeps them."""
        self.model = scratch
        self.weights = weights
        self.watch = watch or Watch()
        self.random = torch.Generator().manual_seed(SEED)
        example = Example(tuple(args), dict(kwargs), tuple(outputs))
        self.scratch = self._perturbed(vary_constants(example, self.random))
        tested = [(self.scratch.example, self.scratch.first), *map(self._at, SCALES)]
        self.inputs = [x for x, _ in tested]
        self.blind = not any(has_comparable_entries(y) for _, y in tested)
        self._known: dict[object, Outputs] = {}
        self.trains = self.scratch.refusal(self.inputs[0], "train") is None
        self.held: tuple[Group, ...] = ()  # closed and dropped beside those that are tested

    def _perturbed(self, example: Example) -> ScratchModel:
        """With perturbed weights, or with its own where those give nothing to compare."""
        own = self.weights
        if own is None:
            own = {key: tensor.clone() for key, tensor in named_tensors(self.model).items()}
        perturb_weights(self.model, self.random)
        try:
            scratch = ScratchModel(self.model, example)
            if has_comparable_entries(scratch.first):
                return scratch
            scratch.put_back()
        except ValueError:  # the forward validates its values, and does not run
            pass
        for key, tensor in named_tensors(self.model).items():
            tensor.data = own[key].detach().clone()
        return ScratchModel(self.model, example)

    def _at(self, scale: float) -> tuple[Example, Outputs]:
        """An input of another scale with its outputs; the example itself if the model refuses."""
        example = self.scratch.example
        if has_floats(self.model, example):
            scaled = at_scale(self.model, example, scale, self.random)
            with suppress(Exception):  # whatever a forward raises
                return scaled, self.scratch.run(self.model, scaled)
        return example, self.scratch.first

    def beside(self, groups: Sequence[Group]) -> Trial:
        """The same trial, with these groups beside all that it tests."""
        other = copy.copy(self)
        other.held = (*self.held, *groups)
        return other

    def agrees(self, groups: Sequence[Group], *, quick: bool = False) -> bool:
        """Whether the outputs under dropping and zeroing are equal in all cases, or in one."""
        return self.fault(groups, quick=quick) is None

    def fault(self, groups: Sequence[Group], *, quick: bool = False) -> Fault | None:
        """What goes wrong when units of these groups are dropped; None if nothing does.

        A quick answer looks at one case alone: with most units dropped, in eval mode.
        """
        if not any(group.drops for group in groups):
            return None
        if self.blind:
            return Fault(BLIND)
        if self.watch.is_over():
            return Fault(self.watch.reason)
        self.watch.trials += 1
        self.watch.report(f"trial {self.watch.trials}: {len(groups)} groups")
        passed = 0
        # Alone, too: closed together, what counts one group may fit another by chance.
        for together in [[*self.held, *groups]] + ([list(groups)] if self.held else []):
            layout = resolve(self.model, together)
            cases = list(self._cases(layout))
            for case in cases[1:2] if quick else cases:
                reason = self._fault(layout, case)
                if reason is not None:
                    return Fault(reason, passed)
                passed += 1
        return None

    def fault_under(self, groups: Sequence[Group], z: Tensor) -> Fault | None:
        """What goes wrong under these gates, in eval and train mode; None if nothing does."""
        if self.watch.is_over():
            return Fault(self.watch.reason)
        layout = resolve(self.model, groups)
        for mode in MODES if self.trains else MODES[:1]:
            reason = self._fault(layout, _Case(self._here(z), self.inputs[0], mode, small=True))
            if reason is not None:
                return Fault(reason)
        return None

    def shows(self, groups: Sequence[Group], z: Tensor) -> bool:
        """Whether these gates change an output visibly."""
        layout = resolve(self.model, groups)
        zeroed = self.scratch.zeroed(layout, self._here(z), self.inputs[0])
        difference = output_difference(zeroed, self.scratch.first)
        return not difference <= VISIBLE * self.scratch.tolerance

    def seen(self, modules: Sequence[str]) -> list[bool]:
        """Whether a factor on what each module returns changes an output visibly."""
        slopes = self.scratch.slopes_of(modules)
        return [slope > VISIBLE * self.scratch.tolerance for slope in slopes]

    def _here(self, z: Tensor) -> Tensor:
        return z.to(next(self.model.parameters()).device)

    def unseen(self, groups: Sequence[Group]) -> list[Group]:
        """The groups whose closing shows in no output: for them a comparison proves nothing."""
        layout = resolve(self.model, groups)
        cases = ((case.z, case.x) for case in self._cases(layout) if case.mode == "eval")
        hidden = invisible_groups(self.scratch, layout, cases)
        return [group for number, group in enumerate(groups) if number in hidden]

    def _cases(self, layout: Layout) -> Iterator[_Case]:
        """Every mask at another scale; in train mode at that of the example."""
        device = next(self.model.parameters()).device
        masks = [mask_with_closed(layout, closed, device) for closed in CLOSED]
        for place, (z, x) in enumerate(zip(masks, self.inputs, strict=True)):
            yield _Case(z, x, "eval", small=place == 1 or not self.trains)
        if self.trains:
            yield _Case(masks[1], self.inputs[0], "train", small=True)

    def _fault(self, layout: Layout, case: _Case) -> str | None:
        z, x, mode, _ = case
        zeroed = self._zeroed(layout, case)
        when = "in train mode " if mode == "train" else ""
        running = self.model
        try:
            dropped = output_difference(self.scratch.sliced(layout, z, x, mode), zeroed)
            fault = self._unless_noise(layout, case, dropped, MIXES)
            if fault is None and case.small:
                running = self.scratch.small(layout, z)
                cut = output_difference(self.scratch.run(running, x, mode), zeroed)
                fault = self._unless_noise(layout, case, cut, COUNTS)
        except Exception as error:  # sizes that do not fit raise anything
            return f"{when}with fewer units {_place(error, running)}fails: {first_line(error)}"
        return fault if fault is None else when + fault

    def _zeroed(self, layout: Layout, case: _Case) -> Outputs:
        """The outputs with closed units zeroed. Patches have no part in them: kept for others."""
        groups = tuple(replace(group, patches=()) for group in layout.groups)
        key = (groups, tuple(case.z.tolist()), self.inputs.index(case.x), case.mode)
        found = self._known.get(key)
        if found is None:
            found = self.scratch.zeroed(layout, case.z, case.x, case.mode)
            if sum(y.numel() for y in found.values()) <= LARGEST:
                self._known[key] = found
            while len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        return found

    def _unless_noise(
        self, layout: Layout, case: _Case, difference: float, fault: str
    ) -> str | None:
        """The fault that a difference shows; none where it is rounding, or noise of training."""
        tolerance = self.scratch.tolerance
        if difference <= tolerance:
            return None
        if case.mode == "train" and self.scratch.is_random(layout, case.z):
            return None  # noise that only training adds cannot be compared
        rounding = self.scratch.rounding(layout, case.z, case.x, case.mode)
        if not math.isfinite(rounding) or difference > AMPLIFIED * rounding:
            return fault
        # Above the root of the tolerance half of the digits are lost, and a fault could hide.
        acceptable = difference <= math.sqrt(tolerance)
        return None if acceptable else ROUNDING.format(rounding=rounding)


def _place(error: Exception, model: nn.Module) -> str:
    """The innermost module of the model that an error passed through."""
    names = {id(module): name for name, module in model.named_modules()}
    found = ""
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        found = names.get(id(frame.tb_frame.f_locals.get("self")), found)
        frame = frame.tb_next
    return f"'{found}' " if found else "the forward "


def perturb_weights(model: nn.Module, random: torch.Generator) -> None:
    """Move parameters and running statistics away from zeros and ones, which hide differences."""
    filters = {id(m.weight) for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)}
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.is_floating_point(tensor) or not tensor.numel():
                continue
            if isinstance(tensor, nn.Parameter) and tensor.dim() > 1:
                stack = tensor.dim() == 3 and len(tensor) > 1 and id(tensor) not in filters
                fan_in = max(1, tensor.shape[-1] if stack else tensor[0].numel())
                # A little upwards, so that rectified units are active.
                _add_noise(tensor, random, PERTURBED * fan_in**-0.5, 0.5 / fan_in)
                continue
            noise = torch.randn(tensor.shape, generator=random).to(tensor)
            if isinstance(tensor, nn.Parameter):
                tensor.add_(noise.abs(), alpha=0.5)
            elif name.endswith("running_mean"):
                tensor.add_(noise, alpha=0.1)
            elif name.endswith("running_var"):
                tensor.mul_(1 + 0.3 * noise.tanh())


def _add_noise(tensor: Tensor, random: torch.Generator, scale: float, shift: float) -> None:
    """Add scaled normal numbers. Those of a large tensor repeat, which is much faster."""
    noise = torch.randn(min(tensor.numel(), TILE), generator=random).to(tensor)
    noise = noise.mul_(scale).add_(shift)
    if tensor.is_contiguous():
        for piece in torch.split(tensor.view(-1), TILE):
            piece.add_(noise[: len(piece)])
    else:
        count = tensor.numel()
        tensor.add_(noise.repeat(-(-count // TILE))[:count].view(tensor.shape))


def vary_constants(example: Example, random: torch.Generator) -> Example:
    """Add noise to constant floats: an input of zeros or ones would hide differences."""

    def changed(value: Tensor) -> Tensor:
        constant = not bool((value != value.flatten()[:1]).any())
        if not torch.is_floating_point(value) or value.numel() < 2 or not constant:
            return value
        return value + torch.randn(value.shape, generator=random).to(value)

    return example.map(changed)
