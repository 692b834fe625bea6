"""Does dropping equal zeroing? Asked of a copy of the model, in float64 where it can be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm.groups import Group
from l0arm.groups.draw import Draw
from l0arm.groups.engine import Engine
from l0arm.groups.layout import Layout, resolve
from l0arm.groups.modes import quiet
from l0arm.planning.capture import output_names

SEED = 0x10A2


class Trial:
    """A scratch model with weights shaken, so that zeros in a fresh network hide nothing."""

    def __init__(
        self,
        scratch: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        outputs: Collection[str],
    ) -> None:
        self.model, self.outputs = scratch, outputs
        self.random = torch.Generator().manual_seed(SEED)
        shake(scratch, self.random)
        lively = pytree.tree_map(self._lively, (tuple(args), dict(kwargs)))
        self.args, self.kwargs = lively
        self._use_float64()
        self.trains = self._runs_in_training()

    def _lively(self, value: Any) -> Any:
        """An input of zeros or ones would hide differences."""
        if (
            not _is_floating(value)
            or value.numel() < 2
            or bool((value != value.flatten()[0]).any())
        ):
            return value
        return value + torch.randn(value.shape, generator=self.random).to(value)

    def _use_float64(self) -> None:
        """float64 tells a mistake from rounding; a model that cannot run in it keeps its type."""
        types = {key: tensor.dtype for key, tensor in self.model.state_dict().items()}
        args, kwargs = pytree.tree_map(_double, (self.args, self.kwargs))
        try:
            self.model.double()
            with quiet(self.model):
                self.model(*args, **kwargs)
        except Exception:  # whatever its forward raises, its own type will do
            for key, tensor in self.model.state_dict(keep_vars=True).items():
                tensor.data = tensor.data.to(types[key])
        else:
            self.args, self.kwargs = args, kwargs

    def _runs_in_training(self) -> bool:
        try:
            with quiet(self.model):
                self.model.train()
                self.model(*self.args, **self.kwargs)
        except Exception:  # such as BatchNorm on a single value: then it cannot be asked
            return False
        return True

    def agrees(self, groups: Sequence[Group]) -> bool:
        """Whether the outputs under dropping and zeroing are equal, on every mask."""
        if not groups:
            return True
        layout = resolve(self.model, groups)
        engine = Engine(self.model, layout)
        try:
            with quiet(self.model):
                equal = all(self._equal(engine, layout, z) for z in self._masks(layout))
                return equal and self._trained(engine, layout)
        finally:
            engine.detach()

    def _trained(self, engine: Engine, layout: Layout) -> bool:
        """A branch that only training takes may need the units too: then it raises."""
        if not self.trains:
            return True
        self.model.train()
        try:
            z = next(self._masks(layout))
            self._run(engine, Draw(layout, z, sliced=True, writes=False))
        except Exception:  # sizes that do not fit raise anything
            return False
        finally:
            self.model.eval()
        return True

    def _masks(self, layout: Layout) -> Iterator[Tensor]:
        """In every group: one unit closed, half of them, all but one."""
        for kind in ("one", "half", "rest"):
            z = torch.ones(layout.gates, device=next(self.model.parameters()).device)
            for number, group in enumerate(layout.groups):
                z[layout.span(number)] = _mask(kind, group.units, self.random).to(z)
            yield z

    def _equal(self, engine: Engine, layout: Layout, z: Tensor) -> bool:
        try:
            dropped = self._run(engine, Draw(layout, z, sliced=True, writes=False))
        except Exception:  # sizes that do not fit raise anything
            return False
        zeroed = self._run(engine, Draw(layout, z, sliced=False, writes=False))
        if not any(_is_floating(value) for value in zeroed):
            return False  # nothing that could tell a difference
        return all(_close(d, m) for d, m in zip(dropped, zeroed, strict=True))

    def _run(self, engine: Engine, draw: Draw) -> list[Tensor]:
        with engine.evaluating(draw):
            output = self.model(*self.args, **self.kwargs)
        leaves = zip(output_names(output), pytree.tree_leaves(output), strict=True)
        return [
            leaf
            for name, leaf in leaves
            if isinstance(leaf, Tensor) and (not self.outputs or name in self.outputs)
        ]


def _mask(kind: str, units: int, random: torch.Generator) -> Tensor:
    z = torch.ones(units)
    if kind == "one":
        z[torch.randint(units, (1,), generator=random)] = 0
    elif kind == "half":
        z[torch.randperm(units, generator=random)[: units // 2]] = 0
    else:
        z[:] = 0
        z[torch.randint(units, (1,), generator=random)] = 1
    return z


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not torch.is_floating_point(other):
        return bool((one == other).all())
    finite = other.isfinite()
    if not bool((one.isfinite() == finite).all()):
        return False
    size = other[finite].abs().max() if bool(finite.any()) else other.new_ones(())
    allowed = 1e-9 if other.dtype == torch.float64 else 1e3 * torch.finfo(other.dtype).eps
    return bool(((one - other)[finite].abs() <= allowed * size).all())


def shake(model: nn.Module, random: torch.Generator) -> None:
    """Move every parameter and running statistic away from the zeros and ones it may start at."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if torch.is_floating_point(tensor) and tensor.numel():
                noise = torch.randn(tensor.shape, generator=random).to(tensor)
                if isinstance(tensor, nn.Parameter):
                    fan_in = max(1, tensor[0].numel()) if tensor.dim() > 1 else 16
                    tensor.add_(noise, alpha=0.5 * fan_in**-0.5)
                elif name.endswith("running_mean"):
                    tensor.add_(noise, alpha=0.1)
                elif name.endswith("running_var"):
                    tensor.mul_(1 + 0.3 * noise.tanh())


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and torch.is_floating_point(value)


def _double(value: Any) -> Any:
    return value.double() if _is_floating(value) else value
