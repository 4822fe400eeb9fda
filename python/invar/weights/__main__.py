"""The loop: one request at a time, over the socket that is descriptor 3."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

from ._frames import Channel, Refused, end_with, kind

SOCKET, ERRORS = 3, 4  # descriptors: the server's socket, and its standard error
GROUP = "weight_update_group"


def text_of(body: dict[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise Refused("invalid", f"{name}: wanted a string, found {kind(value) if name in body else 'nothing'}")
    return value


def count_of(body: dict[str, Any], name: str, least: int, most: int) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused("invalid", f"{name}: wanted an integer, found {kind(value) if name in body else 'nothing'}")
    if not least <= value <= most:
        raise Refused("invalid", f"{name}: wanted {least} to {most}, found {value}")
    return value


def list_of(body: dict[str, Any], name: str) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list):
        raise Refused("invalid", f"{name}: wanted a list, found {kind(value) if name in body else 'nothing'}")
    return value


class Server:
    """The routes."""

    def __init__(self, channel: Channel) -> None:
        from . import _apart, _groups

        _apart.prepare()
        self._channel, self._groups = channel, _groups.Groups()

    def answer(self, head: dict[str, Any], body: dict[str, Any]) -> int:
        """The number of tensors in the file."""
        routes = {
            "update_weights_from_tensor": self._tensors,
            "update_weights_from_distributed": self._broadcasts,
            "init_weights_update_group": self._join,
            "destroy_weights_update_group": self._leave,
        }
        return routes[head["route"]](head, body)

    def _tensors(self, head: dict[str, Any], body: dict[str, Any]) -> int:
        from . import _messages

        flattened = body.get("load_format") == "flattened_bucket"
        return _messages.take(list_of(body, "serialized_named_tensors"), flattened, head["file"], self._channel.working)

    def _broadcasts(self, head: dict[str, Any], body: dict[str, Any]) -> int:
        from ._sets import CODES, DIMS_MAX, SIZE_MAX, Entry

        group = self._groups.find(text_of(body, "group_name", GROUP))
        lists = [list_of(body, name) for name in ("names", "dtypes", "shapes")]
        if len({len(one) for one in lists}) != 1:
            raise Refused("invalid", f"names: wanted as many as dtypes and shapes, found {', '.join(str(len(one)) for one in lists)}")
        entries = []
        for i, (name, dtype, shape) in enumerate(zip(*lists, strict=True)):
            if not isinstance(name, str) or not isinstance(dtype, str):
                raise Refused("invalid", f"{'dtypes' if isinstance(name, str) else 'names'}[{i}]: wanted a string")
            dtype = dtype.removeprefix("torch.")
            if dtype not in CODES:
                raise Refused("invalid", f"dtypes: {name[:200]}: wanted a type such as bfloat16, found {dtype[:40]}")
            sizes = isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
            if not sizes or len(shape) > DIMS_MAX or Entry(name, dtype, tuple(shape)).bytes > SIZE_MAX:
                raise Refused("invalid", f"shapes: {name[:200]}: wanted at most {DIMS_MAX} sizes")
            entries.append(Entry(name, dtype, tuple(shape)))
        group.receive(entries, head["file"])
        return len(entries)

    def _join(self, head: dict[str, Any], body: dict[str, Any]) -> int:
        from ._groups import Options

        options = Options(
            text_of(body, "master_address"), count_of(body, "master_port", 1, 65535), text_of(body, "group_name", GROUP),
            text_of(body, "backend", "nccl"), count_of(body, "rank_offset", 0, 1 << 20), count_of(body, "world_size", 1, 1 << 20),
            head["ranks"], head["seconds"],
        )  # fmt: skip
        self._groups.join(options, self._channel.working)
        return 0

    def _leave(self, head: dict[str, Any], body: dict[str, Any]) -> int:
        self._groups.leave(text_of(body, "group_name", GROUP))
        return 0


def serve(channel: Channel) -> None:
    server = Server(channel)
    while (head := channel.receive()) is not None and (body := channel.receive()) is not None:
        channel.working()  # an earlier end is no fault of this request, and the server starts another process for it
        try:
            channel.answer("ok", tensors=server.answer(json.loads(head), json.loads(body or b"{}")))
        except Refused as error:
            channel.answer(error.status, str(error))
            if error.last:
                os._exit(1)
        except MemoryError:
            channel.answer("no_memory", "no memory for the tensors")
        except Exception as error:
            channel.answer("io", f"{type(error).__name__}: {error}")


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal's or a service's; the server's end is this process's
        signal.signal(number, signal.SIG_IGN)
    try:
        channel = Channel(socket.socket(fileno=SOCKET))
        os.set_inheritable(SOCKET, False)
        os.dup2(ERRORS, 2)
        os.close(ERRORS)
    except OSError:
        print("invar.weights: invar serve starts this process for updates of weights; it is no command", file=sys.stderr)
        return 2
    end_with(SOCKET)
    try:
        import torch
    except Exception as error:
        channel.answer("unsupported", f"no torch in {sys.executable}: {type(error).__name__}: {error}")
        return 1
    channel.answer("ok", f"torch {torch.__version__}")
    serve(channel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
