"""The certificate of a compaction: gated and small network compared on inputs like an example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from l0arm.equality.difference import difference
from l0arm.equality.evidence import unseen
from l0arm.equality.example import Example
from l0arm.equality.inputs import has_floats, inputs_like
from l0arm.equality.scratch import SEED, TOLERANCE, Mode, Outputs, Scratch, first_line
from l0arm.gating import Gated
from l0arm.gating.cutting import plain_copy
from l0arm.gating.layout import Layout


class CertificateError(ValueError):
    """The small network would not compute what the gated one does; nothing was changed."""


@dataclass(frozen=True)
class Judged:
    """The largest difference found in one mode under one mask, relative to max|y|."""

    mode: Mode
    mask: str
    difference: float


@dataclass(frozen=True)
class Certificate:
    """How far the small network is from the gated one, at most.

    Compared are z-bar itself on all inputs, and other masks (one unit of every group closed, half
    of them) on some; in eval and in train mode, with dropout off. ``notes`` name the groups whose
    closing no output shows: of them equal outputs say nothing.
    """

    judged: tuple[Judged, ...]
    dtype: torch.dtype  # judged in
    inputs: int  # the example and others like it
    group: str = ""  # the first that makes them differ, if they do
    notes: tuple[str, ...] = ()  # what could not be compared, and why

    @property
    def tolerance(self) -> float:
        """What rounding may do, relative to max|y|."""
        return TOLERANCE[self.dtype]

    @property
    def largest(self) -> float:
        """The largest difference of all."""
        return max(entry.difference for entry in self.judged)

    @property
    def passed(self) -> bool:
        """Whether the networks compute the same."""
        return self.largest <= self.tolerance

    def as_record(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "passed": self.passed,
            "largest_difference": self.largest,
            "tolerance": self.tolerance,
            "dtype": str(self.dtype).removeprefix("torch."),
            "inputs": self.inputs,
            "judged": [asdict(entry) for entry in self.judged],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        worst = max(self.judged, key=lambda entry: entry.difference)
        modes = " and ".join(dict.fromkeys(entry.mode for entry in self.judged))
        masks = len({entry.mask for entry in self.judged})
        at = f"{worst.difference:.1e} of max|y| at most ({worst.mode} mode, {worst.mask})"
        told = "; ".join([f"judged in {self.dtype}, tolerance {self.tolerance:.0e}", *self.notes])
        how = f"{modes} mode, {masks} masks, {self.inputs} inputs, {told}"
        if self.passed:
            return f"the small network equals the gated one: {at}; {how}"
        where = f"group '{self.group}'" if self.group else "several groups together"
        return (
            f"the small network would differ from the gated one by {at}, because of {where}: "
            "something mixes its units between makes and reads, counts them, or reads them "
            f"unseen; leave it out (exclude=, or edit the plan), or correct its slices. {how}"
        )


def certify(
    gated: Gated,
    example_inputs: Sequence[Any] | Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    outputs: Sequence[str | int] | None = None,
    round_to: int | None = None,
) -> Certificate:
    """Compare what compaction would make of ``gated`` with it, on copies; nothing is changed.

    Without arguments, on the example that ``sparsify`` was given. ``outputs`` names those (by key
    or number) that count; those of the plan if left out.
    """
    example = (
        Example.of(example_inputs, example_kwargs, gated.outputs if outputs is None else outputs)
        or gated.example
    )
    if example is None:
        raise ValueError(
            "a certificate needs inputs to compare on: pass example_inputs=(x,), here or to "
            "sparsify"
        )
    return certify_mask(gated, gated.deterministic(round_to), example)


def certify_mask(gated: Gated, z_bar: Tensor, example: Example) -> Certificate:
    """The certificate of a z-bar that need not be the one of the gates' threshold."""
    here = example.each(lambda tensor: tensor.to(gated.phi.device))
    scratch = Scratch(plain_copy(gated, share_hooks=False), here)
    _check_finite(scratch.first)
    return _Comparison(scratch, gated.layout).certificate(z_bar)


def passed(certificate: Certificate) -> Certificate:
    """The certificate, if it shows that the networks compute the same; else CertificateError."""
    if not certificate.passed:
        raise CertificateError(str(certificate))
    return certificate


