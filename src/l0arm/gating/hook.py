"""A pair of hooks on one module: the draw's tensors before its forward, its own ones after it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from l0arm.gating.branches import Closed
from l0arm.gating.draw import Draw
from l0arm.gating.layout import Layout, TensorCut
from l0arm.gating.norms import rms_attributes
from l0arm.gating.resizing import Resized, Scales, scales_under
from l0arm.gating.slicing import flat_weights, theta, write_back
from l0arm.gating.threads import THIS

if TYPE_CHECKING:
    from l0arm.gating.engine import Engine

Absent = tuple[int, str, tuple[str, ...]]  # gate, module below the one that is called, returns


class Loan(NamedTuple):
    """A tensor that is installed while another module runs than its own."""

    home: dict[str, Any]  # the parameters or buffers of its own module
    key: str
    cut: TensorCut


class ModuleHook:
    """Replaces one module's tensors by those of the draw, for the length of its forward."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        module: nn.Module,
        cuts: dict[int, TensorCut],
        absent: list[Absent],
    ) -> None:
        self.engine = engine
        self.name = name
        self.called = False
        self.parameters = {
            key: cuts[id(p)] for key, p in module._parameters.items() if id(p) in cuts
        }
        self.buffers = {key: cuts.get(id(b)) for key, b in module._buffers.items() if b is not None}
        layout = engine.layout
        self.selection = layout.selections.get(name)
        self.patches = layout.patches.get(name, {})
        calls = [resize.module for group in layout.groups for resize in group.resizes]
        calls += [pick.module for group in layout.groups for pick in group.picks]
        calls += [route.module for group in layout.groups for route in group.routes]
        calls += [dot.module for group in layout.groups for dot in group.dots if dot.counted]
        calls += [widen.module for group in layout.groups for widen in group.widens]
        self.resizes = name in calls
        self.borrowed = _loans(module, name, cuts, layout)
        self.absent = absent  # what is not called in the module if gates are closed
        self.branches = [gate for gate, branch in layout.branches if branch.holds(name)]
        self.rms = next((cut for cut in self.parameters.values() if cut.rms is not None), None)
        self.draw: Draw | None = None  # in force during the call
        self.saved: list[tuple[dict[str, Any], str, Any]] = []  # what to put back after the call
        self.homes: tuple[Any, ...] = ()  # where torch has the two hooks
        self.keys: tuple[int, ...] = ()
        self.copies: dict[str, tuple[Tensor, Tensor, int]] = {}  # buffers: original, copy, version

    @property
    def installed(self) -> bool:
        return bool(self.saved)

    @property
    def needed(self) -> bool:
        changes = self.parameters or self.buffers or self.selection or self.patches
        return bool(changes or self.absent or self.resizes or self.borrowed)

    @property
    def narrows(self) -> bool:
        """Whether a draw takes input channels away."""
        weight = self.parameters.get("weight")
        return weight is not None and 1 in weight.axes

    def register(self, module: nn.Module) -> list[RemovableHandle | Resized]:
        sized = [DrawnSizes(module, self).install()] if self.resizes else []
        before = module.register_forward_pre_hook(self.enter, prepend=True, with_kwargs=True)
        after = module.register_forward_hook(self.leave, always_call=True)
        self.homes = module._forward_pre_hooks, module._forward_hooks
        self.keys = before.id, after.id
        return [*sized, before, after]

    def hush(self) -> bool:
        """Take both hooks off, unless there are others. Whether they are off."""
        (before, after), (first, second) = self.homes, self.keys
        alone = len(before) == len(after) == 1 and not self.resizes
        if alone:
            del before[first], after[second]
        return alone

    def listen(self) -> None:
        """Put both hooks back where they are off."""
        (before, after), (first, second) = self.homes, self.keys
        if first not in before:
            before[first] = self.enter
            before.move_to_end(first, last=False)  # as at first, before those of the user
        if second not in after:
            after[second] = self.leave

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        engine = self.engine
        if engine.turn.owner is not THIS.thread:
            engine.begin_call(self)
            if not engine.attached:  # released meanwhile: ``leave`` will not be called
                engine.end()
                return None
        draw = engine.draw_now()
        if self.saved or (draw is None and engine.entered):
            engine.restart_call(self)
        self.draw = draw
        if draw is None:
            return None
        if torch.compiler.is_compiling():
            engine.traced = True
        self.called = True
        engine.calls += 1
        if draw.dense and (draw.writes or not self.buffers):  # nothing to install
            self.draw = None
            return None
        engine.entered.append(self)
        if self.parameters or self.borrowed:
            self._enter_parameters(module, draw)
        for key, buffer_spec in self.buffers.items():
            self._enter_buffer(module, key, buffer_spec, draw)
        if draw.sliced and (self.absent or self.patches or self.rms is not None):
            self._enter_structure(module, draw)
        if not self.saved and not self.resizes:  # the draw changes nothing here
            self.draw = None
            engine.entered.remove(self)
        if self.selection is None or not draw.sliced:
            return None
        dim, axis = self.selection
        local = draw.kept(axis).local
        return None if local is None else gather(module, args, kwargs, dim, local)

    def leave(self, module: nn.Module, args: object, output: object) -> None:
        draw = self.draw
        if draw is None:
            if self.engine.outermost is self:
                self.engine.end()
            return
        try:
            writes = self.copies and self._writes
            for key, (original, installed, version) in self.copies.items() if writes else ():
                now, spec = module._buffers[key], self.buffers[key]
                touched = now is not installed or _version(now) != version
                if now is not None and (touched or (module.training and _counts_rows(spec))):
                    write_back(original, now, spec, draw)
        finally:
            self.restore()

    def restore(self) -> None:
        """Put the module's own tensors back."""
        engine = self.engine
        for home, key, value in reversed(self.saved):
            home[key] = value
            if engine.lent:
                engine.lent.discard((id(home), key))
        self.saved.clear()
        self.copies.clear()
        self.draw = None
        engine.entered.remove(self)
        if engine.outermost is self:
            engine.end()

    def _enter_parameters(self, module: nn.Module, draw: Draw) -> None:
        """Install cut parameters, and those that the module borrows from modules inside."""
        lent = self.engine.lent
        for key, spec in self.parameters.items():
            original = module._parameters[key]
            assert original is not None
            if not lent or (id(module._parameters), key) not in lent:
                cut = theta(original, spec, draw)
                if cut is not original:
                    self.saved.append((module._parameters, key, original))
                    module._parameters[key] = cut  # type: ignore[assignment]
        for home, key, spec in self.borrowed:
            if (id(home), key) not in lent:
                self._swap(home, key, theta(home[key], spec, draw))
                lent.add((id(home), key))
        if isinstance(module, nn.RNNBase) and self.parameters:  # it has them in a list, too
            self._swap(module.__dict__, "_flat_weights", flat_weights(module))

    def _enter_buffer(
        self, module: nn.Module, key: str, spec: TensorCut | None, draw: Draw
    ) -> None:
        """Install a copy of a buffer. An uncut buffer of the pass that writes stays in place."""
        original = module._buffers[key]
        assert original is not None
        if (spec is None and self._writes) or (id(module._buffers), key) in self.engine.lent:
            return
        value = original if spec is None else theta(original, spec, draw)
        copied = value.clone() if value is original else value
        self._swap(module._buffers, key, copied)
        self.copies[key] = (original, copied, _version(copied))

    def _enter_structure(self, module: nn.Module, draw: Draw) -> None:
        """Replace modules of closed branches, and attributes that count units."""
        for gate, name, returns in self.absent:
            if not draw.is_open(gate):
                home, _, key = name.rpartition(".")
                owner = module.get_submodule(home)
                self._swap(owner._modules, key, Closed(owner.get_submodule(key), returns))
        for attribute, patches in self.patches.items():
            full = getattr(module, attribute)
            left = draw.count_left(full, patches)
            if left != full:
                self._swap(module.__dict__, attribute, left)
        if self.rms is not None:
            self._enter_norm(module, self.rms, draw)

    @property
    def _writes(self) -> bool:
        """Whether the call writes buffers. That of a closed branch does not."""
        assert self.draw is not None
        return self.draw.writes and all(map(self.draw.is_open, self.branches))

    def _enter_norm(self, module: nn.Module, weight: TensorCut, draw: Draw) -> None:
        """An RMSNorm over fewer units has another epsilon."""
        (axis,) = weight.axes.values()
        index = draw.kept(axis).index
        if index is not None and weight.rms is not None:
            changed = rms_attributes(module, weight.rms, axis.size, len(index))
            for attribute, value in changed.items():
                self._swap(module.__dict__, attribute, value)

    def _swap(self, home: dict[str, Any], key: str, value: object) -> None:
        self.saved.append((home, key, home[key]))
        home[key] = value


