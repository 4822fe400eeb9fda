"""sglang-router, unmodified, in front of four servers: 600 requests through it (INVAR_TEST_LONG=1: 2,000) have the digests of one
server that is asked alone, whichever of the four answers. $INVAR_URL is that one server."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

from support import URL, check, skip
from upstream import TINY_MATH, serving

SERVERS, DIFFERENT, CLIENTS = 4, 100, 24
REQUESTS = 2000 if os.environ.get("INVAR_TEST_LONG") else 600
START_S, REQUEST_S = 60, 300
POLICIES = ("round_robin", "cache_aware")
PREFIX = "Mia has 34 marbles and gives some of them to her friends, who count them one by one. " * 4


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def request(i):
    """The i-th request: path and body, of three APIs, streamed or not, greedy or sampled, some with a long common beginning."""
    rng = random.Random(i)
    text = (PREFIX if i % 4 == 0 else "") + f"What is {rng.randint(2, 99)} * {rng.randint(2, 99)}?"
    temperature, tokens, stream = rng.choice([0, 0.8, 1]), rng.randint(1, 24), i % 3 == 0
    if i % 5 == 0:
        return "/generate", {"text": text, "stream": stream,
                             "sampling_params": {"temperature": temperature, "max_new_tokens": tokens, "sampling_seed": i, "ignore_eos": True}}
    body = {"max_tokens": tokens, "temperature": temperature, "seed": i, "stream": stream, "model": "tiny-math"}
    if i % 5 < 3:
        return "/v1/completions", body | {"prompt": text, "n": 1 + i % 2}
    return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}


def ask(connection, path, body):
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def digests(text):
    """Those of all choices, in an order that does not depend on a stream's."""
    return sorted(set(re.findall(r'"digest": ?"(sha256:[0-9a-f]+)"', text)))


def connect(url):
    parts = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=REQUEST_S)


def expected():
    """What the one server answers, one request at a time."""
    connection, found = connect(URL), []
    for i in range(DIFFERENT):
        path, body = request(i)
        status, text = ask(connection, path, body)
        check(status == 200 and digests(text), f"alone: {path} {status}: {text[:300]}")
        found.append(digests(text))
    check(len({d for ds in found for d in ds}) > DIFFERENT // 2, "alone: wanted different answers")
    return found


@contextlib.contextmanager
def routing(ports, policy):
    """The router over these servers; yields its address."""
    port, workers = free_port(), [f"http://127.0.0.1:{p}" for p in ports]
    words = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port), "--policy", policy,
             "--prometheus-port", str(free_port()), "--log-level", "warn", "--worker-urls", *workers]
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w+", encoding="utf-8") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
        try:
            await_router(process, port, len(ports), log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def await_router(process, port, count, log):
    """Until it has found all its workers healthy."""
    end, seen = time.monotonic() + START_S, ""
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            connection = connect(f"http://127.0.0.1:{port}")
            connection.request("GET", "/workers")
            seen = connection.getresponse().read().decode()
            workers = json.loads(seen).get("workers", [])
            if sum(bool(w.get("is_healthy")) for w in workers) == count:
                return
        time.sleep(0.1)
    log.seek(0)
    raise AssertionError(f"the router did not find {count} servers: {seen[:500]}\n{log.read()[-2000:]}")


def drive(url, wanted, order):
    """Every request in this order over CLIENTS connections; the number of wrong answers, and the first."""
    def client(k):
        connection, wrong = connect(url), []
        for i in order[k::CLIENTS]:
            status, text = ask(connection, *request(i))
            if status != 200 or digests(text) != wanted[i]:
                wrong.append(f"{request(i)}: status {status}, wanted {wanted[i]}, found {digests(text) or text[:300]}")
        return wrong

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        wrong = [w for ws in pool.map(client, range(CLIENTS)) for w in ws]
    check(not wrong, f"{len(wrong)} of {len(order)} answers are wrong, such as {wrong[:1]}")


def answered(port):
    connection = connect(f"http://127.0.0.1:{port}")
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    return sum(int(n) for n in re.findall(r'^invar_http_requests_total\{.*method="POST".*status="200"\} (\d+)$', page, re.M))


def main():
    try:
        import sglang_router  # noqa: F401
    except ImportError as error:
        skip(f"router: {error}")
    seed = int(os.environ.get("INVAR_TEST_SEED", "1"))
    wanted = expected()
    with contextlib.ExitStack() as stack:
        # Servers of different shapes: none of this changes a bit.
        shapes = (["--max-num-seqs", "16"], ["--max-num-seqs", "3"], ["--max-num-batched-tokens", "64"], ["--no-enable-prefix-caching"])
        ports = [stack.enter_context(serving(TINY_MATH, *shapes[k], "--max-queued-requests", "1000")) for k in range(SERVERS)]
        before = [0] * SERVERS
        for k, policy in enumerate(POLICIES):
            order = [i % DIFFERENT for i in range(REQUESTS // len(POLICIES))]
            random.Random(seed + k).shuffle(order)
            begin = time.monotonic()
            with routing(ports, policy) as url:
                drive(url, wanted, order)
            counts = [answered(p) for p in ports]
            part = [c - b for c, b in zip(counts, before)]
            before = counts
            check(sum(part) == len(order), f"{policy}: the servers answered {part}, wanted {len(order)} in all")
            check(policy != "round_robin" or min(part) > 0, f"{policy}: a server had no request: {part}")
            print(f"{policy}: {len(order)} requests, of the servers {part}, in {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{REQUESTS} requests through sglang-router to {SERVERS} servers: the digests of one server")


main()
