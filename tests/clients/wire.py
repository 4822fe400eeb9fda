"""A small HTTP client on asyncio, for hundreds of streams: a `Wire` is a connection, an `Answer` a response.
`raw_connection` gives sockets for clients that read slowly or not at all."""

import asyncio
import json
import re
import socket
import time

DIGEST = re.compile(rb'"digest":"sha256:([0-9a-f]{64})"')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.I)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.I)
CLOSES = re.compile(rb"\r\nconnection: *close\r\n", re.I)
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]"
HOST = "127.0.0.1"


class Lost(Exception):
    """A connection ended before its answer did."""


def post(path, body, close=False):
    """The bytes of a POST. `body`: an object, or its text as bytes."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
    return (head + ("Connection: close\r\n\r\n" if close else "\r\n")).encode() + text


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def status_of(raw):
    """The status of a response; 0: none."""
    return int(raw[9:12]) if raw[:7] == b"HTTP/1." and raw[9:12].isdigit() else 0


def whole(raw):
    """Whether these bytes are all of one response."""
    end = raw.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(raw[: end + 2])
    if CHUNKED.search(head):
        return raw.endswith(LAST_CHUNK)
    length = LENGTH.search(head)
    return length is not None and len(raw) >= end + 4 + int(length[1])


def payload(raw):
    """The body of a whole response, without the framing of its chunks."""
    end = raw.find(b"\r\n\r\n")
    body = bytes(raw[end + 4 :])
    if not CHUNKED.search(bytes(raw[: end + 2])):
        return body
    parts, at = [], 0
    while True:
        line = body.index(b"\r\n", at)
        size = int(body[at:line], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[line + 2 : line + 2 + size])
        at = line + 4 + size


def digests(raw):
    """The digests of all choices of an answer, sorted."""
    return tuple(sorted({d.decode() for d in DIGEST.findall(bytes(raw))}))


class Answer:
    """A response and when it came."""

    def __init__(self, raw, sent, end):
        self.raw, self.seconds, self.status = raw, end - sent, status_of(raw)

    def digests(self):
        return digests(self.raw)

    def json(self):
        return json.loads(payload(self.raw))

    def complete_stream(self):
        """Whether the last event came, and no event is an error."""
        return self.status == 200 and DONE in self.raw[-64:] and b'"error":{' not in self.raw


class Wire(asyncio.Protocol):
    """One keep-alive connection, with one request at a time. `arrived(now, bytes)` is called for all data."""

    def __init__(self, arrived=None):
        self.arrived, self.raw, self.future, self.transport, self.lost = arrived, bytearray(), None, None, None

    @classmethod
    async def open(cls, port, arrived=None, timeout=20):
        loop = asyncio.get_running_loop()
        wire = cls(arrived)
        try:
            await asyncio.wait_for(loop.create_connection(lambda: wire, HOST, port), timeout)
        except (OSError, asyncio.TimeoutError) as e:
            raise Lost(f"connect: {type(e).__name__}") from e
        return wire

    def connection_made(self, transport):
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data):
        self.raw += data
        if self.arrived:
            self.arrived(time.monotonic(), data)
        if self.future and not self.future.done() and whole(self.raw):
            self.future.set_result(None)

    def connection_lost(self, error):
        self.lost = f"{type(error).__name__}" if error else "end of file"
        if self.future and not self.future.done():
            self.future.set_exception(Lost(f"{self.lost} after {len(self.raw)} bytes"))

    def open_still(self):
        return self.lost is None and not self.transport.is_closing()

    async def ask(self, request, timeout=120):
        """Sends a request and waits for its whole answer."""
        sent = time.monotonic()
        if not whole(self.raw):  # a connection may be refused before anything was asked
            if self.lost:
                raise Lost(self.lost)
            self.future = asyncio.get_running_loop().create_future()
            self.transport.write(request)
            try:
                await asyncio.wait_for(self.future, timeout)
            except asyncio.TimeoutError as e:
                raise Lost(f"timeout of {timeout} s after {len(self.raw)} bytes") from e
        answer = Answer(self.raw, sent, time.monotonic())
        self.raw = bytearray()
        if CLOSES.search(bytes(answer.raw[:1024])):
            self.close()
        return answer

    def close(self):
        self.transport.close()


async def ask_once(port, request, timeout=120):
    """One request on its own connection."""
    wire = await Wire.open(port)
    try:
        return await wire.ask(request, timeout)
    finally:
        wire.close()


async def raw_connection(port, receive_buffer=0, timeout=20):
    """A connected socket that does not block."""
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.setblocking(False)
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(s, (HOST, port)), timeout)
    except (OSError, asyncio.TimeoutError) as e:
        s.close()
        raise Lost(f"connect: {type(e).__name__}") from e
    return s


def reset(s):
    """Closes a socket with a reset."""
    try:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    except OSError:
        pass
    s.close()


async def receive(s, size, timeout=120):
    """At least one byte, or none at the end."""
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(s, size), timeout)
    except asyncio.TimeoutError as e:
        raise Lost(f"timeout of {timeout} s") from e
    except OSError as e:
        raise Lost(type(e).__name__) from e


async def send(s, data, timeout=120):
    try:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(s, data), timeout)
    except asyncio.TimeoutError as e:
        raise Lost(f"timeout of {timeout} s while sending") from e
    except OSError as e:
        raise Lost(f"{type(e).__name__} while sending") from e
