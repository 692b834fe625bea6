"""Data sets: the small one that comes with the package."""

from l0arm.data.mini import MnistMini, mnist_mini

__all__ = ["MnistMini", "mnist_mini"]
