#!/usr/bin/env python3
"""RL stacks against `invar serve`, call by call and field by field as their sources make them: slime
(slime/backends/sglang_utils/sglang_engine.py, megatron_utils/update_weight), verl (workers/rollout/sglang_rollout:
http_server_engine.py, sglang_rollout.py) and SGLang's weight_sync/utils.py. Messages are those of torch 2.6
(torch_messages.py); torch itself takes them (python -m invar.weights), and the test is skipped without it. Two
checkpoints of one shape: after an update the answers, digests and fingerprints are those of a server that was started on
the second."""

import atexit
import base64
import contextlib
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import rl_python
import torch_messages as tm
from served import children
from upstream import BINARY, TINY_MATH, derived_model, wait_for_port

PROMPT = "12 + 30 ="
PYTHON = rl_python.find()
START_S = 60
checks = 0


def check(condition, *what):
    global checks
    checks += 1
    if not condition:
        raise AssertionError(" ".join(str(w)[:2000] for w in what) or "check failed")


class Server:
    """`invar serve` at loopback without keys."""

    def __init__(self, model, *flags, environment=None):
        self.log = tempfile.TemporaryFile("w+")
        command = [BINARY, "serve", str(model), "--port", "0", "--threads", "2", "--disable-log-requests", *flags]
        command += [] if "--weights-python" in flags else ["--weights-python", PYTHON]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.log, env=rl_python.environment() | (environment or {}))
        self.port = wait_for_port(self.process, self.log)

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                status, text = response.status, response.read().decode()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def post(self, path, body):
        status, answer = self.call("POST", path, body)
        check(status == 200, path, status, answer)
        return answer

    def refused(self, path, body, *words, status=400):
        """An error that has these words, and changes nothing."""
        before = self.answer()
        found, answer = self.call("POST", path, body)
        check(found == status and answer["success"] is False, path, found, answer)
        for word in words:
            check(word in answer["message"], word, "not in", answer["message"])
        check(self.answer() == before, path, "changed the answers")

    def answer(self):
        """What identifies the weights: digest, fingerprint, tokens."""
        a = self.post("/generate", {"input_ids": [10, 20, 30, 40], "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
                                    "return_logprob": True})
        return a["invar"]["digest"], a["system_fingerprint"], a["output_ids"]

    def child(self, word):
        """Of the server's processes the one with this word among its arguments."""
        for pid in children(self.process.pid):
            with contextlib.suppress(OSError):
                if word in pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                    return pid
        return None

    def engine(self):
        return self.child("engine-process")

    def sidecar(self):
        return self.child("invar.weights")

    def kill_engine(self):
        pid = self.engine()
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.engine() not in (None, pid) and self.call("GET", "/health")[0] == 200:
                return
            time.sleep(0.02)
        raise AssertionError("no engine after its death")

    def restore(self):
        """As it was started: a half-sent update dropped, the weights of the first checkpoint."""
        if self.call("POST", "/continue_generation", {})[0] != 200:
            self.post("/continue_generation", {})
        self.post("/update_weights_from_disk", {"model_path": str(TINY_MATH)})
        check(self.answer() == FIRST, "the next test's server")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            check(self.process.wait(60) == 0, "the server's end", self.text())

    def text(self):
        self.log.seek(0)
        return self.log.read()


keeping = True
kept = []  # the server of tests that want no flags: it and its weights process, which takes seconds to import torch, serve them all
KEPT_FLAGS = ("--max-request-body", "64M")


@contextlib.contextmanager
def serving(model, *flags, environment=None):
    keep = keeping and model == TINY_MATH and flags in ((), KEPT_FLAGS) and not environment
    server = kept.pop() if keep and kept else Server(model, *(KEPT_FLAGS if keep else flags), environment=environment)
    try:
        yield server
        if keep and server.process.poll() is None:
            server.restore()
            kept.append(server)
    except BaseException:
        print(server.text()[-3000:])
        server.process.kill()
        server.process.wait()
        raise
    if server.process.poll() is None and server not in kept:
        server.stop()


@atexit.register  # also of programs that import this one
def finish():
    while kept:
        kept.pop().stop()
    tm.free_all()
    scratch.cleanup()


def tensors_of(folder):
    """name -> (dtype, shape, bytes)"""
    names = {"BF16": "bfloat16", "F32": "float32", "F16": "float16"}
    raw = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    return {name: (names[t["dtype"]], t["shape"], raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]) for name, t in header.items()}


def second_checkpoint(folder):
    """tiny-math with the last bit of every weight flipped."""
    made = derived_model(folder, "second", with_weights=False)
    raw = bytearray((TINY_MATH / "model.safetensors").read_bytes())
    n = struct.unpack("<Q", raw[:8])[0]
    for i in range(8 + n, len(raw), 2):
        raw[i] ^= 1
    (made / "model.safetensors").write_bytes(raw)
    return made


