"""A file of tensors (safetensors), validated by its header before any tensor is read.

The format: eight bytes with the length of the header, the header as JSON (name -> dtype, shape,
first and last byte), then the bytes of the tensors, one after the other without gaps.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.files import LARGEST_JSON, parse_json
from l0arm.gating.layout import named_tensors
from l0arm.gating.records import RecordError, checked

DIMENSIONS = 64  # more than torch lets a tensor have
DTYPES = {  # as safetensors writes them: name in torch, bytes of one number
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
KNOWN = {name for name, _ in DTYPES.values()}


class SavedError(ValueError):
    """A saved network is refused, or a network cannot be saved. The message says why.

    Example:
        >>> import l0arm, tempfile
        >>> try:
        ...     l0arm.load(tempfile.mkdtemp(), l0arm.models.MLP)
        ... except l0arm.SavedError as error:
        ...     print(error)
        /... has no l0arm.json: it is not a network that l0arm.save wrote
    """


@dataclass(frozen=True)
class TensorInfo:
    """The shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> TensorInfo:
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    @classmethod
    def read(cls, shape: list[Any], dtype: str, where: str) -> TensorInfo:
        """From a record that anybody may have written."""
        if len(shape) > DIMENSIONS or not all(type(n) is int and 0 <= n < 2**48 for n in shape):
            raise SavedError(f"{where}: no tensor has the shape {str(shape)[:80]}")
        if dtype not in KNOWN:
            raise SavedError(f"{where}: numbers of kind {dtype[:40]!r} are not known here")
        return cls(tuple(shape), dtype)

    @property
    def numbers(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        """The dtype, but for the precision of floats."""
        return "float" if "float" in self.dtype else self.dtype

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


def tensors_once(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each under the first of its names: a tied weight has several."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in named_tensors(model).items():
        first.setdefault(id(tensor), (name, tensor))
    return dict(first.values())


def tensor_infos(model: nn.Module) -> dict[str, TensorInfo]:
    """Shape and dtype of every tensor of a model."""
    return {name: TensorInfo.of(tensor) for name, tensor in tensors_once(model).items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors in contiguous form."""
    safetensors = _safetensors()
    plain = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    try:
        safetensors.torch.save_file(plain, path, metadata={"format": "pt"})  # as hubs expect
    except safetensors.SafetensorError as error:  # of a full disk
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from None


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors one by one; validate the header first."""
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)
    except safetensors.SafetensorError as error:
        raise SavedError(f"{path}: {error}") from None


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors that a file declares, if its header is sound and all of them lie within it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_JSON):
            raise SavedError(
                f"{path} is cut off or no safetensors file: it says that its header has {length:,} "
                f"bytes, and the whole file has {size:,}"
            )
        try:
            record = parse_json(file.read(length))
        except ValueError as error:
            message = f"the header of {path} is not sound JSON: {str(error)[:200]}"
            raise SavedError(message) from None
    if not isinstance(record, dict):
        raise SavedError(f"the header of {path} must be a JSON object")
    record.pop("__metadata__", None)
    found, spans = {}, []
    for name, entry in record.items():
        found[name], span = _entry(entry, f"{path}, tensor {name[:80]!r}")
        spans.append(span)
    _check_tiling(spans, size - 8 - length, path)
    return found


def _entry(entry: Any, where: str) -> tuple[TensorInfo, tuple[int, int]]:
    """An entry of the header: the tensor, and its bytes, which must be just enough."""
    try:
        entry = checked(entry, where, {"dtype": str, "shape": list, "data_offsets": list})
    except RecordError as error:
        raise SavedError(str(error)[:400]) from None
    dtype, width = DTYPES.get(entry["dtype"], (entry["dtype"], 0))
    fact, offsets = TensorInfo.read(entry["shape"], dtype, where), entry["data_offsets"]
    if len(offsets) != 2 or not all(type(n) is int and 0 <= n < 2**63 for n in offsets):
        raise SavedError(f"{where}: data_offsets must be two positions, got {str(offsets)[:80]}")
    first, last = offsets
    if last - first != fact.numbers * width:
        raise SavedError(f"{where}: {fact} does not take the {last - first:,} bytes it has")
    return fact, (first, last)


def _check_tiling(spans: list[tuple[int, int]], size: int, path: Path) -> None:
    """Tensors follow each other without gap or overlap, to the end of the file."""
    end = 0
    for first, last in sorted(spans):
        if first != end:
            raise SavedError(f"{path}: the tensors overlap or leave a gap at byte {end:,}")
        end = last
    if end != size:
        raise SavedError(
            f"{path} is cut off or has something at its end: its tensors take {end:,} bytes, and "
            f"there are {size:,}"
        )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise ImportError("saved networks need safetensors: pip install 'l0arm[export]'") from None
    return safetensors
