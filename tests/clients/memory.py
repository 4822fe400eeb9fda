"""Bodies designed to cost memory: the server's peak stays below a multiple of their size, and the memory is freed.
INVAR_MEMORY_BYTES: their size."""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

from support import check, main
from upstream import BINARY, TINY_MATH, wait_for_port

SIZE = int(os.environ.get("INVAR_MEMORY_BYTES", "2000000"))  # at most 8000000, below --max-request-body
SENDERS = 4
TIMES = 20  # the peak, in bytes sent
FIXED = 48 << 20
LEFT = 24 << 20


def repeated(text, size=SIZE):
    """`text` with commas, about `size` bytes of it."""
    return ",".join([text] * (size // (len(text) + 1)))


def members(value, size=SIZE):
    """Members of an object under short names that differ."""
    return ",".join(f'"{i:x}":{value}' for i in range(size // (10 + len(value))))


def nested(depth, size=SIZE):
    return repeated("[" * depth + "]" * depth, size)


SCHEMA = json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(40)}}, separators=(",", ":"))
TOOL = '{"type":"function","function":{"name":"f","parameters":' + SCHEMA + "}}"
TALK = '"messages":[{"role":"user","content":"2"}]'
PARTS = repeated('{"type":"text","text":""}')

# route, body, the status it must have
BODIES = {
    "unknown field of small objects": ("/v1/completions", '{"prompt":"1","x":[' + repeated("{}") + "]}", 400),
    "prompts that are objects": ("/v1/completions", '{"prompt":[' + repeated("{}") + "]}", 400),
    "ids of one digit": ("/v1/completions", '{"max_tokens":1,"prompt":[' + repeated("1") + "]}", 400),
    "lists of ids": ("/v1/completions", '{"max_tokens":1,"prompt":[' + repeated("[" + repeated("7", 40000) + "]") + "]}", 400),
    "lists of one id": ("/v1/completions", '{"max_tokens":1,"prompt":[' + repeated("[1]") + "]}", 400),
    "ids that are reals": ("/v1/completions", '{"prompt":[' + repeated("1e9") + "]}", 400),
    "ids beyond 64 bits": ("/v1/completions", '{"prompt":[' + repeated("99999999999999999999") + "]}", 400),
    "a text": ("/v1/completions", '{"max_tokens":1,"prompt":"' + "a b " * (SIZE // 4) + '"}', 400),
    "a text without spaces": ("/v1/completions", '{"max_tokens":1,"prompt":"' + "x" * SIZE + '"}', 400),
    "a text of escapes": ("/v1/completions", '{"max_tokens":1,"prompt":"' + "\\u0001" * (SIZE // 6) + '"}', 400),
    "logit_bias": ("/v1/completions", '{"prompt":"1","logit_bias":{' + members("1") + "}}", 400),
    "stop": ("/v1/completions", '{"prompt":"1","stop":[' + repeated('""') + "]}", 400),
    "a label": ("/v1/completions", '{"prompt":"1","max_tokens":1,"metadata":{' + members("{}") + "}}", 400),
    "a choice": ("/v1/completions", '{"prompt":"1","guided_choice":[' + repeated('"a"') + "]}", 400),
    "a regular expression": ("/v1/completions", '{"prompt":"1","guided_regex":"' + "(a|b)" * (SIZE // 5) + '"}', 400),
    "a schema": ("/v1/completions", '{"prompt":"1","guided_json":{"enum":[' + repeated("1") + "]}}", 400),
    "input_ids": ("/generate", '{"sampling_params":{"max_new_tokens":1},"input_ids":[' + repeated("1") + "]}", 400),
    "sampling_params": ("/generate", '{"text":"1","sampling_params":[' + repeated("{}") + "]}", 400),
    "parts of a message": ("/v1/chat/completions", '{"max_tokens":1,"messages":[{"role":"user","content":[' + PARTS + "]}]}", 400),
    "messages": ("/v1/chat/completions", '{"max_tokens":1,"messages":[' + repeated('{"role":"user","content":""}') + "]}", 400),
    "a message of text": ("/v1/chat/completions", '{"max_tokens":1,"messages":[{"role":"user","content":"' + "1 + 2 = " * (SIZE // 8) + '"}]}', 400),
    "a message of line ends": ("/v1/chat/completions", '{"max_tokens":1,"messages":[{"role":"user","content":"' + "\\n" * (SIZE // 2) + '"}]}', 400),
    "nested lists": ("/v1/chat/completions", "{" + TALK + ',"tools":[' + nested(1000) + "]}", 400),
    "tools": ("/v1/chat/completions", '{"max_tokens":1,' + TALK + ',"tools":[' + repeated(TOOL) + "]}", 400),
    "template variables": ("/v1/chat/completions", '{"max_tokens":1,' + TALK + ',"chat_template_kwargs":{' + members("1") + "}}", 400),
    "one template variable": ("/v1/chat/completions", '{"max_tokens":1,' + TALK + ',"chat_template_kwargs":{"x":[' + repeated("1") + "]}}", 400),
    "arguments": ("/v1/chat/completions", '{"max_tokens":1,"messages":[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{\\"x\\":[' + repeated("{}") + ']}"}}]},{"role":"user","content":"2"}]}', 400),
    "arguments of many calls": ("/v1/chat/completions", '{"messages":[{"role":"assistant","content":"","tool_calls":[' + repeated('{"function":{"name":"f","arguments":"{\\"x\\":[' + repeated("{}", 12000) + ']}"}}') + ']},{"role":"user","content":"2"}]}', 400),
    "a schema as text": ("/v1/completions", '{"prompt":"1","guided_json":"{\\"enum\\":[' + repeated("{}", SIZE // 2) + ']}"}', 400),
    "input": ("/v1/responses", '{"input":[' + repeated('{"role":"user","content":""}') + "]}", 400),
    "text to tokenize": ("/tokenize", '{"prompt":"' + "12 " * (SIZE // 3) + '"}', 200),
    "text as strings": ("/tokenize", '{"return_token_strs":true,"prompt":"' + "1" * SIZE + '"}', 200),
    "ids to detokenize": ("/detokenize", '{"tokens":[' + repeated("17") + "]}", 200),
    "an abort": ("/abort_request", '{"rid":[' + repeated('""') + "]}", 400),
    "a pause": ("/pause_generation", '{"mode":[' + repeated("{}") + "]}", 400),
    "new weights": ("/update_weights_from_disk", '{"model_path":[' + repeated("{}") + "]}", 400),
}


def memory(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(rf"^{name}:\s+(\d+) kB", f.read(), re.M)[1]) << 10


def send(port, route, text, out):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    key = {"Content-Type": "application/json", "Authorization": "Bearer admin"}
    connection.request("POST", route, text, key)
    response = connection.getresponse()
    out.append((response.status, response.read()[:300]))
    connection.close()


def settled(pid, most):
    """The memory of the process after it has freed its caches."""
    for _ in range(40):
        now = memory(pid, "VmRSS")
        if now <= most:
            break
        time.sleep(0.1)
    return now


def measure(pid, port, name, before):
    route, text, status = BODIES[name]
    text = text.encode()
    answers = []
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as f:
        f.write("5")  # the peak begins anew
    start = memory(pid, "VmRSS")
    senders = [threading.Thread(target=send, args=(port, route, text, answers)) for _ in range(SENDERS)]
    for t in senders:
        t.start()
    for t in senders:
        t.join()
    peak = memory(pid, "VmHWM") - start
    left = settled(pid, before * 1.1 + LEFT)
    times = peak / (SENDERS * len(text))
    print(f"{name}: {answers[0][0]}, peak {peak >> 20} MiB, {times:.1f} times, left {(left - before) >> 20} MiB {answers[0][1][:120]}")
    check(len(answers) == SENDERS, name, answers)
    return [] if (
        all(a[0] == status for a in answers) and peak <= TIMES * SENDERS * len(text) + FIXED and left <= before * 1.1 + LEFT
    ) else [name]


def test_memory():
    command = [BINARY, "serve", str(TINY_MATH), "--port", "0", "--threads", "2", "--admin-api-key", "admin", "--disable-log-requests"]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log) as server:
        try:
            port = wait_for_port(server, log)
            send(port, "/v1/completions", b'{"prompt":"1 + 1","max_tokens":4}', [])
            before = memory(server.pid, "VmRSS")
            names = sys.argv[1:] or BODIES
            wrong = [w for name in names for w in measure(server.pid, port, name, before)]
            check(not wrong, wrong)
        finally:
            server.terminate()


main(test_memory)
