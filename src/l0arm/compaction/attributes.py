"""Integer attributes that repeat a shape, set true again after a cut."""

from __future__ import annotations

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
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _ConvNd):
        first, second = module.weight.shape[:2]
        if isinstance(module, _ConvTransposeNd):
            module.in_channels, module.out_channels = first, second * module.groups
        else:
            module.out_channels, module.in_channels = first, second * module.groups
    elif isinstance(module, _NormBase):
        rows = module.weight if module.weight is not None else module.running_mean
        if isinstance(rows, Tensor):
            module.num_features = rows.shape[0]
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape
