"""A server under test: its process, its log through a pipe, its memory and threads in /proc."""

import asyncio
import fcntl
import json
import os
import pathlib
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time

from wire import ask_once, get, post

BINARY = os.environ.get("INVAR_BINARY", "build/invar")
TINY_MATH = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-math"
START_S, STOP_S = 120, 30
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MB = 1 << 20
QUICK, SLOW, STOPPED = range(3)  # how the log is read


def raise_file_limit():
    """As many open files as this process may have; the server inherits them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def end_when_terminated():
    """SIGTERM (a test's timeout) leaves through `finally`, which stops the server."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def cpu_seconds(pid):
    """Processor time of a process, 0 after its end."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def children(pid):
    """The processes that a process has started and not yet reaped."""
    try:
        return [int(p) for thread in pathlib.Path(f"/proc/{pid}/task").iterdir() for p in (thread / "children").read_text().split()]
    except OSError:
        return []


def machine_cpu_seconds():
    """Processor time of all processes of the machine."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    busy = [int(f) for i, f in enumerate(fields[:8]) if i not in (3, 4)]
    return sum(busy) / TICKS


def dummy_model(folder, tokenizer):
    """tiny-math's shape with another tokenizer, for --load-format dummy."""
    made = pathlib.Path(folder) / "dummy"
    made.mkdir()
    tokenizer = pathlib.Path(tokenizer).resolve()
    words = json.loads((tokenizer / "tokenizer.json").read_text())
    ids = [*words["model"]["vocab"].values(), *(t["id"] for t in words.get("added_tokens", []))]
    config = json.loads((TINY_MATH / "config.json").read_text())
    config |= {"vocab_size": (max(ids) + 64) // 64 * 64, "eos_token_id": max(ids), "pad_token_id": None}
    (made / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / name).symlink_to(tokenizer / name)
    (made / "chat_template.jinja").symlink_to(TINY_MATH / "chat_template.jinja")
    return made


class Served:
    """`invar serve` on a free port. A thread reads its log from a pipe: quickly, slowly, or not at all."""

    def __init__(self, binary, model, *flags):
        command = [binary, "serve", str(model), "--port", "0", *flags]
        ours, its = os.pipe()
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PAGE)  # soon full if nothing reads it
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=its)
        os.close(its)
        self.pid, self.lines, self.log_pace = self.process.pid, [], QUICK
        self.thread = threading.Thread(target=self._read_log, args=(ours,), daemon=True)
        self.thread.start()
        self.port = self._wait_for_port()

    def _read_log(self, fd):
        rest = b""
        while True:
            if self.log_pace == STOPPED or not select.select([fd], [], [], 0.1)[0]:
                time.sleep(0.02)
                continue
            data = os.read(fd, 1 << 16 if self.log_pace == QUICK else 256)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            self.lines += [line.decode("utf-8", "replace") for line in lines]
            if self.log_pace == SLOW:
                time.sleep(0.1)
        os.close(fd)

    def _wait_for_port(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            for line in list(self.lines):
                found = re.search(r"listening on http://.*:(\d+)$", line)
                if found:
                    return int(found[1])
            time.sleep(0.02)
        self.kill()
        raise SystemExit("no server: " + "\n".join(self.lines[-20:]))

    def alive(self):
        return self.process.poll() is None

    def processes(self):
        """The server and its engine."""
        return [self.pid, *children(self.pid)]

    def _status(self, field):
        """The sum over both processes."""
        total = 0
        for pid in self.processes():
            try:
                text = pathlib.Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            found = re.search(rf"^{field}:\s+(\d+)", text, re.M)
            total += int(found[1]) if found else 0
        return total

    def rss(self):
        return self._status("VmRSS") * 1024

    def peak(self):
        """The largest RSS since forget_peak, of each process."""
        return self._status("VmHWM") * 1024

    def forget_peak(self):
        for pid in self.processes():
            try:
                pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
            except OSError:
                pass  # then it is the largest since the start

    def threads(self):
        return self._status("Threads")

    def files(self):
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return 0

    def cpu(self):
        return sum(cpu_seconds(pid) for pid in self.processes())

    async def context(self):
        """The maximum length of a sequence."""
        models = (await ask_once(self.port, get("/v1/models"))).json()
        return models["data"][0]["max_model_len"]

    async def warm(self, context):
        """Touches the memory used under load: all pages of the KV cache, several sequences, worker threads."""
        found = next((re.search(r"KV cache of (\d+) tokens", line) for line in self.lines if "KV cache of" in line), None)
        tokens = int(found[1]) if found else 32768
        length = context - 8
        for i in range(tokens // length + 2):
            body = {"prompt": [(i * 31 + j * 7) % 500 + 10 for j in range(length)], "max_tokens": 1}
            await ask_once(self.port, post("/v1/completions", body, close=True))
        text = "1 2 3 " * 4000  # long enough for the worker threads
        bodies = [{"prompt": "2 + 2", "n": 4, "logprobs": 5, "max_tokens": min(200, context // 2), "ignore_eos": True, "stream": True}] * 4
        asks = [ask_once(self.port, post("/v1/completions", b, close=True)) for b in bodies]
        asks += [ask_once(self.port, post("/tokenize", {"prompt": text}, close=True)) for _ in range(16)]
        await asyncio.gather(*asks)

    def stop(self):
        """The exit status after SIGTERM; None where it had to be killed."""
        self.log_pace = QUICK
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self.thread.join(5)
        return code

    def kill(self):
        if self.alive():
            self.process.kill()
            self.process.wait()
