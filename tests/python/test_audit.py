"""invar.audit and invar.testing, with servers of the installed program and stand-ins."""
import http.server
import json
import re
import subprocess
import sys
import threading
import time

import pytest

import invar
from invar import LLM, InvarError, SamplingParams, Status, Trainer, testing
from support import MODEL, serving

QUICK = {"requests": 6, "rounds": 1, "max_tokens": 24, "tag": "t"}


class Standin(http.server.ThreadingHTTPServer):
    """A server with `answer(body, running)` -> status and body, and the fields that it refuses."""

    request_queue_size = 256

    def __init__(self, answer, refused=(), headers=None):
        self.running, self.lock, self.bodies = 0, threading.Lock(), []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def reply(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.reply(200, {"data": [{"id": "standin"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/v1/chat/completions":
                    return self.reply(404, {"error": {"message": "no such route"}})
                for name in refused:
                    if name in body:
                        return self.reply(400, {"error": {"message": f"{name}: unknown field"}})
                server = self.server
                with server.lock:
                    server.running += 1
                    server.bodies.append(body)
                    running = server.running
                said = answer(body, running)
                with server.lock:
                    server.running -= 1
                self.reply(*said)

        super().__init__(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


def said(text, logprobs=None):
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    if logprobs:
        choice["logprobs"] = {"content": [{"token": f"t{i}", "logprob": v} for i, v in enumerate(logprobs)]}
    return 200, {"choices": [choice]}


def test_audit_of_invar(tmp_path):
    with serving() as url:
        report = testing.assert_audit(url, **QUICK)
        assert invar.audit(url + "/v1/", api="completions", temperature=0.9, **QUICK).equal  # seeds hold
    assert report and report.logprobs and report.total("sent") == 6 * 8 and not any(row.skipped for row in report.rows)
    assert report.fingerprint.startswith("iv") and report.first_difference() == ""
    for name in ("a.html", "a.svg", "a.json"):
        report.save(tmp_path / name)
    page = (tmp_path / "a.html").read_text()
    assert "0</b><div>of 48 answers differ" in page and not re.search(r"src=|href=|url\(|<script", page)
    assert json.loads((tmp_path / "a.json").read_text())["different"] == 0
    with pytest.raises(InvarError, match="html, .svg or .json"):
        report.save(tmp_path / "a.png")


def test_audit_of_other_sums(tmp_path):
    """The control: an engine whose sums depend on the batch."""
    with serving("--numerics", "vanilla") as url:
        words = [sys.executable, "-m", "invar.audit", url, "--requests", "6", "--rounds", "1", "--max-tokens", "24"]
        words += ["-o", "v.html", "-o", "v.svg"]
        ran = subprocess.run(words, cwd=tmp_path, text=True, capture_output=True)
        assert ran.returncode == 1, ran.stdout + ran.stderr
        assert re.search(r"all at once +6 +[1-6] ", ran.stdout) and "first difference: request " in ran.stdout
        with pytest.raises(AssertionError, match=r"answers differ(.|\n)*token \d+: wanted .*0x[0-9a-f]{8}"):
            testing.assert_audit(url, **QUICK)
    assert "differ" in (tmp_path / "v.html").read_text() and (tmp_path / "v.svg").read_text().startswith("<svg")


def test_audit_of_a_server_that_lacks_fields():
    def answer(body, running):
        time.sleep(0.05)
        text = f"{body['messages'][0]['content']} <b>bold</b> {'apart' if running > 1 else 'alone'}"
        return (400, {"error": {"message": "no streams"}}) if "stream" in body else said(text)

    with Standin(answer, ("logprobs", "seed", "return_token_ids")) as standin:
        report = invar.audit(standin.url, **QUICK)
    assert not report and not report.logprobs and report.total("logprob") == report.total("error") == 0
    rows = {row.name: row for row in report.rows}
    assert rows["repeat"].total("different") == rows["order"].total("different") == 0 < rows["batch"].total("text")
    assert "no streams" in rows["stream"].skipped and "no open route" in rows["cold"].skipped
    assert any("no log-probabilities" in note for note in report.notes) and any("no seed" in note for note in report.notes)
    assert "&lt;b&gt;bold" in report.html() and "<b>bold" not in report.html()
    assert all("max_tokens" in body and "seed" not in body for body in standin.bodies)


def test_audit_of_one_bit():
    """The last bit of one log-probability, in the second answer to each prompt."""
    seen = set()

    def answer(body, running):
        prompt = body["messages"][0]["content"]
        value = -0.25 if prompt not in seen else -0.25000003
        seen.add(prompt)
        return said("same", [-1.0, value, -2.0])

    with Standin(answer, ("max_tokens is not supported, use max_completion_tokens", "stream")) as standin:
        report = invar.audit(standin.url, **QUICK)
    row = report.rows[0]
    assert row.total("logprob") == row.total("sent") == 6 and row.total("text") == 0 and report.total("text") == 0
    wanted = "token 1: wanted 't1' logprob -0.25 (0xbe800000), found 't1' logprob -0.25000003 (0xbe800001)"
    assert str(row.cells[0].first) == wanted


def test_audit_waits_and_fails():
    count = [0]

    def limited(body, running):
        count[0] += 1
        return (429, {"error": {"message": "slow down"}}) if count[0] % 3 == 0 else said("x", [-1.0])

    with Standin(limited, headers={"Retry-After": "0.01"}) as standin:
        report = invar.audit(standin.url, **QUICK)
    assert report.total("error") == report.total("different") == 0 and any("asked to wait" in note for note in report.notes)
    with Standin(lambda body, running: (500, {"error": {"message": "out of order"}})) as standin:
        with pytest.raises(InvarError, match="wanted an answer, found .*500: out of order") as caught:
            invar.audit(standin.url, **QUICK)
        assert caught.value.status == Status.UNSUPPORTED
    broken = [0]

    def sometimes(body, running):
        broken[0] += 1
        return (500, {"error": {"message": "lost a GPU"}}) if broken[0] > 10 and broken[0] % 2 else said("x", [-1.0])

    with Standin(sometimes) as standin:
        report = invar.audit(standin.url, **QUICK)
    assert not report and report.total("different") == 0 < report.total("error") and "lost a GPU" in report.html()
    for url, words in (("ftp://x", "wanted http"), ("http://127.0.0.1:9", "no answer")):
        with pytest.raises(InvarError, match=words):
            invar.audit(url)
    ran = subprocess.run([sys.executable, "-m", "invar.audit", "http://127.0.0.1:9"], text=True, capture_output=True)
    assert ran.returncode == 2 and "no answer" in ran.stderr and len(ran.stderr.splitlines()) == 1


def test_audit_needs_nothing():
    """Neither the library nor numpy is loaded."""
    code = "import sys, invar; invar.audit; assert not {'numpy', 'cffi', '_cffi_backend'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- invar.testing

PROMPTS = ["2 + 2 =", "What is 17 * 6?", "3 + 4 ="]


def test_engines_and_trainer():
    with LLM(MODEL) as a, LLM(MODEL, max_num_seqs=1, threads=1) as b, LLM(MODEL, numerics="vanilla") as other:
        testing.assert_same_engines(a, b, PROMPTS)
        testing.assert_same_engines(a, b, PROMPTS, SamplingParams(n=2, max_tokens=20))
        words = r"request \d \(.*, seed \d+\), answer 0, token \d+: wanted id \d+ logprob -\S+ \(0x[0-9a-f]{8}\), found "
        with pytest.raises(AssertionError, match=words + r"(.|\n)*\d of 3 answers differ"):
            testing.assert_same_engines(a, other, PROMPTS)
        with Trainer(MODEL, pass_tokens=512) as trainer:
            testing.assert_same_trainer(a, trainer, PROMPTS)
            with pytest.raises(AssertionError, match=words):
                testing.assert_same_trainer(other, trainer, PROMPTS)
        outputs = a.generate(PROMPTS, SamplingParams(seed=1, max_tokens=8, ignore_eos=True), use_tqdm=False)
        rows = [list(output.outputs[0].token_logprobs) for output in outputs]
        testing.assert_same_logprobs(outputs, rows)
        rows[1][3] -= 1e-6 * abs(rows[1][3]) + 1e-12
        with pytest.raises(AssertionError, match=r"request 1 \('What is 17 \* 6\?', seed 1\), answer 0, token 3: .*1 of 8 tokens"):
            testing.assert_same_logprobs(outputs, rows)
        with pytest.raises(AssertionError, match="wanted 8 log-probabilities, found 7"):
            testing.assert_same_logprobs(outputs, [row[:-1] for row in rows])


def test_receipt_and_server():
    params = SamplingParams(seed=2**63 + 5, max_tokens=30, temperature=0.9, top_k=40, logit_bias={5: 1.5}, stop=["="], min_tokens=3,
                            receipt=True)  # fmt: skip
    with LLM(MODEL) as llm:
        text = llm.generate("2 + 2 =", params, use_tqdm=False)[0].outputs[0].receipt
    with serving("--tensor-parallel-size", "2") as url:
        testing.assert_same_receipt(url, text)
    with serving("--numerics", "vanilla") as url:
        wrong = json.loads(text)
        wrong["request"]["seed"] = "6"
        with pytest.raises(AssertionError, match=r"seed 6, token \d+: wanted id"):
            testing.assert_same_receipt(url, json.dumps(wrong))
    with Standin(lambda body, running: said("x")) as standin, pytest.raises(InvarError, match="no such route"):
        testing.assert_same_receipt(standin.url, text)
