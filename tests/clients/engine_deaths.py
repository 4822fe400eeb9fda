"""Engine processes that end or hang at random moments under mixed streams: every answer is, byte for byte, that of an
undisturbed server.

    engine_deaths.py [--deaths N] [--streams N] [--requests R] [--seed S] [--server BINARY] [--model DIR] [--flags "..."]

Requests of soak.py's mixture are sent one by one first; their answers are kept without ids, times and counts of cached
tokens. Then N clients send random ones of them without a pause, some read slowly, some leave early, while the engine
process gets SIGKILL, SIGSEGV, SIGABRT, or SIGSTOP (a hang). Wanted: no answer changed, none lost, the engine back within
two seconds (the median), no process left. Controls: with sums that depend on the batch (--numerics vanilla) the check of
the continued tokens ends answers with an error; an engine that cannot start again ends all of them.

$INVAR_ENGINE_DEATHS is the default of --deaths (10; with INVAR_TEST_LONG 20)."""

import argparse
import asyncio
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

import soak
import wire
from served import BINARY, TINY_MATH, Served, children, end_when_terminated, raise_file_limit
from support import SKIPPED
from wire import Lost

BACK_WANTED_S, BACK_MAX_S = 2, 20
TIMEOUT_S = 600  # of a client, and ...
DEATH_S = 10     # ... as long again for each death: on a slow machine most of a life repeats what the one before had done
GROWTH_BYTES, STREAM_BYTES = 16 << 20, 64 << 10  # of the server, however many deaths
PROGRESS_S = 10  # most waiting for an answer between two deaths
FLAGS = {"--max-num-seqs": "32", "--kv-cache-memory": "48M", "--max-queued-requests": "4096", "--disable-log-requests": None,
         "--threads": "1", "--engine-timeout": "1000", "--engine-restarts": "1000000"}
PROGRESS_DEATHS = 100  # between two lines
SIGNALS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGSTOP]
# What differs between two runs of one request.
VOLATILE = re.compile(rb'(?:(?:chat)?cmpl|resp|rs|msg|fc|call)[-_][0-9A-Za-z_-]+|req-[0-9a-f]+'
                      rb'|"(?:created|created_at|completed_at|cached_tokens|e2e_latency)":[0-9.e-]+')
CHOICE, CHOICES_MAX = re.compile(rb'^data: [^\n]*"choices":\[\{"index":(\d+)'), 1 << 20  # of an event


def plain(raw):
    """A whole answer without what differs between two runs. The choices of a stream are put one after another: when each of them
    comes depends on the other requests."""
    events = VOLATILE.sub(b"#", wire.payload(raw)).split(b"\n\n")
    places = [int(found[1]) if (found := CHOICE.search(e)) else CHOICES_MAX for e in events]
    return b"\n\n".join(e for _, e in sorted(zip(places, events), key=lambda pair: pair[0]))


def engines(pid):
    """The living children of a server, and its zombies."""
    found, zombies = [], []
    for child in children(pid):
        try:
            state = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        (zombies if state == "Z" else found).append(child)
    return found, zombies


async def metric(port, name):
    text = (await wire.ask_once(port, wire.get("/metrics"))).raw.decode()
    return float(re.search(rf"^{name}\S* (\S+)$", text, re.M)[1])


async def ask_quietly(port, requests):
    """Keeps each answer; asks twice, so that an answer that differs by itself is a fault of this test."""
    for r in requests:
        first, second = [await wire.ask_once(port, r.bytes, TIMEOUT_S) for _ in range(2)]
        r.status, r.digests, r.plain = first.status, first.digests(), plain(first.raw)
        if r.status not in (200, 400):
            raise SystemExit(f"{r.kind}, alone: {bytes(first.raw[:600])}")
        if plain(second.raw) != r.plain:
            raise SystemExit(f"{r.kind}, alone twice: {r.plain!r}\n{plain(second.raw)!r}")


class Tally:
    def __init__(self):
        self.answers, self.kinds, self.errors, self.changes = 0, collections.Counter(), collections.Counter(), []
        self.left, self.dawdled = 0, 0

    def compare(self, request, raw):
        self.answers += 1
        self.kinds[request.kind] += 1
        if plain(raw) != request.plain:
            self.changes.append((request, bytes(raw)))

    def lose(self, request, why):
        self.errors[f"{request.kind}: {why}"] += 1


