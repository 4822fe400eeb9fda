"""fake_server.py: replaces `invar serve` in tests of the page: the same routes and formats, no model.

Answers are a pure function of the prompt's tokens, the seed and the position. `vanilla` makes log-probabilities depend
on how many requests run, as other engines do: the page must see it. Serves the page as page.c lays it out."""

import argparse
import base64
import hashlib
import json
import math
import pathlib
import re
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
FINGERPRINT = "iv1-fma32-bfloat16-0123456789abcdef"
END = "<|im_end|>"
SCRIPT = "<think>\n12 + 9 = 21\n21 - 6 = 15\n</think>\n\nOmar has **15** apples left, since 12 + 9 - 6 = 15." + END


def page():
    """The parts in page.c's order, as the assembler puts them."""
    source = (ROOT / "src/serve/page/page.c").read_text()
    parts = re.findall(r'\.incbin \\"([^"\\]+)\\"', source)
    return b"".join((ROOT / "src" / p).read_bytes() for p in parts)


def policy(html):
    def part(tag):
        inner = re.search(f"<{tag}>(.*?)</{tag}>".encode(), html, re.S).group(1)
        return base64.b64encode(hashlib.sha256(inner).digest()).decode()

    return (
        f"default-src 'none'; script-src 'sha256-{part('script')}'; style-src 'sha256-{part('style')}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Words:
    """A tokenizer of words: ids are hashes, texts are remembered."""

    def __init__(self):
        self.text = {}

    def id(self, word):
        n = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little") % 150000
        self.text[n] = word
        return n

    def ids(self, text):
        return [self.id(w) for w in re.findall(r"<\|?/?\w+\|?>| ?\w+|\n+|.", text, re.S)]


class Model:
    def __init__(self, vanilla=False, token_seconds=0.003):
        self.words, self.vanilla, self.token_seconds = Words(), vanilla, token_seconds
        self.script = self.words.ids(SCRIPT)
        self.others = self.words.ids(" and so the then left apples give 7 11 15 . , : marbles has")
        self.lock = threading.Lock()
        self.running = self.generated = self.prompt = self.cached = self.finished = self.steps = 0
        self.ties = True  # near-ties may go to the second
        self.refusal = None  # the message of a 400 for every answer
        self.cache, self.first, self.gaps, self.flushes, self.requests = set(), [], [], 0, []

    def say(self, text):
        """Sets the text of all further answers."""
        self.script, self.ties = self.words.ids(text + END), False

    def row(self, ids, step, seed):
        """The top tokens after ids, and the chosen one."""
        h = hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).digest()
        own = self.script[step] if step < len(self.script) else self.others[h[0] % len(self.others)]
        if h[1] % 7 == 0:  # a near-tie
            p = [0.41, 0.40, 0.1, 0.05, 0.02]
        elif h[1] % 5 == 0:
            p = [0.7, 0.15, 0.08, 0.03, 0.02]
        else:
            p = [0.985, 0.008, 0.004, 0.001, 0.0005]
        ids_top = [own] + [o for o in (self.others[(h[2] + 3 * k) % len(self.others)] for k in range(8)) if o != own]
        ids_top = list(dict.fromkeys(ids_top))[:5]
        noise = (h[3] / 255 - 0.5) * 0.01
        if self.vanilla and self.running > 2:
            noise += 1e-6 * self.running
        top = [(i, float32(math.log(q) + noise - 1e-3)) for i, q in zip(ids_top, p)]
        draw = hashlib.sha256(h + str(seed).encode()).digest()[0] / 256
        chosen = 1 if self.ties and p[0] < 0.5 and draw > 0.7 and step < len(self.script) - 1 else 0
        return top, top[chosen]

    def generate(self, ids, step, body, seed):
        """Yields (id, logprob, top, finish)."""
        most = body.get("max_tokens") or 4096
        for n in range(most):
            time.sleep(self.token_seconds)
            top, (token, logprob) = self.row(ids, step + n, seed)
            ends = token == self.words.id(END) and not body.get("ignore_eos")
            ids = ids + [token]
            with self.lock:
                self.generated += 1
                self.steps += 1
            yield token, logprob, top, "stop" if ends else "length" if n + 1 == most else None
            if ends:
                return


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model, api_key, admin_key = None, None, None
    fingerprint, cors = FINGERPRINT, False

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json", headers=()):
        data = (
            body
            if isinstance(body, bytes)
            else json.dumps(body).encode() if not isinstance(body, str) else body.encode()
        )
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def error(self, status, message, param=None):
        self.reply(
            status, {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": status}}
        )

    def allowed(self, key):
        if not key or self.headers.get("Authorization") == "Bearer " + key:
            return True
        self.error(401, "the API key is missing or wrong")
        return False

    def end_headers(self):
        if self.cors:
            for name, value in (("Origin", "*"), ("Headers", "content-type"), ("Methods", "GET, POST")):
                self.send_header("Access-Control-Allow-" + name, value)
        super().end_headers()

    def do_OPTIONS(self):
        self.reply(204, b"")

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/":
            html = page()
            return self.reply(200, html, "text/html; charset=utf-8", [("Content-Security-Policy", policy(html))])
        if not self.allowed(self.api_key):
            return None
        if path == "/v1/models":
            return self.reply(
                200, {"object": "list", "data": [{"id": "tiny-fake", "object": "model", "max_model_len": 2048}]}
            )
        if path == "/server_info":
            info = {"version": "0.1.0", "fingerprint": self.fingerprint, "max_running_requests": 16}
            return self.reply(200, info | {"tp_size": 8, "device": "cpu", "threads": 8, "isa": "none"})
        if path == "/metrics":
            return self.reply(200, self.metrics(), "text/plain")
        return self.error(404, "no such route")

    def metrics(self):
        m = self.model

        def histogram(name, bounds, values):
            rows = [f'{name}_bucket{{le="{b}"}} {sum(v <= b for v in values)}' for b in bounds]
            return rows + [
                f'{name}_bucket{{le="+Inf"}} {len(values)}',
                f"{name}_sum {sum(values)}",
                f"{name}_count {len(values)}",
            ]

        with m.lock:
            rows = ["# HELP invar_requests_running Requests that run.", "# TYPE invar_requests_running gauge"]
            for name, value in [
                ("requests_running", m.running),
                ("requests_waiting", max(0, m.running - 16)),
                ("kv_usage_ratio", m.running / 64),
                ("kv_pages", 512),
                ("kv_pages_held", m.running * 8),
                ("kv_pages_cached", len(m.cache)),
                ("prompt_tokens_total", m.prompt),
                ("generated_tokens_total", m.generated),
                ("cached_tokens_total", m.cached),
                ("steps_total", m.steps),
                ("computed_tokens_total", m.prompt + m.generated),
                ("preemptions_total", 0),
                ("requests_refused_total", 0),
                ("weight_version", 0),
            ]:
                rows.append(f'invar_{name}{{model_name="tiny-fake"}} {value}')
            rows.append(f'invar_requests_total{{model_name="tiny-fake",finish="stop"}} {m.finished}')
            rows += histogram(
                "invar_time_to_first_token_seconds", [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1], m.first
            )
            rows += histogram("invar_inter_token_seconds", [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1], m.gaps)
        return "\n".join(rows) + "\n"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path == "/flush_cache":
            if self.api_key and not self.admin_key:
                return self.error(403, "there is no admin key")
            if self.allowed(self.admin_key):  # a server without keys is open to its own machine
                with self.model.lock:
                    self.model.cache.clear()
                    self.model.flushes += 1
                self.reply(200, {"success": True})
            return None
        if not self.allowed(self.api_key):
            return None
        self.model.requests.append((self.path, body))
        if self.path == "/detokenize":
            return self.reply(200, {"prompt": "".join(self.model.words.text.get(i, "") for i in body["tokens"])})
        if self.path == "/tokenize":
            ids = self.model.words.ids(body["prompt"])
            return self.reply(200, {"tokens": ids, "count": len(ids), "max_model_len": 2048})
        if self.path == "/v1/chat/completions":
            return self.answer(body, True)
        if self.path == "/v1/completions":
            return self.answer(body, False)
        return self.error(404, "no such route")

    def answer(self, body, chat):
        m = self.model
        seed = body.get("seed")
        if seed is None:
            seed = int.from_bytes(hashlib.sha256(str(time.time()).encode()).digest()[:6], "little")
        if m.refusal:
            return self.error(400, m.refusal)
        if "return_sampling_logprobs" in body and chat:
            return self.error(400, "return_sampling_logprobs: this field is not known here", "return_sampling_logprobs")
        if chat:
            text = (
                "".join(f"<|im_start|>{t['role']}\n{t['content']}{END}\n" for t in body["messages"])
                + "<|im_start|>assistant\n"
            )
            prompts = [m.words.ids(text)]
        else:
            p = body["prompt"]
            prompts = [p] if p and isinstance(p[0], int) else p if isinstance(p, list) else [p]
            prompts = [m.words.ids(q) if isinstance(q, str) else q for q in prompts]
        children = [(ids, seed + i) for ids in prompts for i in range(body.get("n", 1))]
        with m.lock:
            m.running += len(children)
            m.prompt += sum(len(p) for p in prompts)
            hit = sum(len(p) // 64 * 64 for p in prompts if tuple(p) in m.cache)
            m.cached += hit
            m.cache.update(tuple(p) for p in prompts)
        try:
            self.run_children(body, chat, children, hit)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with m.lock:
                m.running -= len(children)
                m.finished += len(children)

    @staticmethod
    def step_of(model, ids):
        """How many tokens of the answer are already in the prompt."""
        mark = model.words.ids("<|im_start|>assistant\n")
        for at in range(len(ids) - len(mark), -1, -1):
            if ids[at : at + len(mark)] == mark:
                return len(ids) - at - len(mark)
        return 0

    def name(self, body, token):
        return f"token_id:{token}" if body.get("return_tokens_as_token_ids") else self.model.words.text.get(token, "")

    def entry(self, body, token, logprob):
        text = self.model.words.text.get(token, "")
        return {"token": self.name(body, token), "logprob": logprob, "bytes": list(text.encode()), "token_id": token}

    def logprobs(self, body, chat, tokens):
        if not chat:
            return {
                "tokens": [self.name(body, t) for t, _, _ in tokens],
                "token_logprobs": [p for _, p, _ in tokens],
                "top_logprobs": [
                    {self.name(body, i): q for i, q in top[: body.get("logprobs") or 0]} for _, _, top in tokens
                ],
            }
        return {
            "content": [
                {
                    **self.entry(body, t, p),
                    "top_logprobs": [self.entry(body, *o) for o in top[: body.get("top_logprobs") or 0]],
                }
                for t, p, top in tokens
            ]
        }

    def outcome(self, body, seed, tokens):
        data = b"".join(struct.pack("<If", t, p) for t, p, _ in tokens)
        out = {"seed": seed, "digest": "sha256:" + hashlib.sha256(data).hexdigest()}
        if body.get("return_receipt"):
            out["receipt"] = {"receipt": 1, "fingerprint": FINGERPRINT, "outcome": {"digest": out["digest"]}}
        return out

    def invar(self, body, seed, tokens):
        parameters = {
            "max_tokens": body.get("max_tokens"),
            "temperature": body.get("temperature", 0.6),
            "top_p": body.get("top_p", 0.95),
            "min_p": 0.0,
            "top_k": body.get("top_k", 20),
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": [],
            "ignore_eos": body.get("ignore_eos", False),
            "logit_bias": {},
        }
        return {**self.outcome(body, seed, tokens), "fingerprint": FINGERPRINT, "parameters": parameters}

    def run_children(self, body, chat, children, hit):
        m = self.model
        started = last = time.time()
        lists, finishes = [[] for _ in children], [None] * len(children)
        generators = [m.generate(ids, self.step_of(m, ids), body, seed) for ids, seed in children]
        stream, thinking = body.get("stream"), False
        usage = {"prompt_tokens": len(children[0][0]), "prompt_tokens_details": {"cached_tokens": hit}}
        if stream:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
        texts = [["", ""] for _ in children]
        for first in range(10**9):
            live = False
            for c, g in enumerate(generators):
                got = next(g, None) if finishes[c] is None else None
                if got is None:
                    continue
                live = True
                token, logprob, top, finishes[c] = got
                with m.lock:
                    (m.gaps if first else m.first).append(time.time() - last)
                last = time.time()
                lists[c].append((token, logprob, top))
                text = m.words.text[token]
                part = text
                if chat:
                    thinking = text == "<think>" or (thinking and text != "</think>")
                    part = "" if text in ("<think>", "</think>", END) else text
                    texts[c][0 if thinking else 1] += part
                else:
                    texts[c][1] += part
                if stream:
                    self.send_chunk(body, chat, children, c, not first, thinking, part, lists[c], finishes[c])
            if not live:
                break
        if stream:
            self.chunk("data: " + json.dumps({"choices": [], "usage": usage}) + "\n\n")
            self.chunk("data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_answer(body, chat, children, lists, finishes, texts, usage)

    def send_chunk(self, body, chat, children, c, first, thinking, part, tokens, finish):
        """The last of the tokens of choice c, as an event."""
        delta = {"delta": {"reasoning_content": part} if thinking else {"content": part}} if chat else {"text": part}
        logprobs = self.logprobs(body, chat, tokens[-1:]) if body.get("logprobs") is not None else None
        choice = {"index": c, **delta, "logprobs": logprobs, "finish_reason": finish, "token_ids": [tokens[-1][0]]}
        chunk = {"choices": [choice], "usage": None, "system_fingerprint": FINGERPRINT}
        if first:
            chunk["prompt_token_ids"] = children[0][0]
        if finish and len(children) == 1:
            chunk["invar"] = self.invar(body, children[c][1], tokens)
        self.chunk("data: " + json.dumps(chunk) + "\n\n")

    def send_answer(self, body, chat, children, lists, finishes, texts, usage):
        choices = []
        for c, tokens in enumerate(lists):
            content = (
                {"message": {"role": "assistant", "reasoning_content": texts[c][0], "content": texts[c][1]}}
                if chat
                else {"text": texts[c][1]}
            )
            choices.append(
                {
                    "index": c,
                    **content,
                    "logprobs": self.logprobs(body, chat, tokens),
                    "finish_reason": finishes[c],
                    "token_ids": [t for t, _, _ in tokens],
                }
            )
        invar = self.invar(body, children[0][1], lists[0])
        if len(children) > 1:
            invar["choices"] = [
                {"index": c, **self.outcome(body, children[c][1], lists[c])} for c in range(len(children))
            ]
        self.reply(
            200,
            {
                "choices": choices,
                "usage": usage,
                "system_fingerprint": FINGERPRINT,
                "prompt_token_ids": children[0][0],
                "invar": invar,
            },
        )

    def chunk(self, text):
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Browsers may disconnect at any time."""


def start(
    port=0, vanilla=False, api_key=None, admin_key=None, token_seconds=0.003, fingerprint=FINGERPRINT, cors=False
):
    model = Model(vanilla, token_seconds)
    bound = {"model": model, "api_key": api_key, "admin_key": admin_key, "fingerprint": fingerprint, "cors": cors}
    handler = type("Bound", (Handler,), bound)
    server = Server(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, model


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="the page over a server without a model")
    arguments.add_argument("--port", type=int, default=8000)
    arguments.add_argument("--vanilla", action="store_true", help="bits depend on the batch")
    arguments.add_argument("--api-key")
    arguments.add_argument("--admin-api-key")
    a = arguments.parse_args()
    running, _ = start(a.port, a.vanilla, a.api_key, a.admin_api_key)
    print(f"http://127.0.0.1:{running.server_address[1]}/")
    threading.Event().wait()