scratch = tempfile.TemporaryDirectory()
SECOND = second_checkpoint(scratch.name)
ONE, TWO = tensors_of(TINY_MATH), tensors_of(SECOND)
with serving(SECOND) as s:
    WANTED = s.answer()
with serving(TINY_MATH, "--update-timeout", "60") as s:
    FIRST = s.answer()
check(WANTED[0] != FIRST[0] and WANTED[1] != FIRST[1], "a control: the checkpoints differ")


def rows(tensors):
    return [(name, dtype, shape, data) for name, (dtype, shape, data) in tensors.items()]


def parts(items, n):
    step = (len(items) + n - 1) // n
    return [items[i:i + step] for i in range(0, len(items), step)]


def pairs(tensors, how="file_system"):
    return [(name, tm.tensor(data, dtype, shape, how)) for name, dtype, shape, data in tensors]


# ---- slime's SGLangEngine, payload by payload


def slime_flush(s):
    for _ in range(60):
        if s.call("GET", "/flush_cache")[0] == 200:
            return
        time.sleep(0.1)
    raise TimeoutError("Timeout while flushing cache.")


def slime_from_tensor(s, texts, version):
    payload = {"serialized_named_tensors": texts, "load_format": "flattened_bucket", "flush_cache": False, "weight_version": version}
    return s.post("/update_weights_from_tensor", payload)


def slime_update(s, tensors, version, buckets=3):
    """UpdateWeightFromTensor.update_weights: pause, flush, buckets, continue."""
    s.post("/pause_generation", {})
    slime_flush(s)
    for part in parts(rows(tensors), buckets):
        slime_from_tensor(s, [tm.bucket(part)], version)
    s.post("/continue_generation", {})
    tm.free_all()


def test_slime_colocated():
    with serving(TINY_MATH) as s:
        check(s.answer() == FIRST)
        slime_update(s, TWO, "1")
        check(s.answer() == WANTED, s.answer())
        check(s.call("GET", "/get_weight_version")[1]["weight_version"] == "1")
        check(s.call("GET", "/health_generate")[0] == 200)
        slime_update(s, ONE, "2")
        check(s.answer() == FIRST, "and back")
        slime_update(s, TWO, "3", buckets=1)
        s.kill_engine()
        check(s.answer() == WANTED, "a restarted engine has the updated weights")
        check(s.call("GET", "/get_weight_version")[1]["weight_version"] == "3")


def test_slime_offload():
    """RolloutManager with --offload: release, resume the weights, update, resume the KV cache."""
    with serving(TINY_MATH) as s:
        slime_flush(s)
        s.post("/release_memory_occupation", {})
        check(s.engine() is None, "the engine's process is gone")
        check(s.call("GET", "/health")[1]["status"] == "released")
        status, answer = s.call("POST", "/generate", {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}})
        check(status == 503 and "resume_memory_occupation" in answer["error"]["message"], status, answer)
        s.post("/resume_memory_occupation", {"tags": ["weights"]})
        check(s.engine() is None)
        s.post("/pause_generation", {})
        slime_flush(s)
        for part in parts(rows(TWO), 2):
            slime_from_tensor(s, [tm.bucket(part)], "7")
        s.post("/continue_generation", {})
        s.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
        tm.free_all()
        check(s.answer() == WANTED, s.answer())
        check(s.call("GET", "/get_weight_version")[1]["weight_version"] == "7")
        status, answer = s.call("POST", "/release_memory_occupation", {"tags": ["everything"]})
        check(status == 400 and "everything" in answer["message"], answer)
        s.post("/release_memory_occupation", {"tags": None})
        s.post("/resume_memory_occupation", {"tags": None})
        check(s.answer() == WANTED)


def test_slime_ranks_and_empty_buckets():
    """Engines of two GPUs: a message for each rank, with other experts in each, and empty ones."""
    with serving(TINY_MATH) as s:
        first, second, third = parts(rows(TWO), 3)
        empty = tm.text({"flattened_tensor": tm.tensor(b"", "uint8", [0]), "metadata": []})
        slime_from_tensor(s, [tm.bucket(first), tm.bucket(first + second)], "1")
        slime_from_tensor(s, [empty, tm.bucket(third)], "1")
        check(s.answer() == WANTED, s.answer())
        check(all(tm.references(name) == 1 for name in tm.made), "each message's reference was given back")
        tm.free_all()


def test_slime_checks_weights():
    """--check-weight-update-equal: snapshot, reset_tensors, update, compare."""
    with serving(TINY_MATH) as s:
        s.post("/weights_checker", {"action": "snapshot"})
        s.post("/weights_checker", {"action": "compare"})
        s.post("/weights_checker", {"action": "reset_tensors"})
        check(s.answer()[0] != FIRST[0], "a control: the weights are random")
        s.refused("/weights_checker", {"action": "compare"}, "68 of 68 tensors differ", "model.embed_tokens.weight")
        slime_update(s, ONE, "1")
        s.post("/weights_checker", {"action": "compare"})
        check(s.answer() == FIRST)
        sums = s.post("/weights_checker", {"action": "checksum"})
        import hashlib
        check(all(sums["ranks"][0]["checksums"][name] == hashlib.sha256(data).hexdigest() for name, (_, _, data) in ONE.items()))
        s.refused("/weights_checker", {"action": "shuffle"}, "action")


def test_slime_from_disk():
    with serving(TINY_MATH) as s:
        s.post("/pause_generation", {})
        slime_flush(s)
        s.post("/update_weights_from_disk", {"model_path": str(SECOND), "load_format": "auto", "weight_version": "5"})
        s.post("/continue_generation", {})
        check(s.answer() == WANTED)
        s.kill_engine()
        check(s.answer() == WANTED, "a restarted engine has the updated weights")


def test_slime_external():
    """--rollout-external-engine-addrs (external.py: discover_external_engines; sglang_engine.py: _init_external): what slime
    reads of a server that it did not start, and compares with the flags of its own."""
    with serving(TINY_MATH, "--tensor-parallel-size", "2") as s:
        info = s.call("GET", "/server_info")[1]
        check(info == s.call("GET", "/get_server_info")[1] | {"running": info["running"], "waiting": info["waiting"]}, info)
        tp = int(info.get("tp_size") or info.get("tensor_parallel_size") or 1)
        check(tp == 2 and int(info.get("num_gpus") or info.get("num_gpus_per_engine") or tp) == 2 and not info.get("encoder_only"))
        check(info.get("disaggregation_mode") not in ("prefill", "decode") and int(info.get("pp_size") or 1) == 1)
        wanted = {"enable_memory_saver": False, "enable_return_routed_experts": True}  # the second: --use-rollout-routing-replay
        check(all(info.get(name) == value for name, value in wanted.items()), info)
        # --update-weight-transport disk: slime writes a checkpoint.
        s.post("/pause_generation", {})
        slime_flush(s)
        s.post("/update_weights_from_disk", {"model_path": str(SECOND), "weight_version": "1"})
        s.post("/continue_generation", {})
        check(s.answer() == WANTED, s.answer())


# ---- verl's HttpServerAdapter


def test_verl():
    """sgl_update_weights for each bucket: names with LocalSerializedTensor, a message for each rank; then flush_cache."""
    with serving(TINY_MATH) as s:
        s.post("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
        s.post("/resume_memory_occupation", {"tags": ["weights"]})
        for part in parts(rows(TWO), 4):
            local = [(name, tm.serialized([t])) for name, t in pairs(part)]
            payload = {"serialized_named_tensors": [tm.text(local)], "load_format": None, "flush_cache": True}
            s.post("/update_weights_from_tensor", payload)
        s.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
        check(s.call("GET", "/flush_cache")[0] == 200)
        tm.free_all()
        check(s.answer() == WANTED, s.answer())
        s.post("/abort_request", {"rid": "", "abort_all": True})
        # FSDP's state_dict has the tied head too.
        head = ("lm_head.weight", *ONE["model.embed_tokens.weight"])
        local = [(name, tm.serialized([t])) for name, t in pairs([head] + rows(ONE))]
        s.post("/update_weights_from_tensor", {"serialized_named_tensors": [tm.text(local)], "load_format": None, "flush_cache": True})
        check(s.answer() == FIRST, s.answer())
        tm.free_all()


# ---- SGLang's own forms


def test_sessions():
    """SGLang 0.5.20 and later: begin_weight_update, tensors, end_weight_update; what was not sent stays."""
    with serving(TINY_MATH) as s:
        s.post("/begin_weight_update", {"selector": "all"})
        half = rows(TWO)[:30]
        s.post("/update_weights_from_tensor", {"serialized_named_tensors": [tm.named(pairs(half, "inline"))]})
        check(s.answer() == FIRST)
        s.post("/end_weight_update", {})
        mixed = s.answer()
        check(mixed[0] not in (FIRST[0], WANTED[0]), mixed)
        s.kill_engine()
        check(s.answer() == mixed)
        s.post("/begin_weight_update", {})
        s.post("/update_weights_from_tensor", {"serialized_named_tensors": [tm.named(pairs(rows(TWO)[30:]))], "load_format": None})
        s.post("/end_weight_update", {"weight_version": "whole"})
        check(s.answer() == WANTED)
        check(s.call("GET", "/get_weight_version")[1]["weight_version"] == "whole")
        tm.free_all()


def test_inline_bytes():
    with serving(TINY_MATH, "--max-request-body", "64M") as s:
        s.post("/update_weights_from_tensor", {"serialized_named_tensors": [tm.named(pairs(rows(TWO), "inline"))], "weights_digest": digest_of(TWO)})
        check(s.answer() == WANTED)
        s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [tm.named(pairs(rows(ONE), "inline"))], "weights_digest": digest_of(TWO)},
                  "weights_digest")


def digest_of(tensors):
    """docs/NUMERICS.md's weights digest."""
    import hashlib
    h = hashlib.sha256(b"invar weights 1\n" + struct.pack("<Q", len(tensors)))
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        code = {"bfloat16": "BF16", "float32": "F32", "float16": "F16"}[dtype]
        for word in (name, code):
            h.update(struct.pack("<Q", len(word)) + word.encode())
        h.update(struct.pack(f"<{1 + len(shape)}Q", len(shape), *shape) + hashlib.sha256(data).digest())
    return h.hexdigest()


# ---- what must change nothing


def test_half_sent():
    with serving(TINY_MATH) as s:
        some = parts(rows(TWO), 3)
        slime_from_tensor(s, [tm.bucket(some[0])], "1")
        check(s.answer() == FIRST)
        s.refused("/continue_generation", {}, f"{len(TWO) - len(some[0])} tensors", "dropped", status=409)
        s.post("/continue_generation", {})
        check(s.answer() == FIRST)
        slime_from_tensor(s, [tm.bucket(some[0])], "2")  # of a trainer that died
        slime_from_tensor(s, [tm.bucket(some[1])], "3")  # the next trainer's version
        answer = slime_from_tensor(s, [tm.bucket(some[2])], "3")
        check(answer["missing"] == len(some[0]), answer)
        check(s.answer() == FIRST)
        slime_from_tensor(s, [tm.bucket(some[0])], "3")
        check(s.answer() == WANTED)
        tm.free_all()


def refused_tensor(s, pair, *words):
    s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [tm.named([pair])]}, *words)


def test_wrong_tensors():
    name = "model.layers.0.mlp.down_proj.weight"
    dtype, shape, data = TWO[name]
    with serving(TINY_MATH) as s:
        refused_tensor(s, ("model.layers.9.nothing", tm.tensor(data, dtype, shape)), "model.layers.9.nothing")
        refused_tensor(s, (name, tm.tensor(data, dtype, [shape[1], shape[0]])), name, "shape", "[256, 768]", "[768, 256]")
        refused_tensor(s, (name, tm.tensor(data * 2, "float32", shape)), name, "dtype", "bfloat16", "float32")
        refused_tensor(s, (name, tm.tensor(data, dtype, shape, stride=(1, shape[0]))), name, "not contiguous")
        refused_tensor(s, (name, tm.tensor(data[:100], dtype, shape)), name, "storage of 100")
        refused_tensor(s, (name, tm.tensor(data, dtype, shape, "file_descriptor")), name, "set_sharing_strategy('file_system')")
        on_gpu = tm.cuda_tensor(dtype, shape, bytes(64), len(data), "0123", "/torch_1_2_3")
        refused_tensor(s, (name, on_gpu), name, "CUDA: wanted GPU 0123")
        refused_tensor(s, (name, tm.serialized([on_gpu])), name, "CUDA: wanted GPU 0123")
        nan = bytearray(data)
        nan[0:2] = b"\xc0\x7f"
        bad = [(n, t, sh, bytes(nan) if n == name else d) for n, t, sh, d in rows(TWO)]
        s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [tm.bucket(bad)], "load_format": "flattened_bucket"}, name, "finite")
        s.refused("/update_weights_from_tensor", {"serialized_named_tensors": ["AAAA"], "load_format": "direct"}, "load_format")
        s.refused("/update_weights_from_tensor", {"serialized_named_tensors": ["no base64"]}, "serialized_named_tensors[0]", "base64")
        s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [], "surprise": 1}, "surprise")
        head = tm.tensor(TWO["model.embed_tokens.weight"][2], "bfloat16", TWO["model.embed_tokens.weight"][1])
        s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [tm.named([("lm_head.weight", head)] + pairs(rows(ONE)))]},
                  "lm_head.weight", "tie_word_embeddings")
        tm.free_all()


def test_no_pickle_is_run():
    with serving(TINY_MATH) as s:
        for evil in (tm.Call(os.system, f"touch {scratch.name}/run"), tm.Call(exec, "raise SystemExit"), [("a", tm.Call(os.system, "true"))]):
            s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [tm.text(evil)]}, "wanted")
        check(not os.path.exists(f"{scratch.name}/run"))
        name, (dtype, shape, data) = next(iter(TWO.items()))
        foreign = tm.tensor(data, dtype, shape)
        foreign.arguments[1].arguments[0].arguments = (tm.UntypedStorage, b"x", b"/passwd_of_others", len(data))
        refused_tensor(s, (name, foreign), "/torch_")
        tm.free_all()


