"""Encoded images (PNG, JPEG, …) as arrays; needs Pillow."""

import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l0arm.lab.data.errors import DataError

__all__ = ["as_colour", "decode_image", "optional"]

GREY = frozenset({"1", "L", "LA"})
COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})


def decode_image(encoded: bytes | Path, where: object) -> npt.NDArray[np.uint8]:
    """One image as uint8 ``(C, H, W)``: C = 1 for greyscale, 3 for any colour."""
    pillow = optional("PIL.Image", "Pillow")
    try:
        with pillow.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            mode = image.mode
            known = mode in GREY | COLOUR
            pixels = np.array(image.convert("L" if mode in GREY else "RGB") if known else 0)
    # Which exception Pillow raises depends on the format and on where the damage is.
    except (OSError, SyntaxError, EOFError, ValueError, pillow.DecompressionBombError) as error:
        raise DataError(f"{where}: is no readable image ({error}); replace or remove it") from error
    if not known:
        raise DataError(
            f"{where}: pixels of mode {mode!r} are not 8 bits deep; convert the image to 8 bit "
            "greyscale or RGB"
        )
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def as_colour(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A greyscale image in three equal channels; a colour image as it is."""
    return np.broadcast_to(image, (3, *image.shape[1:]))


def optional(module: str, package: str) -> Any:
    """Import a module of the extra ``data``, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{package} is needed to read encoded images: pip install 'l0arm[data]'"
        ) from error
