"""The hooks of a gated model: one for every module that owns something a draw changes.

They take the tensors from the current draw (hook.py), so the user's forward runs unmodified, and
deepcopy works.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from l0arm.gating.branches import caller_of
from l0arm.gating.draw import Draw
from l0arm.gating.evaluation import Evaluations
from l0arm.gating.hook import Absent, DrawnSizes, ModuleHook
from l0arm.gating.kernels import guard
from l0arm.gating.layout import Layout, named_tensors
from l0arm.gating.resizing import Resized
from l0arm.gating.widths import Widths

# Where torch keeps the hooks that are registered here, and how to call them.
HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


class Engine(Evaluations):
    """The current draw, and a hook on every module that owns something a draw changes."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.traced = False  # whether torch.compile took a hook into its graph
        self._handles: list[RemovableHandle | Resized] = []
        self._hooks: list[ModuleHook] = []
        self._checked = False
        self.lent: set[tuple[int, str]] = set()  # cut for a call around their own module's
        self.buffers: list[dict[str, Tensor | None]] = []  # of all modules
        self.widths = Widths(model, layout)
        self.attach(model)

    def attach(self, model: nn.Module) -> None:
        """Register the hooks. A module that no draw changes gets none."""
        _refuse_second_engine(model)
        known = named_tensors(model)
        # By identity, so that a tied weight is cut wherever it is used.
        cuts = {id(known[name]): spec for name, spec in self.layout.tensors.items()}
        inside: dict[str, list[Absent]] = {}
        for gate, branch in self.layout.branches:
            for absent, returns in zip(branch.modules, branch.returns, strict=True):
                around = caller_of(model, absent)
                below = absent.removeprefix(f"{around}.")
                inside.setdefault(around, []).append((gate, below, returns))
        for name, module in model.named_modules():
            hook = ModuleHook(self, name, module, cuts, inside.get(name, []))
            self.buffers.append(module._buffers)
            if hook.needed:
                self._handles += hook.register(module)
                self._hooks.append(hook)
            guarded = guard(module, cut=hook.narrows)  # after the cut, before the module
            if guarded is not None:
                self._handles.append(guarded)

    @property
    def attached(self) -> bool:
        """Whether the hooks are on."""
        return bool(self._handles)

    def check_attached(self) -> None:
        """Raise if the model was released: without hooks it would silently run dense."""
        if not self.attached:
            raise RuntimeError(
                "this Gated was released: its model has no gates any more; compact before "
                "release(), or gate the model again with sparsify(gated.model, ...)"
            )

    def detach(self) -> None:
        """Remove the hooks."""
        self.listen()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooks.clear()

    def hush(self, draw: Draw) -> None:
        """Take the hooks off for the length of a call, if this draw changes nothing.

        Torch calls a module without hooks faster. With other threads, the hooks are what lets them
        wait. The first call counts which modules are called.
        """
        if torch.compiler.is_compiling() or not draw.dense or draw is not self.current:
            return
        idle = self._checked and (draw.writes or not any(self.buffers))
        if not idle or self.hushed or threading.active_count() > 1:
            return
        self.hushed = True  # first of all: an interrupt may follow
        for hook in self._hooks:
            self.calls += hook.hush()

    def listen(self) -> None:
        """Put the hooks back. Can be repeated after an interrupt."""
        for hook in self._hooks:
            hook.listen()
        self.hushed = False

    @property
    def hooks(self) -> dict[int, Any]:
        """The functions that are registered as hooks or stand in for a forward, by id."""
        hooks: dict[int, Any] = {}
        for handle in self._handles:
            hook: Any = handle
            if not isinstance(handle, Resized):
                hook = (handle.hooks_dict_ref() or {}).get(handle.id)
            hooks[id(hook)] = hook
        return hooks

    def remove_hooks(self, copy: nn.Module) -> None:
        """Remove the hooks of this engine from a copy of the model, which shares them."""
        ours = {handle.id for handle in self._handles if not isinstance(handle, Resized)}
        for module in copy.modules():
            forward = vars(module).get("forward")
            if isinstance(forward, DrawnSizes) and forward in self._handles:
                forward.remove_from(module)
            for kind in HOOKS:
                registered = getattr(module, kind)
                for key in ours.intersection(registered):
                    del registered[key]

    def warn_of_uncalled(self) -> None:
        """After the first forward pass, warn of cut tensors whose module was not called."""
        if self._checked:
            return
        self._checked = True
        seen = {id(cut) for h in self._hooks if h.called for cut in h.parameters.values()}
        seen |= {id(loan.cut) for h in self._hooks if h.called for loan in h.borrowed}
        silent = [
            (h, key) for h in self._hooks for key in h.parameters if not (h.called or h.branches)
        ]
        unseen = [(h, key) for h, key in silent if id(h.parameters[key]) not in seen]
        names = ", ".join(f"'{h.name}.{key}'" for h, key in unseen)
        if names:
            warnings.warn(
                f"groups cut {names}, but this forward pass did not call the modules that own "
                "them; code that reads these tensors without calling the module does not see the "
                "gates. If they are used, call the module or leave them out of the groups",
                stacklevel=3,
            )


def gated_module(model: nn.Module) -> str | None:
    """The name of the first module with hooks of a Gated. None if there is none."""
    for name, module in model.named_modules():
        hooks = module._forward_pre_hooks.values()
        if any(isinstance(getattr(hook, "__self__", None), ModuleHook) for hook in hooks):
            return str(name)
    return None


def _refuse_second_engine(model: nn.Module) -> None:
    name = gated_module(model)
    if name is not None:
        raise ValueError(
            f"the module '{name}' is gated already by another Gated; go on with that one, "
            "or take its gates off first with its release()"
        )