class _Comparison:
    """Goes through masks and modes, and finds the group at fault."""

    def __init__(self, scratch: Scratch, layout: Layout) -> None:
        self.scratch, self.layout = scratch, layout
        self.judged, self.notes = list[Judged](), list[str]()
        self.random = torch.Generator().manual_seed(SEED)
        self.inputs, self.some = self._inputs()
        why_not = scratch.refusal(scratch.example, "train")
        self.modes: tuple[Mode, ...] = ("eval", "train") if why_not is None else ("eval",)
        if why_not is not None:
            self.notes.append(f"train mode not compared: {why_not}")

    def _inputs(self) -> tuple[list[Example], list[Example]]:
        """All that the model runs on; and of them one of the example's scale, one of a smaller."""
        model, example = self.scratch.model, self.scratch.example
        likely = list(inputs_like(model, example, self.random))
        fine = [x for x in likely if x is likely[0] or self.scratch.refusal(x, "eval") is None]
        some = fine[:2][-1:]
        if has_floats(model, example) and fine[-1] is likely[-1]:
            some = [*some, fine[-1]]
        return fine, some

    def certificate(self, z_bar: Tensor) -> Certificate:
        masks = list(self._masks(z_bar))
        for mask, z in masks:
            for mode in self.modes:
                apart = self._apart(z, mode, everywhere=z is z_bar)
                if (
                    mode == "train"
                    and not self._fine(apart)
                    and self.scratch.is_random(self.layout, z)
                ):
                    self.notes.append("train mode not compared: random even without dropout")
                    self.modes = ("eval",)
                else:
                    self.judged.append(Judged(mode, mask, apart))
                if not self._fine(apart) and mode in self.modes:
                    return self._certificate(self._at_fault(z, mode))
        self._note_unseen([z for _, z in masks[1:]])
        return self._certificate("")

    def _note_unseen(self, masks: Sequence[Tensor]) -> None:
        """Equal outputs say nothing of a group that they do not show."""
        cases = ((z, x) for z in masks for x in self.some)
        hidden = sorted(unseen(self.scratch, self.layout, cases))
        if hidden:
            names = ", ".join(f"'{self.layout.groups[number].name}'" for number in hidden)
            self.notes.append(
                f"nothing shown for {names}: closing units there moves no output visibly on these "
                "inputs"
            )

    def _certificate(self, group: str) -> Certificate:
        notes = tuple(dict.fromkeys(self.notes))
        return Certificate(tuple(self.judged), self.scratch.dtype, len(self.inputs), group, notes)

    def _masks(self, z_bar: Tensor) -> Iterator[tuple[str, Tensor]]:
        """z-bar; then in every group one unit closed at random, and half of them."""
        yield "z-bar", z_bar
        for name, least in (("one unit of each group closed", 1), ("half of the units closed", 0)):
            z = torch.ones_like(z_bar)
            for number, group in enumerate(self.layout.groups):
                order = torch.randperm(group.units, generator=self.random)
                closed = order[: least or group.units // 2].to(z.device)
                z[self.layout.span(number).start + closed] = 0.0
            yield name, z

    def _apart(self, z: Tensor, mode: Mode, *, everywhere: bool) -> float:
        """The largest difference under z: on all inputs, or on some."""
        scratch = self.scratch
        try:
            small = scratch.small(self.layout, z)
            return max(
                difference(scratch.run(small, x, mode), scratch.zeroed(self.layout, z, x, mode))
                for x in (self.inputs if everywhere else self.some)
            )
        except Exception as error:  # sizes that do not fit raise anything
            self.notes.append(f"the small network does not run: {first_line(error)}")
            return math.inf

    def _fine(self, apart: float) -> bool:
        return apart <= self.scratch.tolerance

    def _at_fault(self, z: Tensor, mode: Mode) -> str:
        """The first group that makes them differ when it alone is closed so."""
        notes = list(self.notes)
        for number, group in enumerate(self.layout.groups):
            alone, span = torch.ones_like(z), self.layout.span(number)
            alone[span] = z[span]
            if not self._fine(self._apart(alone, mode, everywhere=True)):
                self.notes = notes
                return group.name
        return ""


def _check_finite(outputs: Outputs) -> None:
    floats = [t for t in outputs.values() if t.is_floating_point() or t.is_complex()]
    if not any(bool(t.isfinite().any()) for t in floats):
        raise ValueError(
            "the model's output on the example inputs holds no finite number to compare; check the "
            "inputs, and the names in outputs"
        )
