"""Whole layers that are gone: where all branches of a layer are closed, it returns its input.

In the small network such a layer is still called and adds zeros. A plain model of transformers has
fewer layers instead, and counts those that are left from 0. So tensors have other names there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from l0arm.compaction.saved.weights import SavedError
from l0arm.gating import Branch, Gated
from l0arm.gating.layout import named_tensors


@dataclass(frozen=True)
class LayersLeft:
    """Which layers of which lists are left; lists that are not named here have all of them."""

    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by the name of the list

    def plain_name(self, name: str) -> str:
        """The name that a tensor or module has where layers are counted anew."""
        for home, number, rest in self._parts(name):
            if number in self.left[home]:
                return f"{home}.{self.left[home].index(number)}{rest}"
        return name

    def own_name(self, name: str) -> str:
        """The reverse of ``plain_name``."""
        for home, number, rest in self._parts(name):
            if number < len(self.left[home]):
                return f"{home}.{self.left[home][number]}{rest}"
        return name

    def is_gone(self, name: str) -> bool:
        """Whether a tensor or module is in a layer that is gone."""
        return any(number not in self.left[home] for home, number, _ in self._parts(name))

    def _parts(self, name: str) -> Iterator[tuple[str, int, str]]:
        """The list that a name is in, the number of the layer there, and the rest."""
        for home in self.left:
            number, dot, rest = name.removeprefix(f"{home}.").partition(".")
            if name.startswith(f"{home}.") and number.isdigit():
                yield home, int(number), dot + rest

    @classmethod
    def of(cls, gated: Gated, z: Tensor, way_out: str) -> LayersLeft:
        """Of a gated model under z; raises if a closed branch is not in a layer that is gone."""
        model = gated.model
        closed = [
            branch
            for number, group in enumerate(gated.groups)
            for branch, gate in zip(
                group.branches, z[gated.layout.span(number)].tolist(), strict=False
            )
            if gate == 0
        ]
        lists: dict[str, set[int]] = {}
        for branch in closed:
            home, number = _layer(model, branch.modules[0], way_out)
            lists.setdefault(home, set()).add(number)
            _check_nothing_left(model, f"{home}.{number}", closed, way_out)
        left = {}
        for home, gone in lists.items():
            layers = model.get_submodule(home)
            assert isinstance(layers, nn.ModuleList)
            left[home] = tuple(n for n in range(len(layers)) if n not in gone)
            if not left[home]:
                raise SavedError(f"uniform=True: all layers of '{home}' are closed; {way_out}")
        return cls(left)


def _layer(model: nn.Module, module: str, way_out: str) -> tuple[str, int]:
    """The layer that a module belongs to: the outermost list of modules, and its place there."""
    parts = module.split(".")
    for place in range(1, len(parts)):
        home = ".".join(parts[:place])
        if isinstance(model.get_submodule(home), nn.ModuleList):
            return home, int(parts[place])
    raise SavedError(
        f"uniform=True: the residual branch '{module}' is closed, and it is not in a layer that a "
        f"configuration counts; {way_out}"
    )


def _check_nothing_left(
    model: nn.Module, layer: str, closed: Sequence[Branch], way_out: str
) -> None:
    for name in named_tensors(model):
        if name.startswith(f"{layer}.") and not any(branch.holds(name) for branch in closed):
            raise SavedError(
                f"uniform=True: a residual branch of '{layer}' is closed, but '{name}' is left. A "
                f"configuration counts layers with all their branches; close all, or {way_out}"
            )
