"""l0arm: networks that learn to be small.

Every unit of a network gets a stochastic binary gate z ~ Bernoulli(g(phi)); phi is trained jointly
with the weights, and closed units are not computed, in training or after.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Draws change the widths of convolutions from step to step, and oneDNN compiles a kernel for each.
# It keeps 1,024 of them, which is too few, and reads this variable at its first convolution.
if "DNNL_PRIMITIVE_CACHE_CAPACITY" not in os.environ:  # its older name
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")

if TYPE_CHECKING:
    from l0arm._public import *  # noqa: F403
    from l0arm._public import __all__ as __all__
else:
    # The public names are imported when the first of them is used, so that `l0arm --help` and
    # `l0arm --version` do not wait for torch.
    def __getattr__(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module 'l0arm' has no attribute '{name}'")
        public = import_module("l0arm._public")
        globals().update({key: getattr(public, key) for key in ("__all__", *public.__all__)})
        if name not in globals():
            raise AttributeError(f"module 'l0arm' has no attribute '{name}'")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("l0arm._public").__all__})