def test_files_go_with_the_server():
    folder = pathlib.Path(scratch.name) / "updates"
    folder.mkdir()
    with serving(TINY_MATH, "--update-dir", str(folder)) as s:
        for version in range(3):
            slime_update(s, TWO if version % 2 else ONE, str(version))
        sets = list(folder.glob("invar-updates-*/*/model.safetensors"))
        check(len(sets) == 1, "only the weights in use are kept", sets)
    check(not list(folder.iterdir()), "and they go with the server")
    dead = folder / "invar-updates-abcdef"
    (dead / "1").mkdir(parents=True)
    (dead / "1" / "model.safetensors").write_bytes(b"x")
    os.utime(dead, (1, 1))
    with serving(TINY_MATH, "--update-dir", str(folder)) as s:
        slime_update(s, TWO, "1")
        check(not dead.exists(), "those of a killed server are removed by the next")


def test_in_process():
    with serving(TINY_MATH, "--engine-process", "off") as s:
        slime_update(s, TWO, "1")
        check(s.answer() == WANTED)
        s.post("/weights_checker", {"action": "snapshot"})
        s.refused("/release_memory_occupation", {}, "--engine-process")


# ---- what trainers ask of answers


def int32s(text):
    raw = base64.b64decode(text)
    return list(struct.unpack(f"<{len(raw) // 4}i", raw))


def slime_generate(s, ids, length, **more):
    """slime/rollout/sglang_rollout.py: generate()."""
    sampling = {"temperature": 1.0, "top_p": 0.9, "top_k": -1, "max_new_tokens": length, "stop": None, "stop_token_ids": None,
                "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False,
                "custom_params": {"return_top_p_token_ids": True}, "sampling_seed": 7, "ignore_eos": True}
    return s.post("/generate", {"sampling_params": sampling, "return_logprob": True, "input_ids": ids} | more)


def test_top_p_and_reported_ids():
    """The tokens that top-p kept, computed again from the log-probabilities of the whole vocabulary."""
    ids = [689, 872, 30, 41, 52, 63]
    everything = list(range(1024))
    with serving(TINY_MATH, "--max-request-body", "64M") as s:
        plain = s.post("/generate", {"input_ids": ids, "return_logprob": True,
                                     "sampling_params": {"temperature": 1.0, "top_p": 0.9, "max_new_tokens": 12, "sampling_seed": 7, "ignore_eos": True}})
        a = slime_generate(s, ids, 12, token_ids_logprob=everything, logprob_start_len=0)
        meta = a["meta_info"]
        check(a["output_ids"] == plain["output_ids"] and a["invar"]["digest"] == plain["invar"]["digest"], "reports change no bit")
        kept, offsets = int32s(meta["top_p_token_ids"]), int32s(meta["top_p_token_offsets"])
        check(len(offsets) == 13 and offsets[0] == 0 and offsets[-1] == len(kept), offsets)
        rows = meta["output_token_ids_logprobs"]
        check(len(rows) == 12 and all([t[1] for t in row] == everything for row in rows))
        sizes = set()
        for i, (row, (logprob, token, _)) in enumerate(zip(rows, meta["output_token_logprobs"])):
            check(row[token][0] == logprob, "one log-probability, twice")
            import math
            order = sorted(everything, key=lambda t: (-row[t][0], t))
            total, n = 0.0, 0
            while total < 0.9 and n < 1024:
                total += math.exp(row[order[n]][0])
                n += 1
            mine = kept[offsets[i]:offsets[i + 1]]
            check(abs(total - 0.9) < 1e-5 or mine == order[:n], i, mine, order[:n])
            check(token in mine)
            sizes.add(len(mine))
        check(len(sizes) > 1, "a control: nuclei differ", sizes)
        inputs = meta["input_token_ids_logprobs"]
        check(inputs[0] is None and len(inputs) == len(ids) and all(inputs[i][ids[i]][0] == meta["input_token_logprobs"][i][0] for i in range(1, len(ids))))
        batch = s.post("/generate", {"input_ids": [ids, ids[:3]], "return_logprob": True, "token_ids_logprob": [[5, 6], None],
                                     "sampling_params": {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True, "custom_params": {"return_top_p_token_ids": True}}})
        check([t[1] for t in batch[0]["meta_info"]["output_token_ids_logprobs"][0]] == [5, 6] and "output_token_ids_logprobs" not in batch[1]["meta_info"])
        check(int32s(batch[0]["meta_info"]["top_p_token_ids"]) == batch[0]["output_ids"], "greedy keeps one token")
        status, answer = s.call("POST", "/generate", {"input_ids": ids, "sampling_params": {"custom_params": {"return_top_p_token_ids": True}}})
        check(status == 400 and "return_top_p_token_ids: " in answer["error"]["message"], answer)
        status, answer = s.call("POST", "/generate", {"input_ids": ids, "return_routed_experts": True})
        check(status == 400 and "return_routed_experts: " in answer["error"]["message"], answer)


