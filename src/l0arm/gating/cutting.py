"""Cut a model for good: a plain copy without its closed units, by the same theta() as training."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from l0arm.gating.branches import remove_branches
from l0arm.gating.draw import Draw
from l0arm.gating.hook import gather
from l0arm.gating.kernels import guard
from l0arm.gating.layout import Layout, named_tensors
from l0arm.gating.mask import close_dead_units
from l0arm.gating.norms import FullWidthLayerNorm, rms_attributes
from l0arm.gating.resizing import Resized, scales_under
from l0arm.gating.slicing import flat_weights, theta

if TYPE_CHECKING:
    from l0arm.gating.gated import Gated

Model = TypeVar("Model", bound=nn.Module)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
BOOKKEEPING = frozenset(vars(nn.Module())) - {"training"}  # torch's own attributes of a module


def permanent_draw(gated: Gated, z: Tensor) -> Draw:
    """The draw that compaction makes permanent: z without dead units."""
    return Draw(gated.layout, close_dead_units(gated.layout, z), writes=False)


def cut_copy(gated: Gated, draw: Draw) -> nn.Module:
    """A copy of the model without our hooks, every tensor cut by the draw."""
    small = plain_copy(gated, share_hooks=True)
    cut(small, gated.layout, draw)
    return small


def plain_copy(gated: Gated, *, share_hooks: bool) -> nn.Module:
    """A copy of the dense model without our hooks.

    With ``share_hooks`` the copy has the user's own hooks, so that a hook that collects
    activations goes on collecting. Without, the hooks are copied as well: a scratch copy then
    has no effect on what they collect.
    """

    def copied() -> nn.Module:
        engine, model = gated.engine, gated.model
        engine.check_attached()
        engine.check_dense()
        # The model keeps its hooks: another thread may be waiting inside one of them.
        shared = _hooks(model) if share_hooks else {}
        copy_ = copy_model(model, {**shared, **engine.hooks})
        engine.remove_hooks(copy_)
        return copy_

    return gated.engine.alone(copied)


def _hooks(model: nn.Module) -> dict[int, Any]:
    """The user's hooks by id, but for methods of the model's own modules: these are copied."""
    own = {id(module) for module in model.modules()}
    hooks = [h for m in model.modules() for kind in HOOKS for h in getattr(m, kind).values()]
    return {id(hook): hook for hook in hooks if id(getattr(hook, "__self__", None)) not in own}


def copy_model(model: Model, shared: dict[int, Any] | None = None) -> Model:
    """A deep copy of a model; activations that it stores are copied without their graph.

    ``shared`` holds, by id, the objects that the copy shares with the original. ValueError names
    an attribute that cannot be copied (a lock, an open file).

    >>> model = nn.Linear(2, 2)
    >>> model.stored = model.weight * 2
    >>> copy_model(model).stored.requires_grad
    False
    """
    shared = shared or {}
    try:
        with _Detaching():
            return copy.deepcopy(model, dict(shared))
    except Exception as error:  # anything may have a __deepcopy__ of its own
        raise ValueError(
            f"{type(model).__name__} cannot be copied because of {_culprit(model, shared)}: "
            f"{type(error).__name__}: {str(error)[:200]}; take it out of the model, or give it a "
            "__deepcopy__"
        ) from None


class _Detaching(TorchFunctionMode):
    """Copies a tensor with a graph by its values alone, where torch would refuse."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def _culprit(model: nn.Module, shared: dict[int, Any]) -> str:
    """The first attribute that cannot be copied by itself."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in BOOKKEEPING:
                continue
            try:
                with _Detaching():
                    copy.deepcopy(value, dict(shared))
            except Exception:
                return f"'{name}.{key}'" if name else f"'{key}'"
    return "one of its tensors or hooks"


def cut(model: nn.Module, layout: Layout, draw: Draw) -> None:
    """Cut a plain model in place: attributes that count units, every tensor, whole branches.

    A tensor is replaced under all of its names, so that a tied weight stays tied.
    """
    for name, attributes in layout.patches.items():
        module = model.get_submodule(name)
        for attribute, patches in attributes.items():
            full = getattr(module, attribute)
            setattr(module, attribute, draw.count_left(full, patches))
    _cut_norms(model, layout, draw)
    for name, scales in scales_under(layout, draw).items():
        Resized(model.get_submodule(name), scales).install()
    known = named_tensors(model)
    new: dict[int, Tensor] = {}  # by identity of the old tensor
    for name, spec in layout.tensors.items():
        old = known[name]
        with torch.no_grad():
            small = theta(old, spec, draw).clone()
        is_parameter = isinstance(old, nn.Parameter)
        new[id(old)] = nn.Parameter(small, old.requires_grad) if is_parameter else small
    for module in model.modules():
        changed = False
        for home in (module._parameters, module._buffers):
            for key in [key for key, tensor in home.items() if id(tensor) in new]:
                home[key] = new[id(home[key])]  # type: ignore[assignment]
                changed = True
        if changed:  # only then: to read a weight may compute it (spectral norm)
            update_sizes(module)
            if isinstance(module, FullWidthLayerNorm):
                module.update_shape()
        guard(module)  # training may go on
    for module in model.modules():
        if parametrize.is_parametrized(module) and _is_cut(module, new):
            update_sizes(module)
    remove_branches(model, layout, draw)


def _is_cut(module: nn.Module, new: dict[int, Tensor]) -> bool:
    """Whether the tensors that a parametrization computes from were cut."""
    cut_ones = {id(tensor) for tensor in new.values()}
    return any(id(p) in cut_ones for p in module.parametrizations.parameters())  # type: ignore[union-attr]


def _cut_norms(model: nn.Module, layout: Layout, draw: Draw) -> None:
    """Give every RMSNorm the epsilon that belongs to the units left."""
    for spec in layout.tensors.values():
        index = None if spec.rms is None else draw.kept(next(iter(spec.axes.values()))).index
        if spec.rms is not None and index is not None:
            module, size = model.get_submodule(spec.rms.module), spec.axes[0].size
            for attribute, value in rms_attributes(module, spec.rms, size, len(index)).items():
                setattr(module, attribute, value)


def update_sizes(module: nn.Module) -> None:
    """Set ``in_features``, ``out_channels``, ``num_features``, ... to the shapes of the tensors.

    >>> layer = nn.Linear(4, 3)
    >>> layer.weight = nn.Parameter(layer.weight[:2])
    >>> update_sizes(layer); layer.out_features
    2
    """
    if isinstance(module, nn.Linear):
        if module.weight.dim() == 2:  # a subclass may keep another kind of weight
            module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _ConvTransposeNd):
        module.in_channels = module.weight.shape[0]
        module.out_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, _ConvNd):
        module.out_channels = module.weight.shape[0]
        module.in_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, _NormBase):
        rows = module.weight if module.weight is not None else module.running_mean
        if isinstance(rows, Tensor):
            module.num_features = rows.shape[0]
    elif isinstance(module, nn.GroupNorm) and module.affine:
        module.num_channels = module.weight.shape[0]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = module.weight.shape[0]
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.num_embeddings, module.embedding_dim = module.weight.shape
    elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
        _update_recurrent(module)
    elif type(module).__name__ == "Conv1D" and {"nf", "nx"} <= vars(module).keys():
        module.nx, module.nf = module.weight.shape  # type: ignore[misc, assignment]


def _update_recurrent(module: nn.RNNBase | nn.RNNCellBase) -> None:
    """Sizes of a recurrent module, and the list in which it has its weights once more."""
    tensors = dict(module.named_parameters())
    suffix = "_l0" if isinstance(module, nn.RNNBase) else ""
    module.input_size = tensors[f"weight_ih{suffix}"].shape[1]
    rows = len(tensors[f"weight_ih{suffix}"])
    gates = {"LSTM": 4, "GRU": 3}.get(type(module).__name__.removesuffix("Cell"), 1)
    module.hidden_size = rows // gates  # with a projection, the state is narrower
    if isinstance(module, nn.RNNBase):
        module._flat_weights = flat_weights(module)


def select_inputs(model: nn.Module, layout: Layout, draw: Draw) -> nn.Module:
    """Wrap the readers whose gates are finer than the producer can drop: they select inputs."""
    for name, (dim, axis) in layout.selections.items():
        local = draw.kept(axis).local
        if local is not None:
            reader = model.get_submodule(name)
            module = InputSelection(reader, dim, local).train(reader.training)
            if not name:
                return module
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module)
    return model


class InputSelection(nn.Module):
    """A module that reads selected positions of its input: ``module(x[..., index])``.

    Compaction leaves one where inputs are gated that no producer can stop sending, such as the
    pixels of an image.

    Args:
        module: The module that reads the selected positions.
        dim: The dimension of its first input that is selected from.
        index: The positions to read.

    Example:
        >>> import torch
        >>> InputSelection(nn.Identity(), -1, torch.tensor([0, 2]))(torch.tensor([[5.0, 6.0, 7.0]]))
        tensor([[5., 7.]])
    """

    index: Tensor

    def __init__(self, module: nn.Module, dim: int, index: Tensor) -> None:
        super().__init__()
        self.module = module
        self.dim = dim
        self.register_buffer("index", index)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if args:  # as almost always; a few microseconds count in a small network
            return self.module(args[0].index_select(self.dim, self.index), *args[1:], **kwargs)
        args, kwargs = gather(self.module, args, kwargs, self.dim, self.index)
        return self.module(*args, **kwargs)

    def extra_repr(self) -> str:
        return f"{self.index.numel()} positions of dim {self.dim}"
