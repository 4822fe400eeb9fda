"""Hundreds of mixed requests at once: each answer must have the digest of its quiet run, and the server must not grow.

    soak.py [--minutes M] [--streams N] [--requests R] [--seed S] [--server BINARY] [--model DIR] [--flags "..."] [--json FILE]

R different requests with fixed seeds (chat, completions, responses, SGLang's /generate; log-probabilities, several choices,
structured outputs, stops, scored prompts, prompts with common prefixes, errors) are sent one by one first, which gives the
expected status and digests. Then N clients send random ones of them without a pause; some read slowly, some leave early.
Each minute prints a line. Wanted at the end: no digest or status changed, no answer lost, memory that grows by at most 10 %
(least squares over the last 80 % of the samples), and no request, page or file left after the clients have gone."""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import re
import sys
import time

import wire
from served import BINARY, MB, TINY_MATH, Served, end_when_terminated, raise_file_limit
from support import SKIPPED
from wire import Lost

GROWTH_WANTED = 0.10
SAMPLE_S = 2
TIMEOUT_S = 600
SERVER_FLAGS = ["--max-num-seqs", "64", "--kv-cache-memory", "96M", "--max-queued-requests", "4096", "--disable-log-requests"]
LEAVE, DAWDLE = 0.08, 0.05  # of the streams: left in the middle, read slowly

SCHEMA = {"type": "object", "required": ["name", "sum"], "properties": {
    "name": {"type": "string", "maxLength": 12}, "sum": {"type": "integer", "minimum": 0, "maximum": 999},
    "kind": {"enum": ["add", "subtract", "multiply"]}}}
GRAMMAR = 'root ::= item ("," " "? item)*\nitem ::= number | "(" root ")"\nnumber ::= [0-9]{1,4}'
PREFIX = " ".join(f"{a} + {b} = {a + b}." for a, b in ((i * 7 % 50, i * 3 % 50) for i in range(60)))


class Request:
    """One request of the mixture, with the status and digests of its quiet run."""

    def __init__(self, kind, path, body):
        self.kind, self.stream = kind, bool(body.get("stream"))
        self.bytes = wire.post(path, body)
        self.status, self.digests = 0, ()


def question(rng):
    return f"What is {rng.randint(2, 99)} {rng.choice('+-*')} {rng.randint(2, 99)}?"


def ids(rng, count):
    return [rng.randint(10, 500) for _ in range(count)]


def sampled(rng, tokens):
    """Fields that all OpenAI requests have here."""
    return {"seed": rng.randrange(1 << 40), "temperature": rng.choice([0, 0.6, 1]), "max_tokens": tokens, "stream": rng.random() < 0.7}


