"""Whether units of planned groups can be dropped: tested on a scratch copy of the model.

Tested is all that happens to a unit later: sliced execution in eval and train mode, and the small
network that compaction makes. Inputs have several scales, since saturation hides differences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from l0arm.equality.difference import has_comparable_entries, output_difference
from l0arm.equality.example import Example
from l0arm.equality.inputs import KINDS, SEED, at_scale, has_floats, mask_with_closed
from l0arm.equality.scratch import Mode, Outputs, ScratchModel, first_line, invisible_groups
from l0arm.gating import Group
from l0arm.gating.layout import Layout, named_tensors, resolve

SCALES = (1 / 16, 1 / 256)  # of inputs, beside that of the example
PERTURBED = 1.2  # with the weights there are, signals of a deep network neither vanish nor explode
MIXES = "dropping its units gives other values than zeroing them: the forward mixes or counts them"
COUNTS = (
    "compaction would change the values: the forward uses an attribute that counts its units, such "
    "as out_features"
)
BLIND = "no output holds finite numbers other than whole ones, so that nothing shows a difference"


class _Case(NamedTuple):
    """One comparison: gates, input, mode, and whether to test the small network too."""

    z: Tensor
    x: Example
    mode: Mode
    small: bool


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
    ) -> None:
        self.model = scratch
        self.random = torch.Generator().manual_seed(SEED)
        example = Example(tuple(args), dict(kwargs), tuple(outputs))
        self.scratch = self._perturbed(vary_constants(example, self.random))
        tested = [(self.scratch.example, self.scratch.first), *map(self._at, SCALES)]
        self.inputs = [x for x, _ in tested]
        self.blind = not any(has_comparable_entries(y) for _, y in tested)
        self.trains = self.scratch.refusal(self.inputs[0], "train") is None

    def _perturbed(self, example: Example) -> ScratchModel:
        """With perturbed weights, or with its own where those give nothing to compare."""
        own = {key: tensor.clone() for key, tensor in named_tensors(self.model).items()}
        perturb_weights(self.model, self.random)
        try:
            scratch = ScratchModel(self.model, example)
            if has_comparable_entries(scratch.first):
                return scratch
        except ValueError:  # the forward validates its values, and does not run
            pass
        for key, tensor in named_tensors(self.model).items():
            tensor.data = own[key]
        return ScratchModel(self.model, example)

    def _at(self, scale: float) -> tuple[Example, Outputs]:
        """An input of another scale with its outputs; the example itself if the model refuses."""
        example = self.scratch.example
        if has_floats(self.model, example):
            scaled = at_scale(self.model, example, scale, self.random)
            with suppress(Exception):  # whatever a forward raises
                return scaled, self.scratch.run(self.model, scaled)
        return example, self.scratch.first

    def agrees(self, groups: Sequence[Group]) -> bool:
        """Whether the outputs under dropping and zeroing are equal in all cases."""
        return self.fault(groups) is None

    def fault(self, groups: Sequence[Group]) -> str | None:
        """What goes wrong when units of these groups are dropped; None if nothing does."""
        if not any(group.drops for group in groups):
            return None
        if self.blind:
            return BLIND
        layout = resolve(self.model, groups)
        faults = (self._fault(layout, case) for case in self._cases(layout))
        return next((fault for fault in faults if fault is not None), None)

    def unseen(self, groups: Sequence[Group]) -> list[Group]:
        """The groups whose closing shows in no output: for them a comparison proves nothing."""
        layout = resolve(self.model, groups)
        cases = ((case.z, case.x) for case in self._cases(layout) if case.mode == "eval")
        hidden = invisible_groups(self.scratch, layout, cases)
        return [group for number, group in enumerate(groups) if number in hidden]

    def _cases(self, layout: Layout) -> Iterator[_Case]:
        """Every mask at another scale; in train mode at that of the example."""
        device = next(self.model.parameters()).device
        masks = [mask_with_closed(layout, closed, device) for closed in KINDS]
        for place, (z, x) in enumerate(zip(masks, self.inputs, strict=True)):
            yield _Case(z, x, "eval", small=place == 1 or not self.trains)
        if self.trains:
            yield _Case(masks[1], self.inputs[0], "train", small=True)

    def _fault(self, layout: Layout, case: _Case) -> str | None:
        z, x, mode, _ = case
        zeroed = self.scratch.zeroed(layout, z, x, mode)
        when = "in train mode " if mode == "train" else ""
        running = self.model
        try:
            if not self._same(self.scratch.sliced(layout, z, x, mode), zeroed):
                return self._unless_random(layout, case, when + MIXES)
            if case.small:
                running = self.scratch.small(layout, z)
                if not self._same(self.scratch.run(running, x, mode), zeroed):
                    return self._unless_random(layout, case, when + COUNTS)
        except Exception as error:  # sizes that do not fit raise anything
            return f"{when}with fewer units {_place(error, running)}fails: {first_line(error)}"
        return None

    def _unless_random(self, layout: Layout, case: _Case, fault: str) -> str | None:
        """Noise that only training adds is no fault, though it cannot be compared."""
        random = case.mode == "train" and self.scratch.is_random(layout, case.z)
        return None if random else fault

    def _same(self, one: Outputs, other: Outputs) -> bool:
        return output_difference(one, other) <= self.scratch.tolerance


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
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.is_floating_point(tensor) or not tensor.numel():
                continue
            noise = torch.randn(tensor.shape, generator=random).to(tensor)
            if isinstance(tensor, nn.Parameter) and tensor.dim() > 1:
                fan_in = max(1, tensor[0].numel())
                # A little upwards, so that rectified units are active.
                tensor.add_(noise, alpha=PERTURBED * fan_in**-0.5).add_(0.5 / fan_in)
            elif isinstance(tensor, nn.Parameter):
                tensor.add_(noise.abs(), alpha=0.5)
            elif name.endswith("running_mean"):
                tensor.add_(noise, alpha=0.1)
            elif name.endswith("running_var"):
                tensor.mul_(1 + 0.3 * noise.tanh())


def vary_constants(example: Example, random: torch.Generator) -> Example:
    """Add noise to constant floats: an input of zeros or ones would hide differences."""

    def changed(value: Tensor) -> Tensor:
        constant = not bool((value != value.flatten()[:1]).any())
        if not torch.is_floating_point(value) or value.numel() < 2 or not constant:
            return value
        return value + torch.randn(value.shape, generator=random).to(value)

    return example.map(changed)