async def read_slowly(port, request, rng):
    s = await wire.raw_connection(port, receive_buffer=4096)
    raw, pause = bytearray(), rng.randint(1, 20000)
    try:
        await wire.send(s, request.bytes)
        while not wire.whole(raw):
            data = await wire.receive(s, 4096, TIMEOUT_S)
            if not data:
                raise Lost(f"read slowly: end of file after {len(raw)} bytes: {bytes(raw[-300:])}")
            raw += data
            await asyncio.sleep(1 if len(raw) - len(data) < pause <= len(raw) else 0.01)
    finally:
        s.close()
    return raw


async def client(port, requests, rng, tally, stopping):
    while not stopping.is_set():
        request, way = rng.choice(requests), rng.random()
        try:
            if way < soak.LEAVE:
                await soak.leave(port, request, rng, tally)
            elif request.stream and way < soak.LEAVE + soak.DAWDLE:
                tally.compare(request, await read_slowly(port, request, rng))
                tally.dawdled += 1
            else:
                tally.compare(request, (await wire.ask_once(port, request.bytes, TIMEOUT_S)).raw)
        except Lost as e:
            tally.lose(request, e)
            await asyncio.sleep(0.2)


async def await_health(port, wanted, seconds):
    """Seconds until /health has one of these words; None: never."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        answer = await wire.ask_once(port, wire.get("/health"))
        if any(w.encode() in answer.raw for w in wanted):
            return time.monotonic() - begin
        await asyncio.sleep(0.005)
    return None


async def await_answer(tally, seconds):
    """Until another answer is complete: lives shorter than the work that each repeats would end none."""
    begin, before = time.monotonic(), tally.answers
    while tally.answers == before and time.monotonic() - begin < seconds:
        await asyncio.sleep(0.02)


async def one_engine(server):
    """Its number. On a busy machine an engine may not respond in time, and another is being started."""
    begin = time.monotonic()
    while time.monotonic() - begin < BACK_MAX_S:
        living, zombies = engines(server.pid)
        if len(living) == 1:
            return living[0]
        await asyncio.sleep(0.005)
    raise Lost(f"wanted one engine, found {living} and zombies {zombies}: {server.lines[-5:]}")


def check_ends(server, sent, missing):
    """Why engines ended, by the log: by the signals of this test, or because they did not respond. None ends by itself."""
    ends = collections.Counter(found[1] for line in server.lines if (found := re.search(r"the engine process ended \((.*)\); restart", line)))
    silent = sum(n for why, n in ends.items() if "did not respond" in why)
    others = {why: n for why, n in ends.items() if "did not respond" not in why}
    print(f"ends: {others}, {silent} did not respond ({sent[signal.SIGSTOP]} were stopped)", flush=True)
    wanted = {f"signal {int(number)} ({signal.strsignal(number)})": n for number, n in sent.items() if number != signal.SIGSTOP}
    if any(n > wanted.get(why, 0) for why, n in others.items()) or ends.total() < sent.total():
        missing.append(f"ends: wanted {wanted} and {sent[signal.SIGSTOP]} that did not respond, found {dict(ends)}")


async def end_engines(server, count, rng, times, missing, tally):
    """Ends the engine `count` times at random moments, half of them after some progress. Returns how often each signal did."""
    loading, sent = False, collections.Counter()
    for i in range(count):
        if not loading and rng.random() < 0.5:
            await await_answer(tally, PROGRESS_S)
        await asyncio.sleep(rng.random() * rng.choice([0.02, 0.4, 1.5]))
        before, number = await metric(server.port, "invar_engine_restarts_total"), SIGNALS[rng.randrange(len(SIGNALS))]
        pid, begin = await one_engine(server), time.monotonic()
        os.kill(pid, number)
        sent[number] += 1
        while await metric(server.port, "invar_engine_restarts_total") == before:
            if time.monotonic() - begin > BACK_MAX_S:
                missing.append(f"death {i}, signal {number}: no restart within {BACK_MAX_S} s")
                return sent
            await asyncio.sleep(0.005)
        loading = rng.random() < 0.1
        if loading:
            continue  # the next one may find it loading
        if await await_health(server.port, ['"ok"'], BACK_MAX_S) is None:
            missing.append(f"death {i}, signal {number}: not back within {BACK_MAX_S} s")
            return sent
        times.append((time.monotonic() - begin, number))
        if (i + 1) % PROGRESS_DEATHS == 0:
            print(f"{i + 1} deaths, {tally.answers} answers, {len(tally.changes)} changed, errors {dict(tally.errors) or 'none'}", flush=True)
    return sent


def show_change(request, raw):
    got, at = plain(raw), 0
    while at < min(len(got), len(request.plain)) and got[at] == request.plain[at]:
        at += 1
    return (f"{request.kind} {request.bytes[-200:]!r}: from byte {at}:\n  wanted {request.plain[at - 60 if at > 60 else 0:at + 200]!r}\n"
            f"  found  {got[at - 60 if at > 60 else 0:at + 200]!r}")


async def deaths(args, server, missing):
    context = await server.context()
    requests = soak.mixture(args.seed, args.requests, context)
    await ask_quietly(server.port, requests)
    tally, stopping, times, rng = Tally(), asyncio.Event(), [], random.Random(args.seed)
    begin = time.monotonic()
    at_first = await metric(server.port, "process_resident_memory_bytes")
    clients = [asyncio.ensure_future(client(server.port, requests, random.Random(args.seed * 100000 + i), tally, stopping))
               for i in range(args.streams)]
    sent = await end_engines(server, args.deaths, rng, times, missing, tally)
    stopping.set()
    await asyncio.gather(*clients)
    continued = await metric(server.port, "invar_requests_continued_total")
    resident = await metric(server.port, "process_resident_memory_bytes")
    middle = sorted(t for t, _ in times)[len(times) // 2] if times else 0
    print(f"{sum(sent.values())} deaths in {time.monotonic() - begin:.0f} s under {args.streams} streams: {tally.answers} answers, {continued:.0f} times "
          f"continued, {len(tally.changes)} changed, errors {dict(tally.errors) or 'none'}; {tally.dawdled} read slowly, {tally.left} left; "
          f"back after {middle:.2f} s (median), {max(times, default=(0, 0))[0]:.2f} s (largest of {len(times)}; the others hit one that "
          f"was loading)", flush=True)
    print(f"resident memory of the server: {at_first / 1e6:.1f} MB, after the deaths {resident / 1e6:.1f} MB", flush=True)
    if resident > at_first + GROWTH_BYTES + args.streams * STREAM_BYTES:
        missing.append(f"memory: wanted at most {GROWTH_BYTES + args.streams * STREAM_BYTES} bytes more, found {resident - at_first:.0f}")
    if tally.changes:
        missing.append(f"{len(tally.changes)} answers changed: {show_change(*tally.changes[0])}")
    if tally.errors:
        missing.append(f"errors: wanted none, found {dict(tally.errors)}")
    if middle > BACK_WANTED_S:
        missing.append(f"back: wanted {BACK_WANTED_S} s (median), found {middle:.2f} s")
    if args.deaths >= 10 and continued < args.deaths:
        missing.append(f"continued: wanted {args.deaths} or more, found {continued:.0f}")
    check_ends(server, sent, missing)
    living, zombies = engines(server.pid)
    if len(living) != 1 or zombies:
        missing.append(f"processes at the end: wanted one engine, found {living} and zombies {zombies}")
    missing += await soak.nothing_left(server, server.files() + 2)


# ---- controls


async def one_stream(port, ends, after, tokens=200):
    """A stream whose engine is ended by `ends` after some bytes; its whole raw answer."""
    body = {"prompt": "1 2 3", "max_tokens": tokens, "ignore_eos": True, "seed": 3, "stream": True, "temperature": 1}
    s = await wire.raw_connection(port)
    raw = bytearray()
    try:
        await wire.send(s, wire.post("/v1/completions", body, close=True))
        while True:
            data = await wire.receive(s, 65536, 60)
            if not data:
                return bytes(raw)
            raw += data
            if ends and len(raw) >= after:
                ends()
                ends = None
    finally:
        s.close()


def kill_engine(server, number=signal.SIGKILL):
    for pid in engines(server.pid)[0]:
        os.kill(pid, number)


def control_other_sums(args, missing):
    """Where prefill and decode have other bits, a continued answer ends with an error, never with other tokens."""
    flags = ["--numerics", "vanilla", "--threads", "1", "--engine-restarts", "1000000", "--isa", "scalar"]
    server = Served(args.server, args.model, *flags)
    try:
        caught = 0
        for after in (2000, 8000, 16000, 24000):
            raw = asyncio.run(one_stream(server.port, lambda: kill_engine(server), after))
            caught += b"log-probability of token" in raw and wire.DONE not in raw
        print(f"control: {caught} of 4 continued answers were refused with other sums", flush=True)
        if caught == 0:
            missing.append("control with other sums: wanted an error in a continued answer, found none")
    finally:
        server.stop()


def control_no_model(args, missing):
    """A model that no longer opens ends streams with an error, and the server with exit code 1."""
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model"
        shutil.copytree(args.model, model, symlinks=False)
        server = Served(args.server, model, "--threads", "1", "--engine-restarts", "2", "--isa", "scalar")

        def ends():
            (model / "config.json").unlink()
            kill_engine(server)

        raw = asyncio.run(one_stream(server.port, ends, 2000))
        code = server.process.wait(30)
        if b'"error"' not in raw or b"config.json" not in raw or wire.DONE in raw or code != 1:
            missing.append(f"a model that is gone: wanted an error event and exit code 1, found {code} and {raw[-300:]!r}")


def control_health(args, missing):
    """/health: 503 with `degraded` until the engine is back, then 200."""
    server = Served(args.server, args.model, "--threads", "1")

    async def look():
        kill_engine(server)
        away = status = None
        for _ in range(1000):  # the answer that says so has the status
            answer = await wire.ask_once(server.port, wire.get("/health"))
            if b'"degraded"' in answer.raw:
                away, status = True, answer.status
                break
            await asyncio.sleep(0.005)
        return away, status, await await_health(server.port, ['"ok"'], BACK_MAX_S)

    try:
        away, status, back = asyncio.run(look())
        if away is None or back is None or status != 503:
            missing.append(f"/health after a death: wanted degraded, then ok, found {away}, {status}, {back}")
    finally:
        server.stop()


def control_orphans(args, missing):
    """A server that is killed takes its engine along."""
    server = Served(args.server, args.model, "--threads", "1")
    living, _ = engines(server.pid)
    server.kill()
    end = time.monotonic() + 5
    while time.monotonic() < end and any(os.path.exists(f"/proc/{p}") for p in living):
        time.sleep(0.02)
    left = [p for p in living if os.path.exists(f"/proc/{p}")]
    if len(living) != 1 or left:
        missing.append(f"a killed server: wanted its engine to end, found {left} of {living}")


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--deaths", type=int, 
                   default=int(os.environ.get("INVAR_ENGINE_DEATHS", "20" if os.environ.get("INVAR_TEST_LONG") else "10")))
    p.add_argument("--streams", type=int, default=40, help="clients at once (40)")
    p.add_argument("--requests", type=int, default=60, help="different requests (60)")
    p.add_argument("--seed", type=int, default=int(os.environ.get("INVAR_TEST_SEED", "1")))
    p.add_argument("--server", default=BINARY, help="the program (build/invar)")
    p.add_argument("--model", default=str(TINY_MATH))
    p.add_argument("--flags", default="", help="more flags of the server, or other values of its flags here")
    p.add_argument("--no-controls", action="store_true")
    return p.parse_args()


def main():
    args, missing = arguments(), []
    if not os.access(args.server, os.X_OK):
        print(f"SKIPPED: engine deaths: needs {args.server}")
        return SKIPPED
    global TIMEOUT_S
    TIMEOUT_S += DEATH_S * args.deaths
    soak.TIMEOUT_S = TIMEOUT_S
    raise_file_limit()
    end_when_terminated()
    print(f"seed {args.seed}", flush=True)
    given = args.flags.split()
    defaults = [word for name, value in FLAGS.items() if name not in given for word in (name, value) if word]
    server = Served(args.server, args.model, *defaults, *given)
    try:
        asyncio.run(deaths(args, server, missing))
    finally:
        living, _ = engines(server.pid)
        code = server.stop()
    if code != 0:
        missing.append(f"exit status of the server after SIGTERM: wanted 0, found {code}: {server.lines[-5:]}")
    left = [p for p in living if os.path.exists(f"/proc/{p}")]
    if left:
        missing.append(f"engines after the server's end: wanted none, found {left}")
    if not args.no_controls:
        control_other_sums(args, missing)
        control_no_model(args, missing)
        control_health(args, missing)
        control_orphans(args, missing)
    print("\n".join(["FAILED:", *missing]) if missing else "no answer changed, none lost")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
