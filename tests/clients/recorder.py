"""A recording proxy in front of the server: clients hide unknown fields of an answer, such as its digest."""

import http.client
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support import URL, check, post

MODEL = "tiny-math"
QUESTION = "What is 12 + 30?"
MESSAGES = [{"role": "user", "content": QUESTION}]
TOO_LONG = "12 " * 1500  # of tiny-math's 2,048 tokens
WRITTEN_BY_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")

exchanges = []  # (path, request, status, text of the answer), in the order in which they ended
running = 0  # requests that have no exchange yet
changed = threading.Condition()  # guards both
SETTLE_S = 30


class Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def relay(self):
        global running
        with changed:
            running += 1
        try:
            self.pass_on()
        finally:
            with changed:
                running -= 1
                changed.notify_all()

    def pass_on(self):
        asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server = http.client.HTTPConnection(urllib.parse.urlsplit(URL).netloc, timeout=120)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in (*WRITTEN_BY_HOP, "host", "accept-encoding")}
        server.request(self.command, self.path, asked or None, headers)
        answer = server.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in WRITTEN_BY_HOP:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        text = b""
        while part := answer.read1(65536):
            text += part
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.flush()
        with changed:
            exchanges.append((self.path, json.loads(asked) if asked else None, answer.status, text.decode()))
        self.wfile.write(b"0\r\n\r\n")
        server.close()

    do_GET = do_POST = relay

    def log_message(self, *_):
        pass


relay = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
relay.daemon_threads = True
threading.Thread(target=relay.serve_forever, daemon=True).start()
ROOT = f"http://127.0.0.1:{relay.server_port}"
BASE = ROOT + "/v1"


def posts():
    """A client that has read the last event of a stream may be here before the relay has read the stream's end."""
    with changed:
        check(changed.wait_for(lambda: not running, SETTLE_S), running, "requests without an end")
        return [e for e in exchanges if e[1] is not None]


def digest_of(text):
    """The digest of an answer, whole or streamed; of several choices the last one."""
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    digests = []
    for part in events or [text]:
        value = json.loads(part)
        for holder in (value, value.get("response") or {}):
            if holder.get("invar"):
                digests.append(holder["invar"]["digest"])
    check(digests and digests[-1].startswith("sha256:"), "no digest in", text[-400:])
    return digests[-1]


def last_digest():
    return digest_of(posts()[-1][3])


def last_request():
    return posts()[-1][1]


def direct_digest(path="/v1/chat/completions", **body):
    """The digest of the same request without the client."""
    if path == "/v1/chat/completions":
        body = {"messages": MESSAGES} | body
    return post(path, {"model": MODEL} | body)["invar"]["digest"]


def same_as_direct(**body):
    """The client's last answer has the bits of a request without the client; the control is another seed at a high temperature."""
    check(last_digest() == direct_digest(**body), last_request(), body)
    hot = body | {"temperature": 5, "top_p": 1, "top_k": -1}
    check(direct_digest(**hot) != direct_digest(**hot | {"seed": hot.get("seed", 0) + 1}), "seeds change nothing")


def expect_too_long(error_class, ask):
    """The client's exception for a prompt that does not fit, and the server's message."""
    try:
        ask()
    except error_class as error:
        path, _, status, text = posts()[-1]
        check(status == 400 and json.loads(text)["error"]["code"] == "context_length_exceeded", path, text)
        return error
    check(False, "too long a prompt was taken")
