"""Results of slow requests, by the request's id, until a client has read them. Any thread resolves; the loop waits."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field

from .errors import ServerError, as_server_error

KEPT_S = 600.0  # after a client has read a result, in case the answer was lost on its way
UNREAD_S = 86400.0


@dataclass
class Future:
    request_id: str
    model_id: str | None = None
    sequence_ids: list[str] | None = None
    content: bytes = b""
    media: str = "application/json"
    error: ServerError | None = None
    done: bool = False
    ended: float = 0.0
    read: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self) -> dict[str, object]:
        """What the call that began it answers."""
        out: dict[str, object] = {"request_id": self.request_id, "model_id": self.model_id, "sample_sequence_ids": self.sequence_ids}
        return {key: value for key, value in out.items() if value is not None}


class Futures:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._all: dict[str, Future] = {}
        self._open = 0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that waits."""
        self._loop = loop

    def __len__(self) -> int:
        """Those that are not done."""
        return self._open

    def begin(self, request_id: str, model_id: str | None = None) -> tuple[Future, bool]:
        """The future of this id, and whether it is new: a client that lost the answer asks again."""
        with self._lock:
            found = self._all.get(request_id)
            if found is not None:
                return found, False
            made = self._all[request_id] = Future(request_id, model_id)
            self._open += 1
            return made, True

    def drop(self, future: Future) -> None:
        with self._lock:
            self._all.pop(future.request_id, None)
            self._open -= not future.done
            future.done = True

    def get(self, request_id: str) -> Future:
        with self._lock:
            found = self._all.get(request_id)
        if found is None:
            raise ServerError(f"request_id: wanted one of a request in flight, found {request_id}: its result was read long ago, or the "
                              "server has started anew since", 410)  # fmt: skip
        return found

    async def wait(self, request_id: str, seconds: float) -> Future:
        """Done or not after the time."""
        future = self.get(request_id)
        if not future.done:
            try:
                await asyncio.wait_for(future.news.wait(), seconds)
            except asyncio.TimeoutError:
                return future
        return future

    def was_read(self, future: Future) -> None:
        future.read = future.read or time.monotonic()

    def resolve(self, future: Future, content: bytes, media: str = "application/json") -> None:
        future.content, future.media = content, media
        self._end(future)

    def fail(self, future: Future, error: BaseException) -> None:
        future.error = as_server_error(error)
        self._end(future)

    def _end(self, future: Future) -> None:
        with self._lock:
            if future.done or future.request_id not in self._all:
                return
            future.ended, future.done = time.monotonic(), True
            self._open -= 1
        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(future.news.set)
        except RuntimeError:  # the loop is closed
            pass

    def sweep(self) -> None:
        now = time.monotonic()
        with self._lock:
            for key, f in list(self._all.items()):
                if f.done and ((f.read and now - f.read > KEPT_S) or now - f.ended > UNREAD_S):
                    del self._all[key]
