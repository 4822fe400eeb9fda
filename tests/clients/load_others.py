"""`invar bench serve` against servers that are not invar's: small fakes that answer like vLLM and llama.cpp's server."""

import http.server
import json
import os
import subprocess
import threading
import time

from support import check, main

BINARY = os.environ.get("INVAR_BINARY", "build/invar")
GAP_S = 0.02


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        if self.path == "/v1/models":
            model = {"id": "their-model", "object": "model"}
            self.reply(200, {"object": "list", "data": [model | ({"max_model_len": 4096} if self.server.like_vllm else {})]})
        elif self.path == "/version" and self.server.like_vllm:
            self.reply(200, {"version": "0.11.0"})
        else:
            self.reply(404, {"error": {"message": "not found"}})

    def event(self, value):
        end = "\n\n" if self.server.like_vllm else "\r\n\r\n"
        text = f"data: {value if isinstance(value, str) else json.dumps(value)}{end}".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, body))
        chat = self.path == "/v1/chat/completions"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if chat:
            self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for i in range(body["max_tokens"]):
            time.sleep(GAP_S)
            piece = {"delta": {"content": "a"}} if chat else {"text": "a"}
            last = "length" if i + 1 == body["max_tokens"] else None
            self.event({"choices": [{"index": 0, **piece, "finish_reason": last}]})
        if self.server.like_vllm:
            words = len((body["messages"][0]["content"] if chat else body["prompt"]).split())
            self.event({"choices": [], "usage": {"prompt_tokens": words, "completion_tokens": body["max_tokens"]}})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


def bench(like_vllm, *flags):
    """The report, standard error and the requests to the server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.like_vllm, server.bodies = like_vllm, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    command = [BINARY, "bench", "serve", url, "--num-prompts", "6", "--random-input-len", "10", "--random-output-len", "5", "--json", *flags]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    server.shutdown()
    check(done.returncode == 0, done.returncode, done.stderr)
    return json.loads(done.stdout), done.stderr, server.bodies


def look(report, bodies, route, model):
    check(len(bodies) == 6 and all(path == route for path, _ in bodies), bodies)
    check(all(b["model"] == model and b["stream"] and b["max_tokens"] == 5 for _, b in bodies), bodies)
    check(report["completed"] == 6 and report["failed"] == 0 and report["total_output_tokens"] == 30, report)
    check(report["checked"] == 0 and report["differing"] == 0, report)
    least = 1000 * GAP_S
    check(report["mean_ttft_ms"] >= least and report["median_itl_ms"] >= least * 0.5, report)
    check(report["mean_e2el_ms"] >= 5 * least and report["output_throughput"] > 0, report)


def test_completions():
    report, said, bodies = bench(True)
    look(report, bodies, "/v1/completions", "their-model")
    check(report["total_input_tokens"] == 60, report)
    check(said.count("digests are not checked") == 1, said)
    check(len({b["prompt"] for _, b in bodies}) == 6, bodies)


def test_chat():
    report, _, bodies = bench(True, "--chat", "--random-prefix-len", "4")
    look(report, bodies, "/v1/chat/completions", "their-model")
    prompts = [b["messages"][0]["content"] for _, b in bodies]
    check(report["total_input_tokens"] == 84 and len({p[:20] for p in prompts}) == 1, prompts)


def test_without_counts():
    """Events with carriage returns and no usage: tokens are counted from events."""
    for flags in ((), ("--chat", "--model", "named")):
        report, _, bodies = bench(False, *flags)
        look(report, bodies, "/v1/chat/completions" if flags else "/v1/completions", "named" if flags else "their-model")


main(test_completions, test_chat, test_without_counts)
