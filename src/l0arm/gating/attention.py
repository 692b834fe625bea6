"""``nn.MultiheadAttention`` with any number of heads left: the module that replaces it.

The original hands its weights to a function that insists on ``embed_dim`` rows per projection, so
it cannot run with fewer heads. This one holds the very same parameters under the same names, and
takes the number of heads from their shapes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.gating.norms import exchange_norm

PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def replaceable(module: nn.Module) -> bool:
    """Plain multi-head attention, without the learned key and value it may add to a sequence."""
    return (
        type(module) is nn.MultiheadAttention
        and module.bias_k is None
        and not module.add_zero_attn
        and not module._forward_pre_hooks
        and not module._forward_hooks
    )


class HeadAttention(nn.Module):
    """Multi-head attention by whole heads of ``head_dim`` positions.

    >>> original = nn.MultiheadAttention(8, 2, batch_first=True).double()
    >>> x = torch.rand(3, 5, 8, dtype=torch.float64)
    >>> bool(torch.allclose(HeadAttention(original)(x, x, x)[0], original(x, x, x)[0]))
    True
    """

    in_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    divisor: float | None = None  # of scores: the root of the full width of a head
    _qkv_same_embed_dim = False  # keeps nn.TransformerEncoderLayer from its fused path

    def __init__(self, original: nn.MultiheadAttention) -> None:
        super().__init__()
        for name in ("in_proj_weight", "in_proj_bias", *PROJECTIONS):
            self.register_parameter(name, getattr(original, name))
        self.out_proj = original.out_proj
        self.embed_dim, self.head_dim = original.embed_dim, original.head_dim
        self.divisor = math.sqrt(self.head_dim)
        self.dropout, self.batch_first = original.dropout, original.batch_first
        self.training = original.training

    @property
    def num_heads(self) -> int:
        """Heads left."""
        heads: int = self.out_proj.weight.shape[1] // self.head_dim
        return heads

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The same as the original's, which see."""
        alone = query.dim() == 2
        inputs = [self._batch_first(t, alone) for t in (query, key, value)]
        q, k, v = (self._heads(t) for t in self._projected(*inputs))
        mask = _merged(attn_mask, key_padding_mask, q, k, is_causal)
        rate = self.dropout if self.training else 0.0
        divisor = self.divisor or math.sqrt(self.head_dim)
        if need_weights:
            scores = q @ k.transpose(-2, -1) / divisor
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), rate)
            out = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights.squeeze(0) if alone else weights
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, rate, scale=1.0 / divisor)
            weights = None
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        out = out.squeeze(0) if alone else out if self.batch_first else out.transpose(0, 1)
        return out, weights

    def _batch_first(self, x: Tensor, alone: bool) -> Tensor:
        return x.unsqueeze(0) if alone else x if self.batch_first else x.transpose(0, 1)

    def _projected(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        parts: list[Tensor | None] = [None] * 3
        if self.in_proj_bias is not None:
            parts = list(self.in_proj_bias.chunk(3))
        if self.in_proj_weight is not None:
            weights = list(self.in_proj_weight.chunk(3))
        else:
            weights = [getattr(self, name) for name in PROJECTIONS]
        return [F.linear(*each) for each in zip((q, k, v), weights, parts, strict=True)]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


def _merged(
    mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor, causal: bool
) -> Tensor | None:
    """All masks as one that is added to the scores, (batch, heads, queries, keys) or broadcast."""
    parts = []
    if mask is not None:
        mask = _additive(mask, q)
        parts.append(mask.view(len(q), -1, *mask.shape[1:]) if mask.dim() == 3 else mask)
    elif causal:
        ahead = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        parts.append(_additive(ahead, q))
    if padding is not None:
        batch = padding if padding.dim() == 2 else padding.unsqueeze(0)
        parts.append(_additive(batch, q)[:, None, None, :])
    return sum(parts[1:], parts[0]) if parts else None


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """True means: not to be looked at."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def replace_attention(model: nn.Module) -> tuple[str, ...]:
    """Exchange every attention that can be; their names."""
    names = [name for name, module in model.named_modules() if name and replaceable(module)]
    for name in names:
        exchange(model, name)
    return tuple(names)


def exchange(model: nn.Module, name: str) -> None:
    """Replace one ``nn.MultiheadAttention`` by a ``HeadAttention``, under all its names.

    A plain ``nn.LayerNorm`` is replaced by a ``FullWidthLayerNorm``.

    ``sparsify`` does this with the modules that a plan replaces. The parameters stay the same
    objects. A module that is a ``HeadAttention`` already is left as it is.

    Args:
        model: The model to change.
        name: Name of the module in ``model.named_modules()``.

    Raises:
        ValueError: If the module is not a plain ``nn.MultiheadAttention``.

    Example:
        >>> model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> exchange(model, "self_attn")
        >>> type(model.self_attn).__name__
        'HeadAttention'
    """
    original = dict(model.named_modules()).get(name)
    if isinstance(original, HeadAttention):
        return
    if isinstance(original, nn.LayerNorm):
        exchange_norm(model, name)
        return
    if not isinstance(original, nn.MultiheadAttention) or not replaceable(original):
        raise ValueError(
            f"the plan replaces '{name}', which is {type(original).__name__} and not a plain "
            "nn.MultiheadAttention; plan this model anew"
        )
    new = HeadAttention(original)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # only its fused layers can take one
        for key, child in module._modules.items():
            if child is original:
                module._modules[key] = new
