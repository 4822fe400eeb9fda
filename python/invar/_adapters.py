"""The adapters of an engine: loaded when a request names them, and the least recently named one unloaded when there is no
room. Requests that use it end as they would."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from . import _check
from ._errors import InvarError, Status
from ._library import c_string, check, ffi, lib, new_error, path_bytes, text_of
from .lora.request import LoRARequest


@dataclass
class _Loaded:
    request: LoRARequest
    digest: str


class Adapters:
    def __init__(self, engine: Any, room: int) -> None:
        self._engine, self._room = engine, room  # a Handle; most adapters at once
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()  # by name, the least recently named first

    @property
    def ids(self) -> set[int]:
        return {loaded.request.lora_int_id for loaded in self._loaded.values()}

    def check(self, request: LoRARequest | None, what: str = "lora_request") -> LoRARequest | None:
        if request is None:
            return None
        _check.instance(request, what, LoRARequest)
        if not self._room:
            raise InvarError(Status.INVALID, f"{what}: wanted an engine with enable_lora=True, found one without")
        return request

    def check_each(self, given: Any, count: int) -> list[LoRARequest | None]:
        """One for all prompts, or a list with one or None for each."""
        if given is None or isinstance(given, LoRARequest):
            return [self.check(given)] * count
        listed = _check.listing(given, "lora_request", "a LoRARequest or a list of them")
        if len(listed) != count:
            raise InvarError(Status.INVALID, f"lora_request: wanted {count}, found {len(listed)}")
        return [self.check(one, f"lora_request[{i}]") for i, one in enumerate(listed)]

    def use(self, request: LoRARequest) -> str:
        """Loads it if it is not there. Its digest. One without a path is in the engine: Trainer.sync_adapter puts it there."""
        found = self._digests()
        self._forget_replaced(found)
        if not request.path:
            if request.lora_name not in found:
                raise InvarError(
                    Status.NOT_FOUND,
                    f"lora_request: {request.lora_name}: wanted a lora_path, or an adapter of that name in the engine, found neither",
                )
            return found[request.lora_name]
        loaded = self._loaded.get(request.lora_name)
        if loaded is not None and not self._same(loaded.request, request):
            loaded = None
        if loaded is None:
            loaded = self._load(request)
        self._loaded.move_to_end(request.lora_name)
        return loaded.digest

    def add(self, request: LoRARequest) -> bool:
        """Whether it was not there before."""
        before = self._loaded.get(request.lora_name)
        self.use(request)
        return before is not self._loaded.get(request.lora_name)

    def remove(self, lora_id: int) -> bool:
        for name, loaded in list(self._loaded.items()):
            if loaded.request.lora_int_id == lora_id:
                self._unload(name)
                return True
        return False

    def _same(self, loaded: LoRARequest, request: LoRARequest) -> bool:
        if request is loaded:
            return True
        if request.load_inplace:
            return False
        if (loaded.lora_int_id, loaded.path) == (request.lora_int_id, request.path):
            return True
        found = f"{request.lora_int_id} at {request.path}"
        raise InvarError(
            Status.INVALID,
            f"lora_request: {request.lora_name}: wanted lora_int_id {loaded.lora_int_id} at {loaded.path}, as it is loaded, or "
            f"load_inplace=True, found {found}",
        )

    def _load(self, request: LoRARequest) -> _Loaded:
        err, name = new_error(), c_string(request.lora_name, "lora_name")
        for other, loaded in self._loaded.items():
            if loaded.request.lora_int_id == request.lora_int_id and other != request.lora_name:
                raise InvarError(
                    Status.INVALID, f"lora_request: wanted a lora_int_id of its own, found {request.lora_int_id}, which {other} has"
                )
        found = self._digests()
        if request.lora_name not in found and len(found) >= self._room and self._loaded:
            self._unload(next(iter(self._loaded)))
        path = ffi.new("char[]", path_bytes(request.path))
        check(lib().iv_engine_replace_adapter(self._engine.pointer, name, path, err), err)
        self._loaded[request.lora_name] = made = _Loaded(request, self._digests()[request.lora_name])
        return made

    def _forget_replaced(self, found: dict[str, str]) -> None:
        """A trainer's adapter may have taken the name of one."""
        for name, loaded in list(self._loaded.items()):
            if found.get(name) != loaded.digest:
                del self._loaded[name]

    def _unload(self, name: str) -> None:
        err = new_error()
        check(lib().iv_engine_unload_adapter(self._engine.pointer, c_string(name, "lora_name"), err), err)
        del self._loaded[name]

    def _digests(self) -> dict[str, str]:
        """By name, of what the engine has."""
        info, at, out = ffi.new("iv_adapter_info *"), 0, {}
        info.size = ffi.sizeof("iv_adapter_info")
        while lib().iv_engine_adapter_at(self._engine.pointer, at, info):
            out[text_of(info.name)] = text_of(info.digest)
            at += 1
        return out


def adapted(fingerprint: str, digest: str) -> str:
    """Of answers with an adapter, as iv_adapter_info has it."""
    return f"{fingerprint[:96]}+lora-{digest[:16]}" if digest else fingerprint
