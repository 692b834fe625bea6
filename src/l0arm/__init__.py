"""l0arm: networks that learn to be small.

Every unit of a network gets a stochastic binary gate z ~ Bernoulli(g(phi)); phi is trained jointly
with the weights, and closed units are not computed, in training or after.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

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
