"""A safe unpickler for CIFAR: no code that a pickle names is ever run.

A pickle names the functions that rebuild its objects. This reader allows the few names that an
array of bytes needs, and replaces each with a stand-in that validates its arguments. Every other
name is refused. numpy itself never sees the state in the pickle.
"""

import io
import math
import pickle
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from l0arm.lab.data.dataset import DataError

__all__ = ["unpickle"]

# What a malformed pickle raises depends on where it is malformed.
MALFORMED = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError),
    *(ImportError, OverflowError, MemoryError),
)


def unpickle(content: bytes, where: str) -> dict[str, Any]:
    """The dictionary in a pickle. Keys become str, and arrays must be uint8."""
    try:
        batch = _Reader(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(batch, dict):
            raise pickle.UnpicklingError(f"it holds a {type(batch).__name__}, not a dictionary")
        return {_text(key): _array(value) for key, value in batch.items()}
    except MALFORMED as error:
        raise DataError(
            f"{where}: is not a batch as CIFAR has them ({error}); replace it with the original "
            "file"
        ) from error


class _Array:
    """Stand-in for a numpy array of bytes."""

    __slots__ = ("values",)

    def __setstate__(self, state: tuple[int, tuple[int, ...], object, bool, bytes]) -> None:
        _, shape, dtype, column_major, content = state
        if not isinstance(dtype, _Dtype) or column_major or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array is not uint8 in row order")
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} has {len(content)} bytes")
        self.values = np.frombuffer(bytearray(content), np.uint8).reshape(shape)


class _Dtype:
    """Stand-in for numpy.dtype('uint8'), the only type that is allowed. Its state is ignored."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class _MakeDtype:
    """Stand-in for the call numpy.dtype(...)."""

    __slots__ = ()

    def __call__(self, kind: object, *_: object) -> _Dtype:
        if kind not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"an array is of type {kind!r}, not uint8")
        return _Dtype()


class _NdarrayType:
    """Stand-in for the class numpy.ndarray, which is an argument of _reconstruct."""

    __slots__ = ()


class _MakeArray:
    """Stand-in for the call _reconstruct(numpy.ndarray, ...)."""

    __slots__ = ()

    def __call__(self, kind: object, *_: object) -> _Array:
        if not isinstance(kind, _NdarrayType):
            raise pickle.UnpicklingError("an array is of a type of its own")
        return _Array()


class _EncodeLatin1:
    """Stand-in for _codecs.encode, with which Python 3 writes bytes in protocol 2."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError(f"bytes are encoded as {encoding!r}")
        return text.encode("latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _MakeArray,  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _MakeArray,  # numpy 2
    ("numpy", "ndarray"): _NdarrayType,
    ("numpy", "dtype"): _MakeDtype,
    ("_codecs", "encode"): _EncodeLatin1,
}


class _Reader(pickle.Unpickler):
    # Stand-ins are instances without attributes, so a pickle can neither subclass nor change them.
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not admitted")
        return _ALLOWED[module, name]()

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to an object outside the file")


def _text(key: object) -> str:
    if not isinstance(key, str | bytes):
        raise pickle.UnpicklingError(f"key {key!r} is not a text")
    return key if isinstance(key, str) else key.decode("ascii")


def _array(value: object) -> object | npt.NDArray[np.uint8]:
    return value.values if isinstance(value, _Array) else value
