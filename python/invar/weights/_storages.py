"""The memory that a message's tensors lie in, opened by torch. Shared and GPU memory come with one reference of the sender's count, which is
given back whether the memory was read or not."""

# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

import contextlib
import io
import os
import re
import stat
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch.multiprocessing import reductions

from ._frames import Refused

SHM, SHM_HEAD_BYTES, COUNTER_BYTES = "/dev/shm", 64, 8
HANDLE_BYTES = 64


def shm_name(value: Any) -> str:
    """A name of torch's: others are not opened."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(text, str) or not re.fullmatch(r"/torch_[^/\0]{1,55}", text):
        raise Refused("unsupported", "wanted a shared-memory name that begins with /torch_, found another")
    return text


def check_shm(name: str, size: int) -> None:
    """torch would make a shorter file longer."""
    try:
        found = os.stat(SHM + name).st_size
    except OSError as error:
        raise Refused("invalid", f"shared memory {name}: cannot open it: {error.strerror}") from None
    if found < size + SHM_HEAD_BYTES:
        raise Refused("invalid", f"shared memory {name}: wanted {size} bytes, found a shorter file")


class Storage(ABC):
    bytes: int
    dtype: str | None = None  # of a typed one
    apart = False  # it is opened and released in a process that ends with the request

    @abstractmethod
    def open(self) -> torch.Tensor:
        """Its bytes, which also gives back the message's reference."""

    def release(self) -> None:
        """Gives back the reference of memory that is not opened."""


class Empty(Storage):
    bytes = 0

    def open(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)


class Saved(Storage):
    """Bytes in the pickle: torch.save's older form, which torch reads without running what it names."""

    def __init__(self, data: bytes) -> None:
        try:
            typed = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            self._data: torch.UntypedStorage = typed.untyped() if hasattr(typed, "untyped") else typed
            self.dtype = str(typed.dtype).removeprefix("torch.") if hasattr(typed, "dtype") else None
            self.bytes = self._data.nbytes()
        except Exception as error:
            raise Refused("unsupported", f"wanted bytes of torch.save, found {type(error).__name__}: {str(error)[:300]}") from None

    def open(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8).set_(self._data)


def manager_of(value: Any) -> bytes:
    """The socket of the sender's torch_shm_manager, which unlinks files once sender and receivers have ended; "", a manager of this process,
    where it is gone."""
    if isinstance(value, bytes) and re.fullmatch(rb"/[^\0]{1,80}/torch-shm-dir-[^/\0]{1,20}/manager\.sock", value):
        with contextlib.suppress(OSError):
            st = os.stat(value)
            if stat.S_ISSOCK(st.st_mode) and st.st_uid == os.geteuid():
                return value
    return b""


class Shared(Storage):
    """torch's file_system strategy. A process that has opened one stays connected to the sender's manager, which then lives on and keeps
    the sender's standard output open."""

    def __init__(self, manager: Any, name: Any, size: int) -> None:
        self._manager, self._name, self.bytes = manager_of(manager), shm_name(name), size
        self.apart = self._manager != b""

    def _open(self, size: int) -> torch.UntypedStorage:
        check_shm(self._name, size)
        storage = torch.UntypedStorage._new_shared_filename_cpu(self._manager, self._name.encode(), size)
        storage._shared_decref()
        return storage

    def open(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8).set_(self._open(self.bytes))

    def release(self) -> None:
        self._open(0)


def ordinal_of(device: Any) -> int:
    """Of a number, or of a UUID as SGLang sends it."""
    count = torch.cuda.device_count()
    for i in range(count):
        uuid = str(getattr(torch.cuda.get_device_properties(i), "uuid", ""))
        if device == i or (isinstance(device, str) and device.lower().removeprefix("gpu-") == uuid.lower().removeprefix("gpu-")):
            return i
    raise Refused(
        "invalid",
        f"CUDA: wanted GPU {str(device)[:48]} among the {count} that torch sees, found none: the trainer must be on this machine, and "
        "CUDA_VISIBLE_DEVICES must list its GPU",
    )


class Cuda(Storage):
    """A handle of memory that cudaMalloc gave to another process."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._device, handle, self.bytes, self._offset = arguments[6:10]
        self._counter, self._place, self._event, self._wait = arguments[11:15]
        if not isinstance(handle, bytes) or not (len(handle) == HANDLE_BYTES or (len(handle) == HANDLE_BYTES + 2 and handle[1:2] == b"c")):
            raise Refused(
                "unsupported",
                "wanted a CUDA IPC handle of 64 bytes, found another: expandable segments cannot be opened here (unset "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)",
            )
        prefixed = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2]) >= (2, 5)
        self._handle = b"\x01c" + handle if prefixed and len(handle) == HANDLE_BYTES else handle
        if not all(isinstance(n, int) and n >= 0 for n in (self.bytes, self._offset, self._place)) or not isinstance(self._event, bytes):
            raise Refused("format", "wanted sizes and an event of CUDA memory, found others")
        self._counter = shm_name(self._counter).encode()

    def _check_counter(self) -> None:
        check_shm(self._counter.decode(), COUNTER_BYTES * (self._place + 1))

    def open(self) -> torch.Tensor:
        ordinal = ordinal_of(self._device)
        self._check_counter()
        with torch.cuda.device(ordinal):
            return reductions.rebuild_cuda_tensor(
                torch.Tensor, (self.bytes,), (1,), 0, torch.storage.TypedStorage, torch.uint8, ordinal, self._handle, self.bytes, self._offset,
                False, self._counter, self._place, self._event, bool(self._wait),
            )  # fmt: skip

    def release(self) -> None:
        self._check_counter()
        torch.storage.TypedStorage._release_ipc_counter(self._counter, self._place, device=ordinal_of(self._device))
