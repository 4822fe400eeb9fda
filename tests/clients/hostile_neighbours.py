"""Hostile clients, one kind a process. hostile.py starts them with `nice 19` next to its honest client.

    hostile_neighbours.py NAME PORT SECONDS SEED CONTEXT

Prints "ready" when the traffic begins, and a line of JSON when it has ended: requests by status, lost answers, problems.
Every kind is bounded in count and time."""

import asyncio
import base64
import collections
import itertools
import json
import os
import random
import socket
import sys
import time

import wire
from wire import Lost

TAIL_S = 90  # what is open at the end of the traffic may take as long
BODY_BYTES = 8_000_000
CONNECTIONS_MAX = 4096  # of a server as it is started


class Traffic:
    """The requests of one process and their outcomes."""

    def __init__(self, port, seconds, seed, context):
        self.port, self.seconds, self.context = port, seconds, context
        self.rng = random.Random(seed)
        self.statuses, self.problems, self.facts = collections.Counter(), collections.Counter(), {}
        self.lost, self.changed, self.wrong, self.end = 0, 0, 0, 0.0

    def begin(self):
        self.end = time.monotonic() + self.seconds
        print("ready", flush=True)

    def on(self):
        return time.monotonic() < self.end

    def answered(self, status):
        self.statuses[str(status)] += 1

    def lose(self, why):
        """A missing answer."""
        self.lost += 1
        self.problems[str(why)] += 1

    def fail(self, why):
        """Something that must not happen."""
        self.wrong += 1
        self.problems[why] += 1

    async def ask(self, request, timeout=TAIL_S):
        """One request on its own connection, counted."""
        try:
            answer = await wire.ask_once(self.port, request, timeout)
        except Lost as e:
            self.lose(e)
            return None
        self.answered(answer.status)
        return answer

    async def repeat(self, count, make, pause):
        """`count` clients that each send what `make` returns, one after the other, at most one every `pause` seconds."""

        async def one(i):
            await asyncio.sleep(pause * i / count)
            while self.on():
                sent = time.monotonic()
                await self.ask(make())
                await asyncio.sleep(max(0.0, sent + pause - time.monotonic()))

        await asyncio.gather(*(one(i) for i in range(count)))

    def report(self):
        return {
            "statuses": dict(sorted(self.statuses.items())), "lost": self.lost, "changed": self.changed, "wrong": self.wrong,
            "problems": dict(self.problems.most_common(8)), "cpu_s": round(sum(os.times()[:2]), 3), "facts": self.facts,
        }


# ---- no traffic


async def control(t):
    """Computes all the time and sends nothing."""
    t.begin()
    while t.on():
        sum(range(20000))


# ---- constraints that are expensive to compile or to follow


def letters(rng, count=12):
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(count))


def explosive_regex(rng, kind):
    """Expressions with thousands of states at once; new ones each time, so that no cache helps."""
    a, b, c = rng.randint(2500, 3200), rng.randint(2400, 3100), rng.choice("0123456789")
    kinds = [
        f"(.*[a-z{c}].{{{a}}})|(.*[0-9 ].{{{b}}})",
        f"(.*[{letters(rng, 5)}0-9].{{{a}}})|(.*[ {c}].{{{b}}})|(.*{c}.{{{a // 2}}})",
        f"((((.*){{1,{rng.randint(20, 60)}}}){{1,20}})*{c})+",
        f"(([a-z0-9 ]*{c}?)*(.{{1,{rng.randint(200, 900)}}})*)*=",
        f"(.?){{{rng.randint(2000, 6000)}}}{c}{{{rng.randint(500, 2000)}}}",
        f"(\\w|\\d|[^{c}]|.|{c})*[{letters(rng, 4)}](\\w|\\d|.){{{a}}}",
    ]
    return kinds[kind % len(kinds)]


async def regexes(t):
    kind = itertools.count()

    def make():
        body = {"prompt": "1 + 1", "regex": explosive_regex(t.rng, next(kind)), "max_tokens": 12, "seed": 1}
        return wire.post("/v1/completions", body, close=True)

    t.begin()
    await t.repeat(4, make, 1)