class DrawnSizes(Resized):
    """Calls in the forward of a module, changed to what the current draw leaves."""

    def __init__(self, module: nn.Module, hook: ModuleHook) -> None:
        super().__init__(module, {})
        self.hook = hook

    def scales_now(self) -> Scales:
        draw = self.hook.draw
        if draw is None:
            return {}
        return scales_under(self.hook.engine.layout, draw, self.hook.name).get(self.hook.name, {})


def _loans(module: nn.Module, name: str, cuts: dict[int, TensorCut], layout: Layout) -> list[Loan]:
    """The tensors of modules inside that are cut while this module runs."""
    found = []
    borrows = [b for group in layout.groups for b in group.borrows if b.module == name]
    for tensor in dict.fromkeys(borrow.tensor for borrow in borrows):
        owner, _, key = tensor.removeprefix(f"{name}." if name else "").rpartition(".")
        inner = module.get_submodule(owner)
        home: dict[str, Any] = inner._parameters if key in inner._parameters else inner._buffers
        if id(home.get(key)) in cuts:
            found.append(Loan(home, key, cuts[id(home[key])]))
    return found


def _version(tensor: Tensor | None) -> int:
    """Counts in-place changes (tensors of inference mode do not count theirs)."""
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def _counts_rows(spec: TensorCut | None) -> bool:
    """A running statistic: batch_norm changes it in place without counting the change."""
    axes = [] if spec is None else list(spec.axes.values())
    return len(axes) == 1 and not any(reach.reads for reach in axes[0].reaches)


def gather(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int, index: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with the first one (by forward's signature) indexed."""
    if args:
        return (args[0].index_select(dim, index), *args[1:]), kwargs
    key = next(iter(inspect.signature(module.forward).parameters))
    return args, {**kwargs, key: kwargs[key].index_select(dim, index)}
