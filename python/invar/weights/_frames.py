"""The socket to the server. A frame is its length, 8 bytes little-endian, and as many bytes.

A request is two frames: {"route", "file", "ranks", "seconds"} and the HTTP request's body. The answer is {"status", "message", "tensors"};
one frame
{"status": "working"} comes before it, and more when work goes on. A first answer without a request says whether the process is ready."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from typing import Any

FRAME_BYTES_MAX = 1 << 40


class Refused(Exception):
    """status: "invalid", "unsupported", "format", "limit", "no_memory" or "io"; last: this process is of no further use."""

    def __init__(self, status: str, message: str, last: bool = False) -> None:
        super().__init__(message)
        self.status, self.last = status, last


class Channel:
    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer

    def _take(self, size: int) -> bytes | None:
        out = bytearray(size)
        view, at = memoryview(out), 0
        while at < size:
            n = self.peer.recv_into(view[at:])
            if n == 0:
                return None
            at += n
        return bytes(out)

    def receive(self) -> bytes | None:
        """None: the server has ended."""
        head = self._take(8)
        if head is None:
            return None
        size = struct.unpack("<Q", head)[0]
        if size > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes")
        return self._take(size)

    def answer(self, status: str, message: str = "", tensors: int = 0) -> None:
        text = json.dumps({"status": status, "message": message[:4000], "tensors": tensors}).encode()
        self.peer.sendall(struct.pack("<Q", len(text)) + text)

    def working(self) -> None:
        self.answer("working")


def end_with(fd: int) -> None:
    """Ends this process when the other end of a socket is closed, also during a call that waits."""

    def watch() -> None:
        poller = select.poll()
        poller.register(fd, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
        poller.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def kind(value: Any) -> str:
    """What a JSON value is, for errors."""
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
