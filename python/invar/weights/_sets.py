"""A safetensors file that is written tensor by tensor."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

import torch

from ._frames import Refused

CODES = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8", "uint8": "U8", "bool": "BOOL", "int16": "I16",
    "int32": "I32", "int64": "I64",
}  # fmt: skip
DIMS_MAX = 8
SIZE_MAX = 1 << 60


class Entry(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * item_bytes(self.dtype)


def item_bytes(dtype: str) -> int:
    kind: torch.dtype = getattr(torch, dtype)
    return kind.itemsize


class Set:
    """The file `path` with room for all entries. Of entries with one name the last is kept."""

    def __init__(self, path: str, entries: Sequence[Entry]) -> None:
        self._last = {entry.name: i for i, entry in enumerate(entries)}
        self._at: dict[int, int] = {}
        header, at = {}, 0
        for i in self._last.values():
            entry = entries[i]
            header[entry.name] = {"dtype": CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": [at, at + entry.bytes]}
            self._at[i] = at
            at += entry.bytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._begin = 8 + len(text)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, self._begin + at)
            self._map = mmap.mmap(self._fd, self._begin + at)
        except OSError as error:
            os.close(self._fd)
            raise Refused("io", f"{path}: no room for {at} bytes: {error.strerror} (--update-dir names another place)") from None
        self._map[: self._begin] = struct.pack("<Q", len(text)) + text

    def __enter__(self) -> Set:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._map.close()
        os.close(self._fd)

    def put(self, i: int, data: torch.Tensor) -> None:
        """data: the bytes of entry i, a flat uint8 tensor on any device."""
        if i in self._at and data.numel():
            to = torch.frombuffer(self._map, dtype=torch.uint8, count=data.numel(), offset=self._begin + self._at[i])
            to.copy_(data)
