"""Integer attributes that repeat a shape, set true again after a cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


def update_attributes(module: nn.Module) -> None:
    """``in_features``, ``out_channels``, ``num_features``, ... as the tensors now are.

    >>> layer = nn.Linear(4, 3)
    >>> layer.weight = nn.Parameter(layer.weight[:2])
    >>> update_attributes(layer); layer.out_features
    2
    """
    for kind, update in UPDATES.items():
        if isinstance(module, kind):
            update(module)
            return
    if type(module).__name__ == "Conv1D" and {"nf", "nx"} <= vars(module).keys():
        module.nx, module.nf = module.weight.shape  # type: ignore[misc, assignment]


def _linear(module: nn.Linear) -> None:
    if module.weight.dim() == 2:  # a subclass may keep another kind of weight
        module.out_features, module.in_features = module.weight.shape


def _transposed(module: _ConvTransposeNd) -> None:
    first, second = module.weight.shape[:2]
    module.in_channels, module.out_channels = first, second * module.groups


def _convolution(module: _ConvNd) -> None:
    first, second = module.weight.shape[:2]
    module.out_channels, module.in_channels = first, second * module.groups


def _batch_norm(module: _NormBase) -> None:
    rows = module.weight if module.weight is not None else module.running_mean
    if isinstance(rows, Tensor):
        module.num_features = rows.shape[0]


def _group_norm(module: nn.GroupNorm) -> None:
    if module.affine:
        module.num_channels = module.weight.shape[0]


def _prelu(module: nn.PReLU) -> None:
    module.num_parameters = module.weight.shape[0]


def _embedding(module: nn.Embedding) -> None:
    module.num_embeddings, module.embedding_dim = module.weight.shape


UPDATES: dict[type[nn.Module], Callable[[Any], None]] = {
    nn.Linear: _linear,
    _ConvTransposeNd: _transposed,
    _ConvNd: _convolution,
    _NormBase: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.PReLU: _prelu,
    nn.Embedding: _embedding,
}
