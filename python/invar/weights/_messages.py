"""Named tensors as trainers send them: SGLang's MultiprocessingSerializer, which is Python's ForkingPickler with torch's reductions.

    [(name, tensor), ...]   tensor: a torch.Tensor or Parameter, or LocalSerializedTensor(values): such a pickle for each rank
    {"flattened_tensor": tensor, "metadata": [FlattenedTensorMetadata, ...]}
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from . import _apart, _frames, _pickles, _sets, _storages
from ._frames import Refused
from ._pickles import Call, Global, describe, is_call
from ._storages import Storage

CUDA_ARGUMENTS = 15
DESCRIPTORS = (
    "it is shared by torch's file_descriptor strategy, whose descriptors no other program can receive: call "
    "torch.multiprocessing.set_sharing_strategy('file_system') before serializing"
)


class Placed(NamedTuple):
    """Bytes [offset, offset + size) of a storage."""

    entry: _sets.Entry
    storage: Storage
    offset: int


def wrong(wanted: str, found: Any, status: str = "format") -> Refused:
    return Refused(status, f"wanted {wanted}, found {describe(found)}")


def arguments_of(call: Call, count: int) -> tuple[Any, ...]:
    if len(call.arguments) < count:
        raise wrong("more arguments", call)
    return call.arguments


def size_of(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise wrong(what, value)
    return value


def dtype_of(value: Any) -> str:
    if isinstance(value, Global) and value.module == "torch" and value.name in _sets.CODES:
        return value.name
    raise wrong("a torch.dtype that a checkpoint may have", value, "unsupported")


def dims_of(value: Any) -> tuple[int, ...]:
    if is_call(value, "Size") and len(value.arguments) == 1:
        value = value.arguments[0]
    if not isinstance(value, (list, tuple)):
        raise wrong("a shape", value)
    if len(value) > _sets.DIMS_MAX:
        raise wrong(f"at most {_sets.DIMS_MAX} dimensions", value, "limit")
    return tuple(size_of(n, "a size") for n in value)


def check_strides(shape: tuple[int, ...], value: Any) -> None:
    """Row-major without gaps. A dimension of one element may have any stride."""
    strides, want = dims_of(value), 1
    if len(strides) != len(shape):
        raise Refused("format", "its shape and its strides have different lengths")
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if math.prod(shape) and n != 1 and stride != want:
            raise Refused("unsupported", "it is not contiguous: send tensor.contiguous()")
        want *= n


class Message:
    """rank: which of a LocalSerializedTensor's values."""

    def __init__(self, data: bytes, flattened: bool, rank: int) -> None:
        self.storages: dict[int, tuple[Any, Storage]] = {}  # by the identity of the value, which is kept alive
        self._inner: list[Any] = []  # messages in the message: their parts' identities must stay theirs
        self._root, self._flattened, self._rank = _pickles.read(data), flattened, rank

    def tensors(self) -> Iterator[Placed]:
        return self._bucket() if self._flattened else self._list()

    # ---- storages

    def _storage(self, value: Any, make: Callable[[], Storage]) -> Storage:
        if id(value) not in self.storages:
            self.storages[id(value)] = value, make()
        return self.storages[id(value)][1]

    def _new(self, value: Any) -> Storage:
        if is_call(value, "rebuild_storage_filename"):
            a = arguments_of(value, 4)
            return _storages.Shared(a[1], a[2], size_of(a[3], "a storage's size"))
        if is_call(value, "_load_from_bytes"):
            data = arguments_of(value, 1)[0]
            if not isinstance(data, bytes):
                raise wrong("bytes", data)
            return _storages.Saved(data)
        if is_call(value, "rebuild_storage_empty"):
            return _storages.Empty()
        if is_call(value, "rebuild_storage_fd"):
            raise Refused("unsupported", DESCRIPTORS)
        raise wrong("a storage in shared memory, or bytes", value, "unsupported")

    def _typed(self, value: Any) -> tuple[Storage, str]:
        if is_call(value, "rebuild_typed_storage") and len(value.arguments) >= 2:
            inner = value.arguments[0]
            return self._storage(inner, lambda: self._new(inner)), dtype_of(value.arguments[1])
        storage = self._storage(value, lambda: self._new(value))
        if storage.dtype not in _sets.CODES:
            raise wrong("a storage with a type", value, "unsupported")
        return storage, str(storage.dtype)

    # ---- tensors

    def _place(self, name: str, storage: Storage, dtype: str, offset: Any, shape: Any, strides: Any) -> Placed:
        entry = _sets.Entry(name, dtype, dims_of(shape))
        first = size_of(offset, "an offset")
        if strides is not None:
            check_strides(entry.shape, strides)
        if entry.bytes > _sets.SIZE_MAX or first * _sets.item_bytes(dtype) + entry.bytes > storage.bytes:
            raise Refused("format", f"wanted {entry.bytes} bytes from element {first} on, found a storage of {storage.bytes}")
        return Placed(entry, storage, first * _sets.item_bytes(dtype))

    def _tensor(self, name: str, value: Any, depth: int = 0) -> Placed:
        if is_call(value, "_rebuild_parameter") and value.arguments:
            value = value.arguments[0]
        if is_call(value, "rebuild_tensor"):
            _, inner, place = arguments_of(value, 3)[:3]
            if not isinstance(place, tuple) or len(place) < 3:
                raise wrong("offset, shape and strides", place)
            return self._place(name, *self._typed(inner), *place[:3])
        if is_call(value, "_rebuild_tensor_v2"):
            a = arguments_of(value, 4)
            return self._place(name, *self._typed(a[0]), *a[1:4])
        if is_call(value, "rebuild_cuda_tensor") or is_call(value, "_rebuild_cuda_tensor_modified"):
            a = arguments_of(value, CUDA_ARGUMENTS)
            empty = a[7] is None or a[8] == 0
            storage = self._storage(value, lambda: _storages.Empty() if empty else _storages.Cuda(a))
            return self._place(name, storage, dtype_of(a[5]), a[3], a[1], a[2])
        if is_call(value, "LocalSerializedTensor"):
            return self._tensor(name, self._own(value, depth), depth + 1)
        raise wrong("a torch tensor", value, "unsupported")

    def _own(self, value: Call, depth: int) -> Any:
        values = value.member("values")
        if not isinstance(values, list):
            raise wrong("its values", value)
        if self._rank >= len(values):
            raise wrong("a value for each rank", values)
        if not isinstance(values[self._rank], bytes) or depth:
            raise wrong("bytes", values[self._rank])
        inner = _pickles.read(values[self._rank])
        self._inner.append(inner)
        return inner

    # ---- the two forms

    def _list(self) -> Iterator[Placed]:
        if not isinstance(self._root, (list, tuple)):
            raise wrong("a list of names and tensors", self._root, "unsupported")
        for item in self._root:
            if not isinstance(item, (list, tuple)) or len(item) != 2:
                raise wrong("a name and a tensor", item)
            with named(name_of(item[0])) as name:
                yield self._tensor(name, item[1])

    def _bucket(self) -> Iterator[Placed]:
        root = self._root
        if not isinstance(root, dict):
            raise wrong("a dict with flattened_tensor and metadata (load_format flattened_bucket)", root, "unsupported")
        for key in ("metadata", "flattened_tensor"):
            if key not in root:
                raise wrong(f'a member "{key}"', root)
        if not isinstance(root["metadata"], list):
            raise wrong("metadata as a list", root["metadata"])
        if not root["metadata"]:
            return
        with named("flattened_tensor") as name:
            flat = self._tensor(name, root["flattened_tensor"])
        for part in root["metadata"]:
            yield self._part(part, flat)

    def _part(self, meta: Any, flat: Placed) -> Placed:
        """Its range is in elements of the flattened tensor, which are bytes since SGLang 0.5."""
        if not is_call(meta, "FlattenedTensorMetadata") or not isinstance(meta.state, dict):
            raise wrong("FlattenedTensorMetadata", meta, "unsupported")
        with named(name_of(meta.member("name"))) as name:
            entry = _sets.Entry(name, dtype_of(meta.member("dtype")), dims_of(meta.member("shape")))
            first, end = size_of(meta.member("start_idx"), "start_idx"), size_of(meta.member("end_idx"), "end_idx")
            each, count = _sets.item_bytes(flat.entry.dtype), math.prod(flat.entry.shape)
            if first > end or end > count or (end - first) * each != entry.bytes:
                raise Refused("format", f"wanted {entry.bytes} bytes for its shape, found elements {first} to {end} of {count}, of {each} bytes each")
            return Placed(entry, flat.storage, flat.offset + first * each)


