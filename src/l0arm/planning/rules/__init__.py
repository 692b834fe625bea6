"""How units pass through each family of operators; importing this registers all of them."""

from l0arm.planning.rules import (
    attention,
    contractions,
    convolution,
    embedding,
    normalisation,
    pointwise,
    pooling,
    recurrent,
    reduction,
    slicing,
    views,
)

__all__ = [
    "attention",
    "contractions",
    "convolution",
    "embedding",
    "normalisation",
    "pointwise",
    "pooling",
    "recurrent",
    "reduction",
    "slicing",
    "views",
]
