"""libinvar by cffi in ABI mode. Calls release the GIL."""

import json
import os
from functools import lru_cache
from typing import Any

from . import _check
from ._errors import InvarError, Status
from ._model import path_text
from ._ffi import CUDA as CUDA, ffi as ffi


@lru_cache(maxsize=1)
def lib() -> Any:
    """The library; $INVAR_LIBRARY names another file than the package's own."""
    path = os.environ.get("INVAR_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libinvar.so")
    try:
        return ffi.dlopen(path)
    except OSError as error:
        hint = "INVAR_LIBRARY names it" if os.environ.get("INVAR_LIBRARY") else "`pip install .` in invar's folder builds it"
        raise InvarError(Status.NOT_FOUND, f"library: wanted libinvar.so: {hint}: {error}") from None


def version() -> str:
    return text_of(lib().iv_version())


def text_of(pointer: Any) -> str:
    """A C string; NULL is an empty one."""
    return "" if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


def text_or_none(pointer: Any) -> str | None:
    return None if pointer == ffi.NULL else text_of(pointer)


def new_error() -> Any:
    return ffi.new("iv_error *")


def check(status: int, err: Any) -> None:
    """Raises the library's error."""
    if status:
        raise InvarError(Status(status), text_of(err.message))


def encode(text: str, what: str) -> bytes:
    """UTF-8; a string with a lone surrogate is refused."""
    if not isinstance(text, str):
        hint = ": decode() it first" if isinstance(text, (bytes, bytearray)) else ""
        raise InvarError(Status.INVALID, f"{what}: wanted a text, found {_check.shown(text)}{hint}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvarError(Status.INVALID, f"{what}: wanted text, found a lone surrogate at {error.start}") from None


def c_string(text: str, what: str) -> Any:
    """A char[] with the whole text, which has no NUL."""
    return ffi.new("char[]", encode(_check.text(text, what), what))


def take_text(text: Any) -> str:
    """The content of an iv_text *, which is freed."""
    if text.data == ffi.NULL:
        return ""
    value = bytes(ffi.buffer(text.data, text.bytes)).decode("utf-8", "replace")
    lib().iv_text_free(text)
    return value


def to_json(value: Any, what: str) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate is a ValueError
        raise InvarError(Status.INVALID, f"{what}: wanted a JSON value: {error}") from None


def path_bytes(path: str | os.PathLike[str], what: str = "path") -> bytes:
    return os.fsencode(path_text(path, what))


class Handle:
    """An open object of the library. It belongs to the process that opened it: a fork has none of its threads."""

    def __init__(self, pointer: Any, close: Any, noun: str) -> None:
        self._pointer, self._close, self._noun, self._pid = pointer, close, noun, os.getpid()
        self._users, self._waiting = 0, None

    @property
    def pointer(self) -> Any:
        if self._pointer is None:
            raise InvarError(Status.INVALID, f"{self._noun}: wanted an open one, found a closed one")
        if os.getpid() != self._pid:
            raise InvarError(
                Status.INVALID,
                f"{self._noun}: opened in process {self._pid}, used in process {os.getpid()}: threads do not survive "
                "a fork; open it in the process that uses it (multiprocessing: the start method 'spawn')",
            )
        return self._pointer

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InvarError(
            Status.UNSUPPORTED, f"{self._noun}: cannot be copied or pickled: open another one, in the process that uses it"
        )

    @property
    def is_open(self) -> bool:
        return self._pointer is not None

    def close(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer is not None and os.getpid() == self._pid:
            if self._users:
                self._waiting = pointer
            else:
                self._close(pointer)

    def hold(self) -> None:
        """Another object reads this one: until release() it is closed for callers alone."""
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if not self._users and self._waiting is not None:
            pointer, self._waiting = self._waiting, None
            self._close(pointer)

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is going down
            pass