def expensive_schema(rng, kind):
    """Schemas with many values, deep nesting, patterns, many optional properties, many alternatives."""
    word, kind = letters(rng), kind % 5
    if kind == 0:
        return {"enum": [f"{word}{i * 7919 % 1000003}" for i in range(19000)]}
    if kind == 1:
        deep = {"type": "string", "pattern": f"{word[:2]}.{{0,300}}x"}
        for i in range(120):
            deep = {"type": "object", "properties": {f"{word}{i}": deep, "b": {"type": "array", "items": {"enum": [i, word]}}}}
        return deep
    if kind == 2:
        return {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"(.*[a-z{i}].{{{rng.randint(100, 400)}}})"}
                                                 for i in range(24)}}
    if kind == 3:
        return {"type": "object", "properties": {f"{word}{i}": {"type": ["integer", "string", "null"], "minimum": i}
                                                 for i in range(600)}}
    choices = [{"type": "object", "properties": {f"{word}{j}": {"type": "string", "maxLength": 40 + j}}, "required": [f"{word}{j}"]}
               for j in range(200)]
    return {"type": "array", "items": {"anyOf": choices}, "minItems": 200, "maxItems": 2000}


async def schemas(t):
    kind = itertools.count()

    def make():
        body = {"messages": [{"role": "user", "content": "JSON"}], "max_tokens": 12, "seed": 1,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": expensive_schema(t.rng, next(kind))}}}
        return wire.post("/v1/chat/completions", body, close=True)

    t.begin()
    await t.repeat(4, make, 1)


def expensive_grammar(rng, kind):
    """Rules with many alternatives, and ambiguous ones."""
    word, kind = letters(rng, 6), kind % 4
    if kind == 0:
        return "root ::= " + " | ".join(f'"{word}{i}" [0-9]{{1,9}}' for i in range(6000))
    if kind == 1:  # ambiguous
        return 'root ::= s+\ns ::= a | b | "(" s ")"\na ::= [a-z0-9 ]* b?\nb ::= [0-9a-z =+]* | a2\na2 ::= "' + word[0] + '" s'
    if kind == 2:
        rules = [f'r{i} ::= "{word[i % 6]}"? r{i + 1}? r{i + 2}? | . r{i + 1}' for i in range(3000)]
        return "root ::= r0\n" + "\n".join(rules) + '\nr3000 ::= "x"\nr3001 ::= "y"'
    return f"root ::= (.{{0,{rng.randint(3000, 9000)}}} [a-z]{{0,2000}})* \"{word}\""


async def grammars(t):
    kind = itertools.count()

    def make():
        body = {"prompt": "1 + 1", "grammar": expensive_grammar(t.rng, next(kind)), "max_tokens": 12, "seed": 1}
        return wire.post("/v1/completions", body, close=True)

    t.begin()
    await t.repeat(4, make, 1)


# ---- bodies


def filled(head, piece, tail):
    count = (BODY_BYTES - len(head) - len(tail)) // (len(piece) + 1)
    return head + b",".join([piece] * count) + tail


def giant_bodies():
    """8 MB each: many small JSON values, deep nesting, long texts without spaces."""
    text = base64.b64encode(random.Random(3).randbytes(BODY_BYTES * 3 // 4 - 100))
    message = b'{"role":"user","content":"1"}'
    deep = BODY_BYTES // 2 - 50
    return [
        ("/v1/completions", filled(b'{"prompt":"1","max_tokens":1,"x":[', b"{}", b"]}")),
        ("/v1/completions", filled(b'{"prompt":"1","max_tokens":1,"x":[', b"[[],[]]", b"]}")),
        ("/v1/completions", filled(b'{"prompt":[', b"1", b'],"max_tokens":1}')),
        ("/v1/completions", b'{"prompt":"' + text + b'","max_tokens":1}'),
        ("/v1/completions", b'{"prompt":"1","x":' + b"[" * deep + b"]" * deep + b"}"),
        ("/v1/completions", b'{"prompt":"1","x":' + b'{"a":' * (BODY_BYTES // 6 - 50) + b"1" + b"}" * (BODY_BYTES // 6 - 50) + b"}"),
        ("/v1/chat/completions", filled(b'{"messages":[', message, b'],"max_tokens":1}')),
        ("/generate", filled(b'{"input_ids":[[', b"1],[2", b']],"sampling_params":{"max_new_tokens":1}}')),
        ("/tokenize", b'{"prompt":"' + text + b'"}'),
    ]


async def bodies(t):
    made = itertools.cycle([wire.post(path, body, close=True) for path, body in giant_bodies()])
    t.begin()
    await t.repeat(6, lambda: next(made), 0.25)


async def slow_senders(t):
    """A byte a second: heads that never end, and bodies of 8 MB."""
    started = [b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Long: ",
               b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n" + b'{"prompt":"' + b"1" * 60000]

    async def one(i):
        await asyncio.sleep(i * 0.002)
        try:
            s = await wire.raw_connection(t.port)
        except Lost as e:
            return t.lose(e)
        try:
            await wire.send(s, started[i % 2])
            while t.on():
                try:
                    t.answered(wire.status_of(await wire.receive(s, 4096, 1)))
                    return None
                except Lost as e:
                    if "timeout" not in str(e):
                        return t.lose(e)
                await wire.send(s, b"1")
        except Lost as e:
            t.lose(e)
        finally:
            wire.reset(s)

    t.begin()
    await asyncio.gather(*(one(i) for i in range(300)))


# ---- readers


def long_stream(t, logprobs=5):
    """More than socket buffers hold: 3 MB with a context of 2,048 tokens."""
    return {"prompt": "What is 17 * 6?", "seed": 7, "stream": True, "max_tokens": min(1800, t.context - 60), "ignore_eos": True,
            "n": 4, "logprobs": logprobs}


async def read_slowly(t, request, delay, size, pause, expected):
    """Reads `size` bytes every `delay` seconds, with one pause early on; the answer must be whole and have the digests
    that a quick reader got."""
    raw, paused, s = bytearray(), False, None
    try:
        s = await wire.raw_connection(t.port, receive_buffer=4096)
        await wire.send(s, request)
        while not wire.whole(raw):
            data = await wire.receive(s, size)
            if not data:
                raise Lost("end of file")
            raw += data
            if pause and not paused and len(raw) > 32 << 10:
                paused = True
                await asyncio.sleep(pause)
            await asyncio.sleep(delay)
    except Lost as e:
        return t.lose(f"{e} after {len(raw) >> 10} KiB, read with {delay * 1000:g} ms a piece and a pause of {pause} s")
    finally:
        if s:
            wire.reset(s)
    answer = wire.Answer(raw, 0, 0)
    t.answered(answer.status)
    if answer.status != 200:
        t.fail(f"a slow reader's request: {answer.status}")
    elif not answer.complete_stream():
        t.fail("a slow reader's stream has no end")
    elif answer.digests() != expected:
        t.changed += 1
    return None


async def readers(t, delays):
    request = wire.post("/v1/completions", long_stream(t), close=True)
    expected = (await wire.ask_once(t.port, request)).digests()
    t.begin()
    await asyncio.gather(*(read_slowly(t, request, *how, expected) for how in delays))


async def slow_readers(t):
    await readers(t, [(0.005, 2048, 0), (0.005, 16384, 0.5), (0.001, 16384, 10)])


async def quick_readers(t):
    """The same requests, read without delay."""
    await readers(t, [(0, 1 << 20, 0)] * 3)


def established(port, client_ports):
    """Ports of clients whose connections the server still holds."""
    held = set()
    with open("/proc/net/tcp") as lines:
        next(lines)
        for line in lines:
            fields = line.split()
            local, remote, state = (int(f.rpartition(":")[2], 16) for f in fields[1:4])
            if local == port and remote in client_ports and state in (1, 8):
                held.add(remote)
    return held


async def stopped_readers(t):
    """Read a little and never again: their streams must be cut about 30 s after the last byte that the sockets took."""
    request = wire.post("/v1/completions", long_stream(t, 20), close=True)
    soonest, latest = 28, 75
    sockets, cut, left = [], {}, {}
    t.begin()
    for _ in range(2):
        s = await wire.raw_connection(t.port, receive_buffer=4096)
        sockets.append(s)
        await wire.send(s, request)
        await wire.receive(s, 1024)
        left[s.getsockname()[1]] = time.monotonic()
    while len(cut) < len(left) and time.monotonic() < max(left.values()) + latest:
        held = established(t.port, left.keys())
        for p, since in left.items():
            if p not in held:
                cut.setdefault(p, time.monotonic() - since)
        await asyncio.sleep(0.2)
    t.facts["cut_after_s"] = [round(seconds, 1) for seconds in cut.values()]
    for p in left:
        if p not in cut:
            t.fail(f"a stream that was not read for {latest} s was not cut")
        elif cut[p] < soonest:
            t.fail(f"a stream was cut {cut[p]:.0f} s after its reader stopped, not 30 s")
        else:
            t.answered("cut")
    for s in sockets:
        wire.reset(s)


# ---- masses


async def log_flood(t):
    """Requests that are refused, each a line of the log, 400 a second."""
    long_name = letters(t.rng, 400)
    requests = [
        wire.post("/v1/completions", {"prompt": "1", long_name: 1}), wire.post("/v1/completions", b"{"),
        wire.get("/" + long_name), wire.post("/v1/chat/completions", {"messages": "1"}),
        b"GET /v1/" + long_name.encode() + b" HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: " + long_name[:60].encode() + b"\r\n\r\n",
    ]

    async def one(i):
        connection = None
        while t.on():
            sent = time.monotonic()
            try:
                if not connection or not connection.open_still():
                    connection = await wire.Wire.open(t.port)
                t.answered((await connection.ask(requests[i % len(requests)], 60)).status)
            except Lost as e:
                t.lose(e)
                connection = None
            i += 1
            await asyncio.sleep(max(0.0, sent + 0.02 - time.monotonic()))
        if connection:
            connection.close()

    t.begin()
    await asyncio.gather(*(one(i) for i in range(8)))


async def open_many(t, count, at_once=200):
    """Connected sockets. A failed connect counts as a lost answer."""
    room = asyncio.Semaphore(at_once)

    async def one():
        async with room:
            try:
                return await wire.raw_connection(t.port)
            except Lost as e:
                t.lose(e)
                return None

    return [s for s in await asyncio.gather(*(one() for _ in range(count))) if s]


async def silent_connections(t):
    """Most of the connections that the server allows, without a byte. The others have room for the rest of `all`."""
    t.begin()
    held = await open_many(t, CONNECTIONS_MAX - 1000)
    t.facts["connections"] = len(held)
    while t.on():
        await asyncio.sleep(0.1)
    for s in held:
        wire.reset(s)


async def resets(t):
    """Connections reset at once, or in the middle of a request, 500 a second."""
    request = wire.post("/v1/completions", {"prompt": "1 2 3", "max_tokens": 60, "stream": True})
    made = 0
    t.begin()
    while t.on():
        sent = time.monotonic()
        held = await open_many(t, 25)
        for s in held:
            made += 1
            try:
                if made % 2:
                    s.send(request[: t.rng.randint(1, len(request) - 1)])
            except OSError:
                pass  # the server was quicker
            wire.reset(s)
        await asyncio.sleep(max(0.0, sent + 0.05 - time.monotonic()))
    t.facts["connections"] = made


async def half_open(t):
    """Half a request: then the sending side is closed, or nothing happens."""
    request = wire.post("/v1/completions", {"prompt": "1 2 3", "max_tokens": 60})
    t.begin()
    held = await open_many(t, 2000)
    for i, s in enumerate(held):
        try:
            s.send(request[: t.rng.randint(1, len(request) - 1)])
            if i % 2:
                s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if i % 50 == 0:
            await asyncio.sleep(0)
    t.facts["connections"] = len(held)
    while t.on():
        await asyncio.sleep(0.1)
    for s in held:
        wire.reset(s)


async def over_limit(t):
    """As many connections as the server allows, and 5,000 more. Half of those send a request, and must get an answer with
    a status: 503, or 200 where there is room again. The others must get 503, or stay open where there is room."""
    request = wire.get("/health")
    t.begin()
    held = await open_many(t, CONNECTIONS_MAX)
    room = asyncio.Semaphore(200)

    async def one(i):
        s = None
        try:
            s = await wire.raw_connection(t.port)
            if i % 2:
                await wire.send(s, request)
            status = wire.status_of(await wire.receive(s, 4096, 20 if i % 2 else 2))
            if status:
                t.answered(status)
            else:
                t.lose("closed without an answer")
        except Lost as e:
            if i % 2 or "timeout" not in str(e):
                t.lose(e)
            else:
                t.answered("open")
        finally:
            if s:
                wire.reset(s)

    async def in_turn(i):
        async with room:
            await one(i)

    await asyncio.gather(*(in_turn(i) for i in range(5000)))
    while t.on():
        await asyncio.sleep(0.1)
    for s in held:
        wire.reset(s)


KINDS = {k.__name__: k for k in (
    control, regexes, schemas, grammars, bodies, slow_senders, quick_readers, slow_readers, stopped_readers, log_flood,
    silent_connections, resets, half_open, over_limit)}


async def run(kind, t):
    try:
        await asyncio.wait_for(kind(t), t.seconds + 2 * TAIL_S)
    except asyncio.TimeoutError:
        t.fail("the traffic did not end")
    except Lost as e:
        t.lose(e)


def main():
    name, *numbers = sys.argv[1:]
    t = Traffic(int(numbers[0]), float(numbers[1]), *(int(n) for n in numbers[2:]))
    asyncio.run(run(KINDS[name], t))
    print(json.dumps(t.report()), flush=True)


if __name__ == "__main__":
    main()