def chat(rng, context):
    body = {"messages": [{"role": "user", "content": question(rng)}], **sampled(rng, rng.randint(4, min(160, context // 2)))}
    if rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": rng.randint(0, 5)}
    return "/v1/chat/completions", body


def completion(rng, context):
    return "/v1/completions", {"prompt": rng.choice([question(rng), ids(rng, rng.randint(1, context // 4))]),
                               "ignore_eos": rng.random() < 0.3, **sampled(rng, rng.randint(1, min(120, context // 4)))}


def choices(rng, context):
    return "/v1/completions", {"prompt": [question(rng) for _ in range(rng.randint(1, 2))], "n": rng.randint(2, 4),
                               "logprobs": rng.randint(0, 5), **sampled(rng, rng.randint(4, 60))}


def structured(rng, context):
    held = rng.choice([
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"response_format": {"type": "json_object"}}, {"regex": r"[0-9]{1,3} \+ [0-9]{1,3} = [0-9]+"}, {"grammar": GRAMMAR},
        {"structured_outputs": {"choice": ["yes", "no", "perhaps not"]}}])
    return "/v1/completions", {"prompt": question(rng), **held, **sampled(rng, rng.randint(20, 80))}


def stops(rng, context):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": question(rng)}],
                                    "stop": rng.choice([["="], ["\n", "1"], [" 2", "</think>"]]), **sampled(rng, 80)}


def prefix(rng, context):
    """Prompts with common prefixes, for the prefix cache."""
    return "/v1/completions", {"prompt": PREFIX[: rng.choice([255, 511, min(900, context * 2)])] + question(rng), **sampled(rng, 20)}


def scored(rng, context):
    return "/v1/completions", {"prompt": ids(rng, rng.randint(2, context // 3)), "echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1,
                               "temperature": 0}


def generate(rng, context):
    params = {"max_new_tokens": rng.randint(2, 60), "temperature": rng.choice([0, 1]), "sampling_seed": rng.randrange(1 << 40)}
    text = rng.choice([question(rng), [question(rng) for _ in range(3)]])
    return "/generate", {"text": text, "sampling_params": params, "stream": isinstance(text, str) and rng.random() < 0.6,
                         "return_logprob": rng.random() < 0.4}


def response(rng, context):
    return "/v1/responses", {"input": question(rng), "seed": rng.randrange(1 << 40), "max_output_tokens": rng.randint(2, 60),
                             "stream": rng.random() < 0.6}


def mistake(rng, context):
    return "/v1/completions", rng.choice([{"prompt": "1", "no_such_field": 1}, {"prompt": "1", "regex": "(?=x)"},
                                          {"prompt": ids(rng, context + 5)}, {"prompt": "1", "max_tokens": -1}])


MIXTURE = ((chat, 6), (completion, 5), (choices, 3), (structured, 3), (stops, 2), (prefix, 3), (scored, 2), (generate, 4), (response, 2),
           (mistake, 1))


def mixture(seed, count, context):
    rng = random.Random(seed)
    kinds, weights = zip(*MIXTURE)
    picked = [*kinds, *rng.choices(kinds, weights, k=max(0, count - len(kinds)))]  # each kind at least once
    return [Request(k.__name__, *k(rng, context)) for k in picked]


class Tally:
    """Counts so far."""

    def __init__(self):
        self.kinds, self.errors = collections.Counter(), collections.Counter()
        self.answered, self.changed, self.left, self.dawdled, self.bytes = 0, 0, 0, 0, 0
        self.changes = []

    def compare(self, request, status, digests, how):
        self.answered += 1
        self.kinds[request.kind] += 1
        if status != request.status:
            self.errors[f"{request.kind}: status {status}, alone {request.status}"] += 1
        elif digests != request.digests:
            self.changed += 1
            self.changes.append(f"{request.kind}, {how}: {request.bytes[-300:]!r}")

    def lose(self, request, why):
        self.errors[f"{request.kind}: {why}"] += 1


async def ask_quietly(port, requests):
    """Sends each request alone, and keeps its status and digests."""
    connection = await wire.Wire.open(port)
    for r in requests:
        if not connection.open_still():
            connection = await wire.Wire.open(port)
        answer = await connection.ask(r.bytes, TIMEOUT_S)
        r.status, r.digests = answer.status, answer.digests()
        wanted = 400 if r.kind == "mistake" else 200
        if r.status != wanted or bool(r.digests) != (wanted == 200):
            raise SystemExit(f"{r.kind}, alone: wanted {wanted}, found {bytes(answer.raw[:600])} to {r.bytes[:600]}")
    connection.close()


async def leave(port, request, rng, tally):
    """Sends a request and leaves after some bytes or some time."""
    s = await wire.raw_connection(port)
    try:
        await wire.send(s, request.bytes)
        if rng.random() < 0.5:
            await wire.receive(s, rng.randint(1, 4096), TIMEOUT_S)
        else:
            await asyncio.sleep(rng.random())
        tally.left += 1
    finally:
        if rng.random() < 0.5:
            wire.reset(s)
        else:
            s.close()


async def dawdle(port, request, rng, tally):
    """Reads slowly, with one pause."""
    s = await wire.raw_connection(port, receive_buffer=4096)
    raw, pause = bytearray(), rng.randint(1, 20000)
    try:
        await wire.send(s, request.bytes)
        while not wire.whole(raw):
            data = await wire.receive(s, 4096, TIMEOUT_S)
            if not data:
                raise Lost(f"read slowly: end of file after {len(raw) >> 10} KiB")
            raw += data
            await asyncio.sleep(2 if len(raw) - len(data) < pause <= len(raw) else 0.02)
    finally:
        s.close()
    tally.dawdled += 1
    tally.compare(request, wire.status_of(raw), wire.digests(raw), "read slowly")


async def client(port, requests, rng, tally, stopping):
    connection = None
    while not stopping.is_set():
        request, way = rng.choice(requests), rng.random()
        try:
            if way < LEAVE:
                await leave(port, request, rng, tally)
            elif request.stream and way < LEAVE + DAWDLE:
                await dawdle(port, request, rng, tally)
            else:
                if not connection or not connection.open_still():
                    connection = await wire.Wire.open(port)
                answer = await connection.ask(request.bytes, TIMEOUT_S)
                tally.bytes += len(answer.raw)
                tally.compare(request, answer.status, answer.digests(), "read at once")
        except Lost as e:
            tally.lose(request, e)
            connection = None
            await asyncio.sleep(0.2)
    if connection:
        connection.close()


def growth(samples):
    """Rise of the least-squares line through the last 80 % of (time, bytes), as a part of the mean."""
    late = samples[len(samples) // 5 :]
    if len(late) < 2:
        return 0.0
    mean_t, mean_y = sum(t for t, _ in late) / len(late), sum(y for _, y in late) / len(late)
    slope = sum((t - mean_t) * (y - mean_y) for t, y in late) / sum((t - mean_t) ** 2 for t, _ in late)
    return slope * (late[-1][0] - late[0][0]) / mean_y


async def watch(server, tally, samples, every, begin, end):
    """Takes samples and prints lines."""
    due, before, cpu = begin + every, 0, (server.cpu(), sum(os.times()[:2]))
    while time.monotonic() < end and server.alive():
        await asyncio.sleep(SAMPLE_S)
        now = time.monotonic()
        samples.append((now - begin, server.rss()))
        if now < due:
            continue
        its, ours = server.cpu(), sum(os.times()[:2])
        print(f"{(now - begin) / 60:6.1f} min: {tally.answered} answers ({(tally.answered - before) / every:.0f}/s), {tally.left} left,"
              f" {tally.dawdled} read slowly, digests changed {tally.changed}, errors {dict(tally.errors) or 'none'},"
              f" RSS {samples[-1][1] / MB:.0f} MB, {server.files()} files, {server.threads()} threads,"
              f" cores {(its - cpu[0]) / every:.1f} + {(ours - cpu[1]) / every:.1f} here", flush=True)
        due, before, cpu = due + every, tally.answered, (its, ours)


async def nothing_left(server, files):
    """Missed bounds after all clients have left."""
    for _ in range(100):
        text = (await wire.ask_once(server.port, wire.get("/metrics"))).raw.decode()
        held = re.search(r"^invar_kv_pages_held\S* (\S+)$", text, re.M)
        info = (await wire.ask_once(server.port, wire.get("/server_info"))).json()
        if info["running"] + info["waiting"] == 0 and float(held[1]) == 0 and server.files() <= files:
            return []
        await asyncio.sleep(0.1)
    return [f"at the end: wanted nothing, found {info['running']} running, {info['waiting']} waiting, {held[1]} pages held,"
            f" {server.files()} files (before the load {files})"]


async def soak(args, server):
    """(samples, tally, missing)"""
    context = await server.context()
    requests = mixture(args.seed, args.requests, context)
    began = time.monotonic()
    await ask_quietly(server.port, requests)
    print(f"{len(requests)} requests, each alone, in {time.monotonic() - began:.0f} s", flush=True)
    await server.warm(context)
    await asyncio.sleep(0.2)
    files, tally, samples, stopping = server.files(), Tally(), [], asyncio.Event()
    begin = time.monotonic()
    clients = [asyncio.ensure_future(client(server.port, requests, random.Random(args.seed * 100000 + i), tally, stopping))
               for i in range(args.streams)]
    await watch(server, tally, samples, args.line, begin, begin + args.minutes * 60)
    stopping.set()
    await asyncio.gather(*clients)
    missing = []
    if tally.changed:
        missing.append(f"digests changed: wanted 0, found {tally.changed}: {tally.changes[:3]}")
    if tally.errors:
        missing.append(f"errors: wanted none, found {dict(tally.errors)}")
    rise = growth(samples)
    print(f"memory: {rise * 100:+.1f} % over the last 80 % of the time, {samples[0][1] / MB:.0f} to {samples[-1][1] / MB:.0f} MB")
    if rise > GROWTH_WANTED:
        missing.append(f"memory: wanted growth of at most {GROWTH_WANTED * 100:.0f} %, found {rise * 100:.1f} %")
    if server.alive():
        missing += await nothing_left(server, files + 2)
    return samples, tally, missing


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--streams", type=int, default=500, help="clients at once (500)")
    p.add_argument("--requests", type=int, default=200, help="different requests (200)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--line", type=float, default=60, help="seconds between lines (60)")
    p.add_argument("--server", default=BINARY, help="the program (build/invar)")
    p.add_argument("--model", default=str(TINY_MATH))
    p.add_argument("--flags", default="", help="more flags of the server")
    p.add_argument("--json", default="", help="samples and counts as JSON")
    return p.parse_args()


def main():
    args = arguments()
    if not os.access(args.server, os.X_OK):
        print(f"SKIPPED: soak: needs {args.server}")
        return SKIPPED
    raise_file_limit()
    end_when_terminated()
    server = Served(args.server, args.model, *SERVER_FLAGS, *args.flags.split())
    try:
        samples, tally, missing = asyncio.run(soak(args, server))
    finally:
        code = server.stop()
    if code != 0:
        missing.append(f"exit status of the server after SIGTERM: wanted 0, found {code}")
    print(f"{tally.answered} answers: {dict(tally.kinds)}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"samples": samples, "answers": dict(tally.kinds), "errors": dict(tally.errors),
                                                       "changed": tally.changed, "missing": missing}, indent=1))
    print("\n".join(["FAILED:", *missing]) if missing else "no digest changed, no error, memory is flat")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
