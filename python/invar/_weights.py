"""Weights from memory: named tensors of torch or numpy, as a checkpoint that an engine loads."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from . import _check
from ._errors import InvarError, Status

CODES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}  # types by their names in safetensors


def stored(name: str, tensor: Any, dtype: str) -> tuple[str, tuple[int, ...], Any]:
    """Type, shape and bytes. Matrices are rounded to `dtype`, to nearest, ties to even; vectors become float32, which
    the engine holds them in."""
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        wanted = dtype if tensor.dim() > 1 else "float32"
        data = tensor.detach().to(device="cpu", dtype=getattr(torch, wanted)).contiguous()
        return wanted, tuple(data.shape), data.reshape(-1).view(torch.uint8).numpy()
    try:
        array = np.asarray(tensor)
    except (TypeError, ValueError) as error:
        raise InvarError(Status.INVALID, f"weights: {name}: wanted a tensor: {error}") from None
    wanted = dtype if array.ndim > 1 else "float32"
    if array.dtype.kind != "f" or wanted == "bfloat16":
        raise InvarError(Status.UNSUPPORTED, f"weights: {name}: wanted a torch tensor for {wanted}, found an array of {array.dtype}")
    return wanted, array.shape, np.ascontiguousarray(array, wanted).reshape(-1).view(np.uint8)


def folder_for(size: int) -> str | None:
    """Memory if it has room for two sets, else None: the system's own choice."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return None
    return "/dev/shm" if free > 2 * size and os.access("/dev/shm", os.W_OK) else None


@contextmanager
def checkpoint(model: str | os.PathLike[str], dtype: str, size: int, weights: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """A folder with config.json of `model` and these tensors, which goes at the end. size: about their bytes."""
    with tempfile.TemporaryDirectory(prefix="invar-weights-", dir=folder_for(size)) as folder:
        try:
            shutil.copyfile(os.path.join(os.fspath(model), "config.json"), os.path.join(folder, "config.json"))
            _write(os.path.join(folder, "model.safetensors"), dtype, weights)
        except OSError as error:
            raise InvarError(Status.IO, f"weights: {error.filename}: {error.strerror}") from None
        yield folder


def pairs_of(weights: Any) -> Iterator[tuple[str, Any]]:
    """Also of a state_dict."""
    wanted = "pairs of a name and a tensor, as model.named_parameters() gives"
    if isinstance(weights, Mapping):
        weights = weights.items()
    if not isinstance(weights, Iterable) or isinstance(weights, (str, bytes)):
        _check.wrong("weights", wanted, weights)
    for pair in weights:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2 or not isinstance(pair[0], str):
            _check.wrong("weights", wanted, pair)
        yield pair[0], pair[1]


def _write(path: str, dtype: str, weights: Iterable[tuple[str, Any]]) -> None:
    header: dict[str, Any] = {}
    data, at = [], 0
    for name, tensor in pairs_of(weights):
        if name in header:
            raise InvarError(Status.INVALID, f"weights: wanted each name once, found {name} twice")
        kind, shape, raw = stored(name, tensor, dtype)
        header[name] = {"dtype": CODES[kind], "shape": list(shape), "data_offsets": [at, at + raw.nbytes]}
        data.append(raw)
        at += raw.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for raw in data:
            file.write(raw)
