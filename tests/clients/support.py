"""Shared by the client tests: the server's address, a small HTTP client, counted checks."""

import json
import os
import sys
import urllib.error
import urllib.request

URL = os.environ.get("INVAR_URL", "http://127.0.0.1:8000").rstrip("/")
API_KEY = os.environ.get("INVAR_API_KEY", "none")
ADMIN_KEY = os.environ.get("INVAR_ADMIN_KEY", "")
SKIPPED = 77

checks = 0


def check(condition, *what):
    """Counts a check, and ends the test if it fails."""
    global checks
    checks += 1
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what) or "check failed")


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(SKIPPED)


def call(method, path, body=None, key=None):
    """Status and JSON (or text) of one request."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key or API_KEY}"}
    request = urllib.request.Request(URL + path, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as e:
        status, text = e.code, e.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def post(path, body, key=None):
    """JSON of a POST that must succeed."""
    status, answer = call("POST", path, body, key)
    check(status == 200, path, status, answer)
    return answer


def events(path, body):
    """The events of a stream, parsed, without the last one, which must be [DONE]."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}
    request = urllib.request.Request(URL + path, data=json.dumps(body).encode(), method="POST", headers=headers)
    out = []
    done = False
    with urllib.request.urlopen(request, timeout=120) as response:
        check(response.headers["Content-Type"].startswith("text/event-stream"), response.headers["Content-Type"])
        for line in response:
            line = line.decode().rstrip("\n")
            if not line:
                continue
            check(line.startswith("data: ") and not done, line)
            if line == "data: [DONE]":
                done = True
            else:
                out.append(json.loads(line[6:]))
    check(done, "no [DONE]")
    return out


def main(*tests):
    for test in tests:
        test()
        print(f"ok {test.__name__}")
    print(f"{len(tests)} tests, {checks} checks")