def test_routed_experts():
    """A mixture: the experts of every token but the last, alone, after a cache hit, in a batch, in chunks, with an engine that dies."""
    model = pathlib.Path(__file__).resolve().parents[1] / "data" / "hf" / "qwen3_moe"
    config = json.loads((model / "config.json").read_text())
    layers, k, experts = config["num_hidden_layers"], config["num_experts_per_tok"], config["num_local_experts"]
    ids, length = [(7 * i) % 90 + 1 for i in range(70)], 20

    def ask(s, **more):
        a = s.post("/generate", {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": length, "ignore_eos": True},
                                 "return_logprob": True, "return_routed_experts": True} | more)
        return a if isinstance(a, list) else [a]

    def table(a):
        flat = int32s(a["meta_info"]["routed_experts"])
        check(len(flat) == (len(ids) + length - 1) * layers * k, len(flat))
        return flat

    with serving(model) as s:
        alone = table(ask(s)[0])
        for i in range(0, len(alone), k):
            row = alone[i:i + k]
            check(row == sorted(set(row)) and 0 <= row[0] and row[-1] < experts, row)
        check(len({tuple(alone[i:i + layers * k]) for i in range(0, len(alone), layers * k)}) > 10, "a control: tokens differ")
        again = ask(s)[0]
        check(table(again) == alone and again["meta_info"]["cached_tokens"] == 0, "cached tokens are computed again")
        late = ask(s, routed_experts_start_len=80)[0]["meta_info"]
        check(int32s(late["routed_experts"]) == alone[80 * layers * k:] and late["routed_experts_start_len"] == 80)
        many = ask(s, input_ids=[ids] * 5)
        check(all(table(a) == alone for a in many))
    with serving(model, "--max-num-batched-tokens", "16", "--speculative", "ngram", "--max-num-seqs", "4") as s:
        check(all(table(a) == alone for a in ask(s, input_ids=[ids] * 6)), "in chunks, with drafts and preemptions")
    with serving(model, "--tensor-parallel-size", "2") as s:
        check(table(ask(s)[0]) == alone, "on two ranks")
        found = []
        thread = threading.Thread(target=lambda: found.extend(ask(s, input_ids=[ids] * 8)))
        thread.start()
        while s.call("GET", "/v1/loads")[1]["loads"][0]["num_running_reqs"] == 0 and thread.is_alive():
            time.sleep(0.001)
        s.kill_engine()
        thread.join()
        check(all(table(a) == alone for a in found) and len(found) == 8, "with an engine that died")


# ---- profiles, loads


def test_score():
    """The probabilities of labels are those that /generate reports for the same prompt."""
    import math
    query, items, labels = "12 + 30 = ", ["42", "7", "forty"], [5, 30, 41]
    with serving(TINY_MATH) as s:
        a = s.post("/v1/score", {"query": query, "items": items, "label_token_ids": labels})
        tokens = 0
        for item, scores, logprobs in zip(items, a["scores"], a["logprobs"], strict=True):
            g = s.post("/generate", {"text": query + item, "return_logprob": True, "token_ids_logprob": labels,
                                     "sampling_params": {"temperature": 0, "max_new_tokens": 1}})
            check(logprobs == [row[0] for row in g["meta_info"]["output_token_ids_logprobs"][0]], logprobs)
            check(all(abs(p - math.exp(v)) < 1e-6 for p, v in zip(scores, logprobs, strict=True)))
            tokens += g["meta_info"]["prompt_tokens"]
        check(a["object"] == "scoring" and a["usage"]["prompt_tokens"] == tokens, a)
        check(a["logprobs"][0] != a["logprobs"][1], "a control: items differ")
        soft = s.post("/v1/score", {"query": query, "items": items, "label_token_ids": labels, "apply_softmax": True})
        check(all(abs(sum(row) - 1) < 1e-5 for row in soft["scores"]) and soft["logprobs"] == a["logprobs"])
        first = s.post("/v1/score", {"query": "b", "items": ["a"], "label_token_ids": labels, "item_first": True})
        check(first["logprobs"] == s.post("/v1/score", {"query": "a", "items": "b", "label_token_ids": labels})["logprobs"])
        ids = s.post("/v1/score", {"query": [689, 872], "items": [[30, 41], [52]], "label_token_ids": labels})
        g = s.post("/generate", {"input_ids": [689, 872, 52], "return_logprob": True, "token_ids_logprob": labels,
                                 "sampling_params": {"temperature": 0, "max_new_tokens": 1}})
        check(ids["logprobs"][1] == [row[0] for row in g["meta_info"]["output_token_ids_logprobs"][0]])
        for body, word in [({"query": query, "items": items}, "label_token_ids"), ({"items": items, "label_token_ids": labels}, "query"),
                           ({"query": [1], "items": items, "label_token_ids": labels}, "items"),
                           ({"query": query, "items": items, "label_token_ids": [10**6]}, "label_token_ids: ")]:
            status, answer = s.call("POST", "/v1/score", body)
            check(status == 400 and word in answer["error"]["message"], answer)
        status, answer = s.call("POST", "/v1/embeddings", {"model": "x", "input": "a text"})
        check(status == 400 and "embeddings" in answer["error"]["message"], answer)


