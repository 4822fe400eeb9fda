"""Every flag of `invar serve`: it changes the answer's bits or never does. Each is tried: a server with the flag, and the
digest of one answer. A flag without a row fails. Needs no package."""

import json
import pathlib
import re
import subprocess
import tempfile
import urllib.request

from adapters import make_adapter
from support import check, main
from upstream import BINARY, TINY_MATH, wait_for_port

CHANGES, NEVER, REFUSED = "changes", "never", "refused"  # refused: of this model
BODY = {"messages": [{"role": "user", "content": "What is 12 + 30? <|im_end|>"}], "max_tokens": 40, "seed": 5}
HEADERS = {"Authorization": "Bearer key"}
folder = tempfile.TemporaryDirectory()
MADE = pathlib.Path(folder.name)
(MADE / "key").write_text("key\n")
(MADE / "config.yaml").write_text("threads: 1\n")
ADAPTER = make_adapter(MADE / "adapter", TINY_MATH, 1)
DUMMY = ("--load-format", "dummy")
# flag: kind, its value (None: it has none), and flags that the comparison has, too
ROWS = {
    "config": (NEVER, MADE / "config.yaml"), "host": (NEVER, "127.0.0.1"), "port": (NEVER, "0"), "served-model-name": (NEVER, "a,b"),
    "tool-call-parser": (NEVER, "none"), "reasoning-parser": (NEVER, "deepseek_r1"), "split-special-tokens": (CHANGES, None), "proof-urls": (NEVER, "http://127.0.0.1:9"),
    "max-queued-requests": (NEVER, "9"), "max-connections-per-client": (NEVER, "9"), "max-request-body": (NEVER, "100000"),
    "max-unread-bytes": (NEVER, "1000000"), "response-dir": (NEVER, MADE / "responses"), "max-stored-responses": (NEVER, "9", "--response-dir", MADE / "a"),
    "max-stored-bytes": (NEVER, "9M", "--response-dir", MADE / "b"), "drain-timeout": (NEVER, "3"), "engine-process": (NEVER, "off"),
    "engine-restarts": (NEVER, "1"), "engine-timeout": (NEVER, "9000"), "update-dir": (NEVER, MADE), "update-timeout": (NEVER, "9"), "weights-python": (NEVER, "python3"),
    "api-key": (NEVER, "key"), "admin-api-key": (NEVER, "admin"), "api-key-file": (NEVER, MADE / "key"), "admin-api-key-file": (NEVER, MADE / "key"),
    "allow-flush": (NEVER, None), "allowed-hosts": (NEVER, "a"), "allowed-origins": (NEVER, "http://a"), "metrics-compat": (NEVER, "vllm"),
    "log-format": (NEVER, "json"), "log-level": (NEVER, "info"), "log-file": (NEVER, "/dev/stderr"), "disable-log-requests": (NEVER, None),
    "load-format": (CHANGES, "dummy"), "dummy-seed": (CHANGES, "7", *DUMMY), "device": (NEVER, "cpu"), "enforce-eager": (NEVER, None),
    "weights": (NEVER, "expanded"),
    "arithmetic": (CHANGES, "tc16"), "dtype": (CHANGES, "float32"), "numerics": (CHANGES, "vanilla"), "isa": (NEVER, "scalar"), "threads": (NEVER, "1"),
    "tensor-parallel-size": (NEVER, "2"), "enable-expert-parallel": (REFUSED, None), "expert-parallel-size": (REFUSED, "1"), "rank-transport": (NEVER, "host"), "rank-timeout": (NEVER, "1000"), "max-model-len": (NEVER, "512"),
    "max-num-seqs": (NEVER, "2"), "max-num-batched-tokens": (NEVER, "16"), "step-target": (NEVER, "5"), "kv-cache-memory": (NEVER, "16M"), "state-cache-memory": (NEVER, "1M"),
    "sample-all-ids": (CHANGES, None, *DUMMY), "lora-modules": (NEVER, f"a={ADAPTER}"), "enable-lora": (NEVER, None), "max-loras": (NEVER, "3"),
    "max-lora-rank": (NEVER, "8", "--enable-lora"),
    "no-enable-prefix-caching": (NEVER, None), "speculative": (NEVER, "ngram"), "num-speculative-tokens": (NEVER, "3", "--speculative", "ngram"),
}


def flags():
    text = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"^\s+(?:-\w, )?--([a-z-]+)", text, re.M)) - {"help"})


def answer(*words):
    """What identifies the answer: its digest covers the weights' law and the tokens."""
    command = [BINARY, "serve", str(TINY_MATH), *map(str, words), *(() if "--port" in words else ("--port", "0"))]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        try:
            port = wait_for_port(server, log)
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", data=json.dumps(BODY).encode(), headers=HEADERS)
            with urllib.request.urlopen(asked, timeout=120) as response:
                got = json.load(response)
        finally:
            server.terminate()
            server.wait(60)
    return got["invar"]["digest"], got["choices"][0]["message"]["content"]


def test_flags():
    listed, before, wrong = flags(), {}, []
    check(set(listed) == set(ROWS), "flags and rows differ:", sorted(set(listed) ^ set(ROWS)))
    for name in listed:
        kind, value, *others = ROWS[name]
        words = [f"--{name}", *([value] if value is not None else [])]
        key = tuple(map(str, others))
        if key not in before:
            before[key] = answer(*others)
        try:
            same = answer(*others, *words) == before[key]
        except (AssertionError, OSError) as error:
            if kind == REFUSED:
                continue
            wrong.append(f"{name}: {str(error)[-300:]}")
            continue
        if kind == REFUSED or same != (kind == NEVER):
            wrong.append(f"{name}: wanted: {kind}")
    check(not wrong, "\n".join(wrong))


main(test_flags)
