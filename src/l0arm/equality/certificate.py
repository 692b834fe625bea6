"""The certificate of a compaction: gated and small network compared on inputs like an example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from l0arm.equality.difference import output_difference
from l0arm.equality.example import Example
from l0arm.equality.inputs import SEED, Closed, has_floats, inputs_like, mask_with_closed
from l0arm.equality.scratch import TOLERANCE, Mode, ScratchModel, first_line, invisible_groups
from l0arm.gating.cutting import plain_copy
from l0arm.gating.layout import Layout
from l0arm.gating.records import checked

if TYPE_CHECKING:
    from l0arm.gating.gated import Gated

MASKS: dict[Closed, str] = {
    "one": "one unit of each group closed",
    "half": "half of the units closed",
}


@dataclass(frozen=True)
class Comparison:
    """The largest difference found in one mode under one mask.

    Args:
        mode: ``eval`` or ``train``.
        mask: The gates that were compared, in words.
        difference: The largest difference, relative to max|y|.

    Example:
        >>> Comparison("eval", "z-bar", 1e-16).difference
        1e-16
    """

    mode: Mode
    mask: str
    difference: float


@dataclass(frozen=True)
class Certificate:
    """Evidence that a small network computes what the gated one does.

    z-bar itself is compared on all inputs, and other masks (one unit of each group closed, half of
    the units closed) on some of them, in eval and in train mode, with dropout off.

    Args:
        comparisons: The largest difference of each mask and mode.
        dtype: The type that the networks were compared in.
        inputs: How many inputs were compared: the example, and others like it.
        group: The first group that makes the networks differ, if they do.
        notes: What could not be compared, and why. They also name groups whose closing no output
            shows: equal outputs say nothing about those.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0, initial=0.9)
        >>> small = l0arm.compact(gated, example_inputs=torch.rand(4, 6))
        >>> certificate = l0arm.certificate(small)
        >>> certificate.passed, certificate.dtype, certificate.largest < 1e-12
        (True, torch.float64, True)
    """

    comparisons: tuple[Comparison, ...]
    dtype: torch.dtype
    inputs: int
    group: str = ""
    notes: tuple[str, ...] = ()

    @property
    def tolerance(self) -> float:
        """The largest difference that counts as rounding, relative to max|y|."""
        return TOLERANCE[self.dtype]

    @property
    def largest(self) -> float:
        """The largest difference of all."""
        return max(each.difference for each in self.comparisons)

    @property
    def passed(self) -> bool:
        """Whether the networks compute the same."""
        return self.largest <= self.tolerance

    def as_record(self) -> dict[str, Any]:
        """The certificate as JSON."""
        return {
            "passed": self.passed,
            "largest_difference": self.largest,
            "tolerance": self.tolerance,
            "dtype": str(self.dtype).removeprefix("torch."),
            "inputs": self.inputs,
            "judged": [asdict(each) for each in self.comparisons],
            "notes": list(self.notes),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Certificate | None:
        """The certificate that ``as_record`` wrote; None if any of it would be lost.

        A record does not name the group at fault, so that of a failed comparison is not read.
        """
        dtypes = {str(dtype).removeprefix("torch."): dtype for dtype in TOLERANCE}
        kinds = {"mode": str, "mask": str, "difference": float}
        try:
            entries = [checked(entry, "judged", kinds) for entry in record["judged"]]
            comparisons = tuple(Comparison(**entry) for entry in entries)
            dtype, notes = dtypes[record["dtype"]], tuple(record["notes"])
            found = cls(comparisons, dtype, record["inputs"], notes=notes)
            valid = type(found.inputs) is int and all(isinstance(note, str) for note in notes)
            valid = valid and all(each.difference >= 0 for each in comparisons)
            return found if valid and found.passed and found.as_record() == record else None
        except (KeyError, TypeError, ValueError):
            return None

    def __str__(self) -> str:
        worst = max(self.comparisons, key=lambda each: each.difference)
        modes = " and ".join(dict.fromkeys(each.mode for each in self.comparisons))
        masks = len({each.mask for each in self.comparisons})
        at = f"{worst.difference:.1e} of max|y| at most ({worst.mode} mode, {worst.mask})"
        notes = "; ".join(
            [f"compared in {self.dtype}, tolerance {self.tolerance:.0e}", *self.notes]
        )
        how = f"{modes} mode, {masks} masks, {self.inputs} inputs, {notes}"
        if self.passed:
            return f"the small network equals the gated one: {at}; {how}"
        where = f"group '{self.group}'" if self.group else "several groups together"
        return (
            f"the small network would differ from the gated one by {at}, because of {where}: "
            "something mixes its units between makes and reads, counts them, or reads them "
            f"unseen; leave it out (exclude=, or edit the plan), or correct its slices. {how}"
        )


class CertificateError(ValueError):
    """The small network would not compute what the gated one does; nothing was changed.

    Args:
        certificate: The comparison that failed, kept as the attribute ``certificate``.

    Example:
        >>> failed = Certificate((Comparison("eval", "z-bar", 0.5),), torch.float64, 1, "fc1")
        >>> CertificateError(failed).certificate.group
        'fc1'
    """

    def __init__(self, certificate: Certificate) -> None:
        super().__init__(str(certificate))
        self.certificate = certificate


def issue_certificate(
    gated: Gated, z_bar: Tensor, example: Example, *, reference: Tensor | None = None
) -> Certificate:
    """Compare the network that compaction makes of z-bar with the gated one; nothing is changed.

    Both run on copies. Raises CertificateError if they differ. ``reference`` holds the gates that
    the small network has to reproduce, if these are not z-bar itself.
    """
    here = example.map(lambda tensor: tensor.to(gated.phi.device))
    scratch = ScratchModel(plain_copy(gated, share_hooks=False), here)
    floats = [t for t in scratch.first.values() if t.is_floating_point() or t.is_complex()]
    if not any(bool(t.isfinite().any()) for t in floats):
        raise ValueError(
            "the model's output on the example inputs holds no finite number to compare; check the "
            "inputs, and the names in outputs"
        )
    certificate = _Comparer(scratch, gated.layout).certificate(z_bar, reference)
    if not certificate.passed:
        raise CertificateError(certificate)
    return certificate


class _Comparer:
    """Compares mask by mask and mode by mode, and finds the group at fault."""

    def __init__(self, scratch: ScratchModel, layout: Layout) -> None:
        self.scratch, self.layout = scratch, layout
        self.comparisons, self.notes = list[Comparison](), list[str]()
        self.inputs, self.some = self._inputs()
        refusal = scratch.refusal(scratch.example, "train")
        self.modes: tuple[Mode, ...] = ("eval", "train") if refusal is None else ("eval",)
        if refusal is not None:
            self.notes.append(f"train mode not compared: {refusal}")

    def _inputs(self) -> tuple[list[Example], list[Example]]:
        """All inputs that the model runs on; and a few: one of the example's scale, one small."""
        model, example = self.scratch.model, self.scratch.example
        random = torch.Generator().manual_seed(SEED)
        variants = list(inputs_like(model, example, random))
        running = [example, *(x for x in variants[1:] if self.scratch.refusal(x, "eval") is None)]
        few = running[:2][-1:]
        if has_floats(model, example) and running[-1] is variants[-1]:
            few = [*few, running[-1]]
        return running, few

    def certificate(self, z_bar: Tensor, reference: Tensor | None) -> Certificate:
        masks = list(self._masks(z_bar, reference))
        for mask, z, expected in masks:
            for mode in self.modes:
                inputs = self.inputs if z is z_bar else self.some
                difference = self._difference(z, expected, mode, inputs)
                fails = not difference <= self.scratch.tolerance
                if fails and mode == "train" and self.scratch.is_random(self.layout, expected):
                    self.notes.append("train mode not compared: random even without dropout")
                    self.modes = ("eval",)
                    continue
                self.comparisons.append(Comparison(mode, mask, difference))
                if fails:
                    return self._result(self._at_fault(z, expected, mode))
        self._note_invisible([z for _, z, _ in masks[1:]])
        return self._result("")

    def _result(self, group: str) -> Certificate:
        notes = tuple(dict.fromkeys(self.notes))
        comparisons = tuple(self.comparisons)
        return Certificate(comparisons, self.scratch.dtype, len(self.inputs), group, notes)

    def _masks(
        self, z_bar: Tensor, reference: Tensor | None
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """A name, the gates to cut by, and the gates that define what is to be computed."""
        if reference is None:
            yield "z-bar", z_bar, z_bar
        else:
            yield "z-bar and re-opened units", z_bar, reference
        for closed, name in MASKS.items():
            z = mask_with_closed(self.layout, closed, z_bar.device)
            yield name, z, z

    def _difference(
        self, z: Tensor, expected: Tensor, mode: Mode, inputs: Sequence[Example]
    ) -> float:
        """The largest difference between the network cut by z and the definition."""
        scratch = self.scratch
        try:
            small = scratch.small(self.layout, z)
            return max(
                output_difference(
                    scratch.run(small, x, mode), scratch.zeroed(self.layout, expected, x, mode)
                )
                for x in inputs
            )
        except Exception as error:  # sizes that do not fit raise anything
            self.notes.append(f"the small network does not run: {first_line(error)}")
            return math.inf

    def _at_fault(self, z: Tensor, expected: Tensor, mode: Mode) -> str:
        """The first group that makes the networks differ when only its units are closed."""
        notes = list(self.notes)
        for number, group in enumerate(self.layout.groups):
            span = self.layout.span(number)
            alone, alone_expected = torch.ones_like(z), torch.ones_like(z)
            alone[span], alone_expected[span] = z[span], expected[span]
            difference = self._difference(alone, alone_expected, mode, self.inputs)
            if not difference <= self.scratch.tolerance:
                self.notes = notes
                return group.name
        return ""

    def _note_invisible(self, masks: Sequence[Tensor]) -> None:
        """Note the groups whose closing no output shows: equal outputs say nothing about them."""
        cases = ((z, x) for z in masks for x in self.some)
        hidden = sorted(invisible_groups(self.scratch, self.layout, cases))
        if hidden:
            names = ", ".join(f"'{self.layout.groups[number].name}'" for number in hidden)
            self.notes.append(
                f"nothing shown for {names}: closing units there moves no output visibly on these "
                "inputs"
            )