def test_profile():
    folder = pathlib.Path(scratch.name) / "profile"
    with serving(TINY_MATH) as s:
        s.post("/start_profile", {"output_dir": str(folder), "start_step": None, "num_steps": None, "activities": ["CPU", "GPU"],
                                  "profile_by_stage": False, "with_stack": None, "record_shapes": None})
        s.answer()
        path = s.post("/stop_profile", {})["message"]
        trace = json.loads(pathlib.Path(path).read_text())["traceEvents"]
        steps = [e for e in trace if e["name"] == "step"]
        check(len(steps) >= 8 and sum(e["args"]["generated"] for e in steps) == 8, steps)
        check(all(e["ph"] == "X" and e["dur"] >= 0 for e in steps))
        check({e["name"] for e in trace} == {"step", "forward", "sample", "engine"})
        s.post("/start_profile", {"output_dir": str(folder), "num_steps": 3, "start_step": 2})
        s.answer()
        path = s.post("/stop_profile", {})["message"]
        check(len([e for e in json.loads(pathlib.Path(path).read_text())["traceEvents"] if e["name"] == "step"]) == 3)
        s.refused("/stop_profile", {}, "/start_profile")


def test_loads():
    with serving(TINY_MATH) as s:
        status, loads = s.call("GET", "/v1/loads")
        one = loads["loads"][0]
        check(status == 200 and one["dp_rank"] == 0 and one["num_running_reqs"] == 0 and one["max_total_num_tokens"] > 0, loads)


# ---- the weights process

FAKE = """#!{python}
import json, os, socket, struct, sys, time
peer = socket.socket(fileno=3)
def take(): return peer.recv(struct.unpack("<Q", peer.recv(8, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
def answer(status, message="", tensors=0):
    text = json.dumps(dict(status=status, message=message, tensors=tensors)).encode()
    peer.sendall(struct.pack("<Q", len(text)) + text)
assert sys.argv[1:] == ["-m", "invar.weights"], sys.argv
"""
FAKES = {  # what it does after its first line, words of the error, its status
    "no_torch": ("answer('unsupported', 'no torch here')", ("torch", "pip install torch", "--weights-python", "no torch here"), 400),
    "not_a_package": ("print('No module named invar', file=sys.stderr); sys.exit(1)", ("No module named invar", "exit code 1", "pip install"), 400),
    "silent_start": ("time.sleep(60)", ("said nothing",), 400),
    "silent": ("answer('ok'); take(); take(); time.sleep(60)", ("said nothing", "another"), 500),
    "dies": ("answer('ok'); take(); os._exit(3)", ("ended", "exit code 3", "another"), 500),
    "damaged_answer": ("answer('ok'); take(); take(); peer.sendall(struct.pack('<Q', 3) + b'{{}}x')", ("damaged answer",), 500),
    "endless_answer": ("answer('ok'); take(); take(); peer.sendall(struct.pack('<Q', 1 << 60))", ("damaged answer",), 500),
    "no_file": ("answer('ok'); take(); take(); answer('ok', '', 1); take()", ("model.safetensors", "cannot open"), 500),
    "broken_set": ("answer('ok'); f = json.loads(take())['file']; take(); open(f, 'wb').write(b'x' * 100); answer('ok', '', 1); take()",
                   ("model.safetensors",), 400),
    "link": ("answer('ok'); f = json.loads(take())['file']; take(); os.symlink('/etc/passwd', f); answer('ok', '', 1); take()", ("cannot open",), 500),
}


