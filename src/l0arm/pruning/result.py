"""The result of pruning: the small network, its evidence, and a comparison with the dense one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.compaction import save
from l0arm.costs import count_flops, latency
from l0arm.distributed import Team
from l0arm.equality.certificate import Certificate
from l0arm.equality.example import Example
from l0arm.export import Exported, export_onnx, export_program


@dataclass(frozen=True)
class Costs:
    """What a network costs.

    Attributes:
        parameters: Number of parameters.
        macs: Multiply-accumulate operations for the example inputs.
        milliseconds: Median time of a forward pass on them.
        bytes: Size of parameters and buffers.
        score: What ``validate`` returned. None: there is no ``validate``.
    """

    parameters: int
    macs: int
    milliseconds: float
    bytes: int
    score: float | None = None

    def scored(self, score: float | None) -> Costs:
        """The same with what ``validate`` returned."""
        return replace(self, score=score)


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
        example: The inputs that operations and times belong to.
    """

    model: nn.Module
    certificate: Certificate
    history: list[dict[str, Any]] = field(repr=False)
    dense: Costs
    small: Costs
    architecture: str
    example: Example = field(repr=False)

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the small network to a folder that ``l0arm.load`` reads.

        Of several processes, only the first writes.

        Args:
            folder: The folder, which must not exist.
            force: Replace a saved network that is there.

        Returns:
            The folder.
        """
        if not Team.here().first:
            return Path(folder)
        return save(self.model, folder, metrics=self._metrics(), force=force)

    def export(self, path: str | Path, *, force: bool = False) -> Exported:
        """Write the small network for another runtime, and compare what it computes.

        Args:
            path: A file that ends in ``.onnx`` (ONNX) or ``.pt2`` (``torch.export``).
            force: Replace a file that is there.

        Returns:
            The file, and how closely it agrees.

        Raises:
            ValueError: If the path has another ending, or the model is called with positional and
                keyword inputs together.
        """
        exporters = {".onnx": export_onnx, ".pt2": export_program}
        suffix = Path(path).suffix
        if suffix not in exporters:
            raise ValueError(f"export writes .onnx or .pt2 files; got {str(path)!r}")
        if self.example.args and self.example.kwargs:
            raise ValueError(
                "the example has positional and keyword inputs; call l0arm.export with inputs of "
                "one kind"
            )
        inputs = self.example.args or dict(self.example.kwargs)
        return exporters[suffix](self.model, inputs, path, force=force)

    def _metrics(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"architecture": self.architecture}
        if self.small.score is not None:
            found |= {"score": self.small.score, "score_dense": self.dense.score}
        return found

    def __str__(self) -> str:
        rows = [
            ("parameters", self.dense.parameters, self.small.parameters, "{:,.0f}"),
            ("MACs", self.dense.macs, self.small.macs, "{:,.0f}"),
            ("milliseconds", self.dense.milliseconds, self.small.milliseconds, "{:.2f}"),
            ("bytes", self.dense.bytes, self.small.bytes, "{:,.0f}"),
        ]
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


def compared(dense: nn.Module, small: nn.Module, example: Example) -> dict[str, Costs]:
    """Count parameters, operations and bytes of both networks, and time them side by side."""
    networks = {"dense": dense, "small": small}
    calls = {name: _Call(network, example) for name, network in networks.items()}
    times = latency(calls, torch.empty(0), rounds=9, calls=3)
    found = {}
    for name, network in networks.items():
        tensors = [*network.parameters(), *network.buffers()]
        found[name] = Costs(
            parameters=sum(p.numel() for p in network.parameters()),
            macs=count_flops(calls[name], torch.empty(0)) // 2,
            milliseconds=times[name].median,
            bytes=sum(t.numel() * t.element_size() for t in tensors),
        )
    return found


class _Call(nn.Module):
    """A network with its inputs, so that any kind of call can be counted and timed."""

    def __init__(self, network: nn.Module, example: Example) -> None:
        super().__init__()
        self.network, self.example = network, example

    def forward(self, _: Tensor) -> Any:
        return self.network(*self.example.args, **self.example.kwargs)


def score_of(network: nn.Module, validate: Callable[[nn.Module], float] | None) -> float | None:
    """What the user's own measure gives for a network in eval mode.

    Raises:
        ValueError: If it is no finite number.
    """
    if validate is None:
        return None
    try:
        score = float(validate(network))
    except (TypeError, ValueError) as error:
        raise ValueError(f"validate must return a number: {error}") from None
    network.eval()  # it may have been switched
    if not math.isfinite(score):
        raise ValueError(f"validate returned {score}; it must return a finite number")
    return score
