"""The result of pruning: the small network, its evidence, and a comparison with the dense one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from l0arm.compaction import save
from l0arm.costs import count_flops, latency
from l0arm.equality.certificate import Certificate
from l0arm.equality.example import Example


@dataclass(frozen=True)
class Costs:
    """What a network costs.

    Attributes:
        parameters: Number of parameters.
        macs: Multiply-accumulate operations for the example inputs. None: not counted.
        milliseconds: Median time of a forward pass on them. None: not measured.
        bytes: Size of parameters and buffers.
        score: What ``validate`` returned. None: there is no ``validate``.
    """

    parameters: int
    macs: int | None
    milliseconds: float | None
    bytes: int
    score: float | None = None


@dataclass(frozen=True)
class PruneResult:
    """What ``prune`` returns. ``print(result)`` shows a table.

    Attributes:
        model: The small, fine-tuned network: a plain module in eval mode.
        certificate: The comparison with the gated network, at the moment of the cut.
        history: One record per logged step: stage, step, loss, expected share and target.
        dense: Costs of the network as it was.
        small: Costs of the small network.
        architecture: Units left of every group, such as ``"12-30"``.
    """

    model: nn.Module
    certificate: Certificate
    history: list[dict[str, Any]] = field(repr=False)
    dense: Costs
    small: Costs
    architecture: str

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the small network to a folder that ``l0arm.load`` reads.

        Args:
            folder: The folder, which must not exist.
            force: Replace a saved network that is there.

        Returns:
            The folder.
        """
        return save(self.model, folder, metrics=self._metrics(), force=force)

    def _metrics(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"architecture": self.architecture}
        if self.small.score is not None:
            found |= {"score": self.small.score, "score_dense": self.dense.score}
        return found

    def __str__(self) -> str:
        rows = [("parameters", self.dense.parameters, self.small.parameters, "{:,.0f}")]
        for name, unit, form in (
            ("macs", "MACs", "{:,.0f}"),
            ("milliseconds", "milliseconds", "{:.2f}"),
            ("bytes", "bytes", "{:,.0f}"),
        ):
            before, after = getattr(self.dense, name), getattr(self.small, name)
            if before is not None and after is not None:
                rows.append((unit, before, after, form))
        lines = [f"{'':14}{'dense':>14}{'small':>14}{'left':>9}"]
        for unit, before, after, form in rows:
            share = 100 * after / before if before else 0.0
            lines.append(
                f"{unit:14}{form.format(before):>14}{form.format(after):>14}{share:>7.1f} %"
            )
        if self.dense.score is not None and self.small.score is not None:
            lines.append(f"{'validate':14}{self.dense.score:>14.4g}{self.small.score:>14.4g}")
        lines += [f"architecture  {self.architecture}", f"certificate   {self.certificate}"]
        return "\n".join(lines)


def costs_of(
    models: Mapping[str, nn.Module], example: Example, *, timed: bool = True
) -> dict[str, Costs]:
    """Count parameters, operations and bytes of networks, and time them side by side."""
    single = len(example.args) == 1 and not example.kwargs
    times = latency(models, example.args[0], rounds=9, calls=3) if single and timed else {}
    found = {}
    for name, model in models.items():
        tensors = [*model.parameters(), *model.buffers()]
        found[name] = Costs(
            parameters=sum(p.numel() for p in model.parameters()),
            macs=count_flops(model, *example.args) // 2 if single else None,
            milliseconds=times[name].median if name in times else None,
            bytes=sum(t.numel() * t.element_size() for t in tensors),
        )
    return found