def fake(name):
    """A program that takes the place of Python."""
    path = pathlib.Path(scratch.name) / name
    path.write_text((FAKE + FAKES[name][0] + "\n").format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def test_weights_process_fails():
    body = {"serialized_named_tensors": [tm.named([])]}
    for name, (_, words, status) in FAKES.items():
        with serving(TINY_MATH, "--weights-python", fake(name), "--update-timeout", "1") as s:
            begin = time.monotonic()
            s.refused("/update_weights_from_tensor", body, *words, status=status)
            check(time.monotonic() - begin < 30, name)
            s.post("/update_weights_from_disk", {"model_path": str(SECOND)})
            check(s.answer() == WANTED, name, "an update from disk needs no such process")
    with serving(TINY_MATH, "--weights-python", "/no/such/python") as s:
        s.refused("/update_weights_from_tensor", body, "/no/such/python", "cannot execute", "pip install torch")
        s.refused("/init_weights_update_group", {"master_address": "a", "master_port": 1, "rank_offset": 1, "world_size": 2}, "/no/such/python")


def test_nothing_waits():
    """While the weights process hangs, answers go on; so do they when it is killed, and the next request has another."""
    with serving(TINY_MATH, "--weights-python", fake("silent"), "--update-timeout", "3") as s:
        found = []
        thread = threading.Thread(target=lambda: found.append(s.call("POST", "/update_weights_from_tensor", {"serialized_named_tensors": []})))
        thread.start()
        answers = 0
        while thread.is_alive():
            check(s.answer() == FIRST)
            answers += 1
        check(answers > 10 and found[0][0] == 500, answers, found)
    with serving(TINY_MATH) as s:
        slime_update(s, TWO, "1")
        before = s.sidecar()
        check(before is not None)
        os.kill(before, signal.SIGTERM)
        slime_update(s, TWO, "1")
        check(s.sidecar() == before, "a service's SIGTERM is the server's")
        os.kill(before, signal.SIGKILL)
        while s.sidecar() == before:
            time.sleep(0.01)
        slime_update(s, ONE, "2")
        check(s.answer() == FIRST and s.sidecar() not in (None, before))
        os.kill(s.sidecar(), signal.SIGSTOP)
        s.process.terminate()
        begin = time.monotonic()
        check(s.process.wait(60) == 0 and time.monotonic() - begin < 20, "the server ends without it")


def test_weights_process_ends():
    """With a server that is killed; also the processes of its groups, amid a join that nobody answers."""
    s = Server(TINY_MATH, "--update-timeout", "60", "--update-dir", scratch.name)
    slime_from_tensor(s, [tm.bucket(parts(rows(TWO), 2)[0])], "1")
    body = {"master_address": "127.0.0.1", "master_port": 9, "rank_offset": 1, "world_size": 2, "group_name": "g", "backend": "gloo"}

    def join():
        with contextlib.suppress(OSError):
            s.call("POST", "/init_weights_update_group", body)

    threading.Thread(target=join, daemon=True).start()
    pid, family = s.sidecar(), []
    while len(family) < 2:  # the rank, and multiprocessing's tracker or torch's manager
        family = children(pid)
        time.sleep(0.05)
    s.process.kill()
    s.process.wait()
    end = time.monotonic() + 30
    alive = [pid, *family]
    while alive and time.monotonic() < end:
        alive = [p for p in alive if pathlib.Path(f"/proc/{p}/cmdline").exists() and pathlib.Path(f"/proc/{p}/cmdline").read_bytes()]
        time.sleep(0.05)
    check(not alive, alive)
    tm.free_all()


def test_weights_folder_is_private():
    folder = pathlib.Path(scratch.name) / "private"
    folder.mkdir()
    with serving(TINY_MATH, "--update-dir", str(folder)) as s:
        slime_from_tensor(s, [tm.bucket(parts(rows(TWO), 2)[0])], "1")
        made = [p for p in folder.rglob("*") if p.is_dir()]
        check(made and all(p.stat().st_mode & 0o777 == 0o700 for p in made), made)
        check(len(list(folder.rglob("*.safetensors"))) == 1, "the request's own file is gone")
    tm.free_all()


def test_hostile_pickles():
    """Claims about sizes, opcodes that no message has: refused, and the next message is read by the same process."""
    import pickle
    with serving(TINY_MATH) as s:
        s.post("/update_weights_from_tensor", {"serialized_named_tensors": [tm.bucket(rows(TWO))], "load_format": "flattened_bucket"})
        pid = s.sidecar()
        for raw, word in [(b"\x80\x04r\xff\xff\xff\xff.", "pickle"), (b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".", "opcode"),
                          (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".", "pickle"), (b"(cos\nsystem\no.", "os.system"), (b"", "pickle"),
                          (b"(i__builtin__\neval\n.", "opcode"), (b"\x80\x04\x82\x01.", "opcode"), (b"\x80\x04]Q.", "persistent"), (b"(" * 9, "pickle"),
                          (b"]" * 99999 + b"a" * 99998 + b".", "a name and a tensor"), (pickle.dumps([("a", 1)]) + b"more", "bytes, found"),
                          (b"\x80\x04ctorch\nload\n(U\x01at R.", "torch.load")]:
            text = base64.b64encode(raw).decode()
            s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [text]}, "serialized_named_tensors[0]", word)
        check(s.sidecar() == pid)
        tm.free_all()


def main():
    names = sys.argv[1:]
    tests = [f for name, f in sorted(globals().items()) if name.startswith("test_") and (not names or name[5:] in names)]
    for test in tests:
        begin = time.monotonic()
        test()
        print(f"ok {test.__name__} in {time.monotonic() - begin:.1f} s", flush=True)
    print(f"{len(tests)} tests, {checks} checks")


if __name__ == "__main__":
    try:
        main()
    finally:
        finish()
