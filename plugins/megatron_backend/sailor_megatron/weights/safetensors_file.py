"""The safetensors format: an 8-byte header length, a JSON header, and raw little-endian data.

Nothing in such a file is executed, and a tensor's bytes are found without reading the others.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sailor.errors import PluginError

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER_BYTES = 100_000_000
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_TORCH_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its dtype as the format names it, its shape, and its bytes [lo, hi)."""

    dtype: str
    shape: tuple[int, ...]
    lo: int
    hi: int


def read_header(path: Path) -> dict[str, Entry]:
    """Return the tensors of a file by name; byte positions count from the file's start."""
    where = str(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(_LENGTH.size)
            if len(first) < _LENGTH.size:
                raise _broken(where, "it ends within the header's length")
            (length,) = _LENGTH.unpack(first)
            if length > min(MAX_HEADER_BYTES, size - _LENGTH.size):
                raise _broken(where, f"its header would be {length} bytes long")
            header = json.loads(file.read(length))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PluginError(
            f"can't be read: {reason}", where=where, hint="name a folder with model.safetensors"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _broken(where, f"its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise _broken(where, "its header is no JSON object")
    begin = _LENGTH.size + length
    return {
        name: _entry(entry, begin, size, f"{where}: {name}")
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _entry(raw: Any, begin: int, size: int, where: str) -> Entry:
    try:
        dtype, shape = str(raw["dtype"]), tuple(int(n) for n in raw["shape"])
        lo, hi = (int(n) for n in raw["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise _broken(where, "it lacks dtype, shape or data_offsets") from None
    if dtype not in DTYPE_BYTES:
        raise PluginError(
            f"has dtype {dtype}; read are {', '.join(DTYPE_BYTES)}",
            where=where,
            hint="convert the weights first",
        )
    if min(shape, default=0) < 0 or hi - lo != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise _broken(where, f"{hi - lo} bytes are no {dtype} {list(shape)}")
    if lo < 0 or begin + hi > size:
        raise _broken(where, "its bytes lie outside of the file: the file was cut short")
    return Entry(dtype, shape, begin + lo, begin + hi)


def _broken(where: str, reason: str) -> PluginError:
    return PluginError(
        f"is no whole safetensors file: {reason}", where=where, hint="copy or download it again"
    )


class SafetensorsFile:
    """An open file. Tensors are views of the mapped file: only what is looked at is read."""

    def __init__(self, path: Path) -> None:
        self.entries = read_header(path)
        self._file = path.open("rb")
        # A private copy on write: torch asks for writable memory, and the file stays as it is.
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *_error: object) -> None:
        # The mapping ends with the last tensor that looks at it.
        self._file.close()

    def tensor(self, name: str) -> Tensor:
        """Return a whole tensor; don't write to it."""
        import torch

        entry = self.entries[name]
        dtype = getattr(torch, _TORCH_NAMES[entry.dtype])
        count = math.prod(entry.shape)
        if count == 0:
            return torch.empty(entry.shape, dtype=dtype)
        if entry.lo % DTYPE_BYTES[entry.dtype] == 0:
            flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=entry.lo)
        else:  # the format does not promise that data are aligned
            data = bytearray(self._map[entry.lo : entry.hi])
            flat = torch.frombuffer(data, dtype=dtype, count=count)
        return flat.view(entry.shape)


@dataclass(frozen=True)
class Planned:
    """A tensor that will be written: dtype as the format names it, and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def write_file(
    path: Path, planned: Mapping[str, Planned], tensors: Iterator[tuple[str, Tensor]]
) -> None:
    """Write tensors one after the other, in the order of `planned`; one is held at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, entry in planned.items():
        stop = position + entry.num_bytes
        header[name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [position, stop],
        }
        position = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data begin at a multiple of 8
    with path.open("wb") as file:
        file.write(_LENGTH.pack(len(text)) + text)
        for expected, (name, tensor) in zip(planned, tensors, strict=True):
            if name != expected or tuple(tensor.shape) != planned[name].shape:
                raise RuntimeError(f"{name} {tuple(tensor.shape)} comes where {expected} should")
            file.write(_raw(tensor, planned[name].dtype))


def _raw(tensor: Tensor, dtype: str) -> memoryview:
    import torch

    flat = tensor.detach().to("cpu", getattr(torch, _TORCH_NAMES[dtype])).contiguous()
    raw: memoryview = flat.view(-1).view(torch.uint8).numpy().data
    return raw