def name_of(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value or len(value.encode("utf-8", "replace")) > 1024:
        raise wrong("a tensor's name", value)
    return value


class named:
    """Errors inside begin with the tensor's name; also torch's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> str:
        return self._name

    def __exit__(self, kind: Any, value: BaseException | None, trace: Any) -> None:
        if isinstance(value, Refused):
            raise Refused(value.status, f"{self._name}: {value}", value.last) from None
        if isinstance(value, (RuntimeError, ValueError, TypeError, OSError)):
            raise Refused("io", f"{self._name}: {value}", "CUDA" in str(value)) from None


def decode(text: Any) -> bytes:
    if not isinstance(text, str):
        raise Refused("invalid", f"wanted base64, found {_frames.kind(text)}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refused("invalid", "wanted base64, found something else") from None


def read_all(texts: list[Any], flattened: bool, working: Callable[[], None]) -> tuple[list[Message], list[Placed]]:
    """The messages, and their tensors; one that an earlier message has is left out, as each rank's message has its own copy."""
    messages, placed, seen = [], [], set[str]()
    for i, text in enumerate(texts):
        with named(f"serialized_named_tensors[{i}]"):
            message = Message(decode(text), flattened, i)
            messages.append(message)
            try:
                mine = [p for p in message.tensors() if p.entry.name not in seen]
            except BaseException:
                release(storages_of(messages), working)
                raise
        placed += mine
        seen |= {p.entry.name for p in mine}
    return messages, placed


def storages_of(messages: list[Message]) -> list[Storage]:
    return [storage for message in messages for _, storage in message.storages.values()]


def give_back(storages: list[Storage]) -> None:
    for storage in storages:
        try:
            storage.release()
        except (Refused, RuntimeError):
            pass  # the sender's memory is gone


def release(storages: list[Storage], working: Callable[[], None]) -> None:
    """Of storages that were not opened."""
    give_back([storage for storage in storages if not storage.apart])
    apart = [storage for storage in storages if storage.apart]
    if apart:
        _apart.run(lambda _: give_back(apart), working)


class Copy:
    """Placed tensors to their places in a set."""

    def __init__(self, placed: list[Placed], out: _sets.Set, opened: set[int]) -> None:
        order = {id(storage): i for i, storage in enumerate(p.storage for p in placed)}
        self._out, self._opened = out, opened
        self._placed = sorted(enumerate(placed), key=lambda item: order[id(item[1].storage)])  # each is opened once

    def here(self, working: Callable[[], None], apart: bool = False) -> None:
        storage, data = None, torch.empty(0, dtype=torch.uint8)
        for i, p in self._placed:
            if p.storage.apart != apart:
                continue
            with named(p.entry.name):
                if p.storage is not storage:
                    data = p.storage.open()
                    storage = p.storage
                    self._opened.add(id(storage))
                self._out.put(i, data[p.offset : p.offset + p.entry.bytes])
            working()

    def apart(self, storages: list[Storage], working: Callable[[], None]) -> None:
        """Those in storages that are opened apart; also gives back the references of the others."""

        def work(working: Callable[[], None]) -> None:
            try:
                self.here(working, True)
            finally:
                give_back([storage for storage in storages if id(storage) not in self._opened])

        try:
            _apart.run(work, working)
        finally:
            self._opened.update(id(storage) for storage in storages)


def take(texts: list[Any], flattened: bool, path: str, working: Callable[[], None]) -> int:
    """Writes the tensors to `path`; their number."""
    messages, placed = read_all(texts, flattened, working)
    storages, opened = storages_of(messages), set[int]()
    apart = [storage for storage in storages if storage.apart]
    try:
        with _sets.Set(path, [p.entry for p in placed]) as out:
            copy = Copy(placed, out, opened)
            if apart:
                copy.apart(apart, working)
            copy.here(working)
    finally:
        release([storage for storage in storages if id(storage) not in opened], working)
    return len(placed)
