"""Clients that leave at random moments, before, during and after their answers: nothing leaks, and the
answers of others do not change. INVAR_DISCONNECTS: their number (240)."""

import json
import os
import random
import re
import socket
import threading
import time
import urllib.parse

from support import API_KEY, URL, call, check, main, post

COUNT = int(os.environ.get("INVAR_DISCONNECTS", "240"))
THREADS = 12
PARTS = urllib.parse.urlparse(URL)
ASKED = {"prompt": "What is 12 + 30?", "max_tokens": 40, "temperature": 1, "seed": 8, "logprobs": 0}


def leave_one(rng):
    """One request, cut off after a random time or number of bytes; sometimes with a reset."""
    stream = rng.random() < 0.6
    path, body = rng.choice(
        [
            ("/v1/completions", {"prompt": ["1 2 3"] * rng.randint(1, 3), "max_tokens": 60, "stream": stream}),
            ("/v1/completions", {"prompt": [17] * rng.randint(1, 400), "max_tokens": 1, "echo": True, "logprobs": 5}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "2 + 2"}], "n": 3, "max_tokens": 60, "stream": stream}),
            ("/v1/responses", {"input": "2 + 2", "max_output_tokens": 60, "stream": stream}),
            ("/generate", {"text": "3 4 5", "stream": stream, "sampling_params": {"max_new_tokens": 60}}),
        ]
    )
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nContent-Length: {len(text)}\r\n\r\n"
    whole = head.encode() + text
    s = socket.create_connection((PARTS.hostname, PARTS.port), timeout=60)
    try:
        part = rng.random() < 0.1
        s.sendall(whole[: rng.randint(1, len(whole))] if part else whole)
        if part or rng.random() < 0.5:
            time.sleep(rng.random() * 0.05)
        else:
            s.recv(rng.randint(1, 20000))
        if rng.random() < 0.5:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    except OSError:
        pass
    s.close()


def test_disconnects():
    quiet = post("/v1/completions", ASKED)["invar"]["digest"]
    digests = set()
    problems = []

    def leave(seed):
        rng = random.Random(seed)
        try:
            for _ in range(COUNT // THREADS):
                leave_one(rng)
                if rng.random() < 0.05:
                    status, answer = call("POST", "/v1/completions", ASKED)
                    if status == 200:
                        digests.add(answer["invar"]["digest"])
        except Exception as e:  # a thread's failure is the test's
            problems.append(e)

    threads = [threading.Thread(target=leave, args=(i,)) for i in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(not problems, problems)
    check(digests <= {quiet}, "survivors get what they get when it is quiet", digests)
    check(post("/v1/completions", ASKED)["invar"]["digest"] == quiet)
    for _ in range(100):
        info = call("GET", "/server_info")[1]
        if info["running"] + info["waiting"] == 0:
            break
        time.sleep(0.05)
    check(info["running"] == 0 and info["waiting"] == 0, info)
    text = call("GET", "/metrics")[1]
    held = re.search(r"^invar_kv_pages_held\S* (\S+)$", text, re.M)
    check(held and float(held[1]) == 0, "pages are still held", held)


main(test_disconnects)
