"""Adapters over HTTP: the calls of vLLM's and SGLang's clients, then loads and unloads while streams run.

    lora_serving.py [--streams N] [--seconds S] [--loads N] [--deaths N] [--server BINARY]

The second part has N clients stream answers of the base and of adapters, while others load, replace and unload adapters
under names that they use, and the engine process is killed now and then. Wanted: every answer has the digest that it has alone
on a quiet server, whatever else runs; memory stays as it is. --loads: ends after so many instead of S seconds."""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import time

import wire
from adapters import make_adapter
from served import BINARY, TINY_MATH, Served, children, end_when_terminated, raise_file_limit
from support import check
from wire import Lost, ask_once, get, post

SIZE = 0.3  # of an adapter's values: answers are others than the base's
PROMPTS = ["What is 17 * 6?", "2 + 2 =", "Ann has 3 apples and buys 5 more.", "12 - 7 is"]
TOKENS, SEEDS = 24, 3
SAMPLES, GROWTH_MB = 10, 8  # of the memory of both processes: the largest of the second half next to that of the first
FLAGS = ["--max-num-seqs", "32", "--kv-cache-memory", "32M", "--max-queued-requests", "4096", "--disable-log-requests", "--threads", "1",
         "--engine-restarts", "1000000"]


async def ask(port, path, body=None):
    """Status, and the answer as JSON or text."""
    a = await ask_once(port, get(path) if body is None else post(path, body, close=True))
    text = wire.payload(a.raw)
    try:
        return a.status, json.loads(text)
    except ValueError:
        return a.status, text.decode()


async def good(port, path, body=None):
    status, answer = await ask(port, path, body)
    check(status == 200, path, body, status, answer)
    return answer


def completion(model, prompt=PROMPTS[0], seed=1, **more):
    return {"model": model, "prompt": prompt, "seed": seed, "max_tokens": TOKENS, "ignore_eos": True} | more


# ---- calls ---------------------------------------------------------------------------------------------


def digest_of_program(binary, folder):
    """The answer of `invar generate` to the first prompt."""
    words = [binary, "generate", str(TINY_MATH), "-p", PROMPTS[0], "--seed", "1", "--max-tokens", str(TOKENS), "--ignore-eos", "--json", "--quiet"]
    ran = subprocess.run(words + (["--lora", folder] if folder else []), capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)["digest"]


async def models_and_routes(port, binary, folders):
    """Every route answers for an adapter under its name, and says so."""
    listed = (await good(port, "/v1/models"))["data"]
    check([m["id"] for m in listed] == ["tiny-math", "one"], listed)
    check(listed[0]["parent"] is None and listed[1]["parent"] == "tiny-math" and listed[1]["root"] == folders[0], listed)
    card = await good(port, "/v1/models/one")
    check(card["id"] == "one" and card["digest"] == listed[1]["digest"], card)
    for model, folder in (("tiny-math", None), ("one", folders[0])):
        a = await good(port, "/v1/completions", completion(model, return_receipt=True))
        check(a["model"] == model, a)
        check(a["invar"]["digest"] == digest_of_program(binary, folder), model, a["invar"]["digest"])
        check(("+lora-" in a["system_fingerprint"]) == (folder is not None), a["system_fingerprint"])
        named = a["invar"]["receipt"]["request"].get("adapter")
        check(named == a["invar"].get("adapter_digest") and (named is not None) == (folder is not None), named)
    alone = a["invar"]["digest"]
    for body in (completion("tiny-math:one"), completion("tiny-math", lora_path="one"), completion("one", lora_path="one")):
        a = await good(port, "/v1/completions", body)
        check(a["invar"]["digest"] == alone and a["model"] == "one", body)
    user = [{"role": "user", "content": PROMPTS[0]}]
    for path, body, name in (("/v1/chat/completions", {"messages": user, "lora_path": ["one"]}, "one"),
                             ("/v1/completions", {"prompt": PROMPTS[:2], "lora_path": ["one", "one"]}, "one"),
                             ("/v1/completions", {"prompt": PROMPTS[:2], "lora_path": ["one", None]}, "tiny-math")):
        check((await good(port, path, {"model": "tiny-math", "max_tokens": 2} | body))["model"] == name, path, body)
    for path, body in (("/v1/chat/completions", {"messages": user}), ("/v1/responses", {"input": PROMPTS[0]}),
                       ("/v1/messages", {"messages": user, "max_tokens": 8}),
                       ("/v1/score", {"query": "2 + 2 =", "items": [" 4"], "label_token_ids": [5, 6]}),
                       ("/v1/decisions", {"input": "2 + 2 = 4", "questions": [{"name": "q", "type": "predicate", "instructions": "Is it so?"}]})):
        got = {}
        for model in ("tiny-math", "one"):
            extra = {"seed": 3, "temperature": 0} if "decisions" not in path and "score" not in path else {}
            a = await good(port, path, {"model": model} | body | extra)
            check(a["model"] == model, path, a)
            text = json.dumps(a)
            check(("+lora-" in text) == (model == "one"), path, text[:600])
            got[model] = json.dumps({k: v for k, v in a.items() if k in ("scores", "choices", "output", "content", "answers", "results", "data")})
        check(path == "/v1/decisions" or got["tiny-math"] != got["one"], path, got)
    check((await good(port, "/tokenize", {"model": "one", "prompt": "2 + 2"}))["tokens"], "tokens")
    status, a = await ask(port, "/v1/completions", completion("two"))
    check(status == 404 and 'or an adapter ("one")' in a["error"]["message"], status, a)
    status, a = await ask(port, "/v1/completions", completion("tiny-math", lora_path="two"))
    check(status == 404 and a["error"]["param"] == "lora_path", status, a)
    return alone


async def sglang_calls(port, folders, alone):
    sampling = {"max_new_tokens": TOKENS, "sampling_seed": 1, "ignore_eos": True, "temperature": 0.6}
    several = await good(port, "/generate", {"text": [PROMPTS[0]] * 3, "lora_path": [None, "one", None], "sampling_params": sampling})
    one = await good(port, "/generate", {"text": PROMPTS[0], "lora_path": "one", "sampling_params": sampling})
    found = [a["invar"]["digest"] for a in several]
    check(found[0] == found[2] != found[1] == one["invar"]["digest"], found)
    check(["+lora-" in a["system_fingerprint"] for a in several] == [False, True, False], several)
    for paths, want in ((["one"], "list of 3"), ([None, 7, None], "lora_path[1]"), ([None, "x", None], "lora_path[1]")):
        status, a = await ask(port, "/generate", {"text": [PROMPTS[0]] * 3, "lora_path": paths, "sampling_params": sampling})
        check(status in (400, 404) and want in a["error"]["message"], status, a)
    a = await good(port, "/load_lora_adapter", {"lora_name": "two", "lora_path": folders[1], "pinned": False})
    check(a == {"success": True, "error_message": "", "loaded_adapters": {"one": folders[0], "two": folders[1]}}, a)
    status, a = await ask(port, "/load_lora_adapter", {"lora_name": "two", "lora_path": folders[1]})
    check(status == 400 and not a["success"] and "loaded already" in a["error_message"] and len(a["loaded_adapters"]) == 2, a)
    a = await good(port, "/unload_lora_adapter", {"lora_name": "two"})
    check(a["success"] and a["loaded_adapters"] == {"one": folders[0]}, a)
    status, a = await ask(port, "/unload_lora_adapter", {"lora_name": "two"})
    check(status == 400 and not a["success"] and '(one)' in a["error_message"], a)
    status, a = await ask(port, "/load_lora_adapter", {"lora_name": "two", "lora_path": folders[1], "rank": 3})
    check(status == 400 and "rank: no such field" in a["error_message"], a)


async def vllm_calls(port, folders):
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    two = {"lora_name": "two", "lora_path": folders[1]}
    check(await good(port, load, two) == "Success: LoRA adapter 'two' added successfully.", "added")
    before = await good(port, "/v1/completions", completion("two"))
    for path, body, status, kind, text in (
            (load, two, 400, "InvalidUserInput", "The lora adapter 'two' has already been loaded."),
            (load, {"lora_name": "three"}, 400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided."),
            (load, {"lora_name": "tiny-math", "lora_path": folders[1]}, 400, "BadRequestError", "the base model's"),
            (load, {"lora_name": "three", "lora_path": folders[1], "base_model_name": "other"}, 404, "NotFoundError", "base_model_name"),
            (load, {"lora_name": "a\nb", "lora_path": folders[1]}, 400, "BadRequestError", "control characters"),
            (load, {"lora_name": "three", "lora_path": folders[1]}, 409, "BadRequestError", "max_loras"),
            (load, {"lora_name": 3, "lora_path": folders[1]}, 400, "BadRequestError", "lora_name: wanted a string"),
            (unload, {"lora_name": "three"}, 404, "NotFoundError", "The lora adapter 'three' cannot be found."),
            (unload, {}, 400, "InvalidUserInput", "'lora_name' needs to be provided")):
        found, a = await ask(port, path, body)
        check(found == status and a["error"]["type"] == kind and text in a["error"]["message"] and a["error"]["code"] == status, path, body, found, a)
    check("added" in await good(port, load, {"lora_name": "two", "lora_path": folders[2], "load_inplace": True}), "in place")
    after = await good(port, "/v1/completions", completion("two"))
    check(before["invar"]["adapter_digest"] != after["invar"]["adapter_digest"] and before["invar"]["digest"] != after["invar"]["digest"], after)
    found, a = await ask(port, load, {"lora_name": "two", "lora_path": "/nowhere", "load_inplace": True})
    check(found == 404, found, a)
    check((await good(port, "/v1/completions", completion("two")))["invar"]["digest"] == after["invar"]["digest"], "it stays")
    page = await good(port, "/metrics")
    for line in (r'invar_adapter_info\{.*adapter="two",digest="[0-9a-f]{64}",rank="4"\} 1', r'invar_adapter_requests_total\{.*adapter="two"\} 3\n',
                 r'vllm:lora_requests_info\{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""\} \d+\n'):
        check(re.search(line, page), line, page[-3000:])
    check(await good(port, unload, {"lora_name": "two"}) == "Success: LoRA adapter 'two' removed successfully.", "removed")
    found, a = await ask(port, "/v1/completions", completion("two"))
    check(found == 404, found, a)


async def after_a_death(server, alone):
    """The restarted engine has the adapters of the one before; one whose files changed is gone, and its requests fail."""
    port = server.port
    with tempfile.TemporaryDirectory() as folder:
        make_adapter(folder, TINY_MATH, 7, size=SIZE)
        await good(port, "/v1/load_lora_adapter", {"lora_name": "gone", "lora_path": folder})
        make_adapter(folder, TINY_MATH, 8, size=SIZE)
        os.kill(children(server.pid)[0], signal.SIGKILL)
        check((await good(port, "/v1/completions", completion("one")))["invar"]["digest"] == alone, "after a death")
        status, a = await ask(port, "/v1/completions", completion("gone"))
        check(status in (404, 500) and ("gone" in json.dumps(a)), status, a)
        check([m["id"] for m in (await good(port, "/v1/models"))["data"]] == ["tiny-math", "one"], "models")
    check(any("the adapter gone is not loaded any more" in line for line in server.lines), server.lines[-5:])


async def after_an_update(server, alone):
    """Adapters stay on new weights of the base: here the same ones."""
    await good(server.port, "/update_weights_from_disk", {"model_path": str(TINY_MATH)})
    check((await good(server.port, "/v1/completions", completion("one")))["invar"]["digest"] == alone, "after an update")


async def calls(args, folders):
    config = pathlib.Path(folders[0]).parent / "serve.yaml"
    config.write_text(f"lora-modules:\n  - one={folders[0]}\nmax-loras: 2\n")
    server = Served(args.server, TINY_MATH, "--config", str(config), "--metrics-compat", "vllm", *FLAGS)
    try:
        alone = await models_and_routes(server.port, args.server, folders)
        await sglang_calls(server.port, folders, alone)
        await vllm_calls(server.port, folders)
        await after_an_update(server, alone)
        await after_a_death(server, alone)
    finally:
        code = server.stop()
    check(code == 0, code, server.lines[-5:])


def refusals(args, folders):
    """Command lines that are refused."""
    module = json.dumps({"name": "one", "path": folders[0], "base_model_name": "other"})
    for words, want in ((["--lora-modules", f"one={folders[0]}", f"two={folders[1]}", "--max-loras", "1"], "--max-loras: wanted 2 or more"),
                        (["--lora-modules", f"one={folders[0]}", f"one={folders[1]}"], "'one' twice"),
                        (["--lora-modules", "one=/nowhere"], "--lora-modules one: /nowhere"),
                        (["--lora-modules", "%s%n=/nowhere"], "--lora-modules %s%n: /nowhere"),
                        (["--lora-modules", module], "base_model_name: wanted \"tiny-math\""),
                        (["--lora-modules", '{"name": "one", "path": "x", "rank": 3}'], "wanted NAME=DIR or DIR")):
        ran = subprocess.run([args.server, "serve", str(TINY_MATH), "--port", "0", *words], capture_output=True, text=True, timeout=120)
        check(ran.returncode != 0 and want in ran.stderr, words, ran.stderr[-400:])


# ---- loads under streams -------------------------------------------------------------------------------

KEPT = "kept"  # an adapter that stays
NAMES = ["x", "y"]


def requests():
    return [(p, s) for p in PROMPTS for s in range(SEEDS)]


async def quiet_answers(port, folders):
    """{(adapter's digest or None, prompt, seed): digest of the answer}, each alone."""
    want = {}
    for folder in [None, *folders]:
        if folder:
            await good(port, "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": folder})
        for prompt, seed in requests():
            a = await good(port, "/v1/completions", completion("x" if folder else "tiny-math", prompt, seed))
            want[a["invar"].get("adapter_digest"), prompt, seed] = a["invar"]["digest"]
        if folder:
            await good(port, "/v1/unload_lora_adapter", {"lora_name": "x"})
    check(len(want) == len(requests()) * (len(folders) + 1), "adapters that differ")
    return want


class Churn:
    def __init__(self, server, folders, want, args):
        self.server, self.folders, self.want, self.args = server, folders, want, args
        self.port, self.over, self.loads, self.deaths = server.port, False, 0, 0
        self.counts, self.memory = collections.Counter(), []

    async def stream(self, index):
        """Streams until the end; only names that come and go may be missing."""
        draw = random.Random(index)
        while not self.over:
            model = draw.choice(["tiny-math", KEPT, *NAMES, *NAMES])
            prompt, seed = draw.choice(requests())
            a = await ask_once(self.port, post("/v1/completions", completion(model, prompt, seed, stream=True), close=True), 600)
            if a.status == 404 and model in NAMES:
                self.counts["not loaded"] += 1
                continue
            check(a.status == 200 and a.complete_stream(), model, a.status, bytes(a.raw[-400:]))
            adapter = re.search(rb'"adapter_digest":"([0-9a-f]{64})"', bytes(a.raw))
            check((adapter is None) == (model == "tiny-math"), model, bytes(a.raw[-600:]))
            found = ("sha256:" + a.digests()[0],) if a.digests() else ()
            check(found == (self.want[adapter and adapter[1].decode(), prompt, seed],), model, prompt, seed, found)
            self.counts["base" if model == "tiny-math" else model] += 1

    async def churn(self, name, index):
        """One name changes hands."""
        draw, there = random.Random(1000 + index), False
        await ask(self.port, "/v1/unload_lora_adapter", {"lora_name": name})  # of the run before
        while not self.over:
            body = {"lora_name": name, "lora_path": draw.choice(self.folders), "load_inplace": there}
            if there and draw.random() < 0.4:
                status, a = await ask(self.port, "/v1/unload_lora_adapter", {"lora_name": name})
                there = there and status != 200
            else:
                status, a = await ask(self.port, "/v1/load_lora_adapter", body)
                there = there or status == 200
                self.loads += status == 200
            died = status == 500 and "the engine ended" in str(a) and self.deaths > 0
            check(status == 200 or died, name, status, a)
            self.counts["interrupted"] += died
            if self.args.loads and self.loads >= self.args.loads * (len(self.memory) + 1) / SAMPLES:
                self.memory.append(self.server.rss() >> 20)
            if self.args.loads and self.loads >= self.args.loads:
                self.over = True
            await asyncio.sleep(0 if self.args.loads else draw.random() * 0.05)

    async def kill(self):
        pause = self.args.seconds / (self.args.deaths + 1)
        for _ in range(self.args.deaths):
            await asyncio.sleep(pause)
            for pid in children(self.server.pid):
                os.kill(pid, signal.SIGKILL)
            self.deaths += 1

    async def end(self):
        while not self.args.loads and len(self.memory) < SAMPLES:
            await asyncio.sleep(self.args.seconds / SAMPLES)
            self.memory.append(self.server.rss() >> 20)
        self.over |= not self.args.loads

    async def run(self):
        streams = [self.stream(i) for i in range(self.args.streams)]
        await asyncio.gather(*streams, *[self.churn(n, i) for i, n in enumerate(NAMES)], self.kill(), self.end())


async def loads_under_streams(args, folders):
    server = Served(args.server, TINY_MATH, "--enable-lora", "--max-loras", "3", *FLAGS)
    try:
        want = await quiet_answers(server.port, folders)
        await good(server.port, "/v1/load_lora_adapter", {"lora_name": KEPT, "lora_path": folders[0]})
        await server.warm(await server.context())
        warm = argparse.Namespace(**vars(args) | {"seconds": 2, "loads": 0, "deaths": 0})
        await Churn(server, folders, want, warm).run()
        began = time.monotonic()
        churn = Churn(server, folders, want, args)
        await churn.run()
        check(len(children(server.pid)) == 1, "one engine process")
        page = await good(server.port, "/metrics")
        restarts = int(re.search(r"invar_engine_restarts_total\S* (\d+)", page)[1])
        check(restarts == churn.deaths, restarts, churn.deaths)
    finally:
        code = server.stop()
    check(code == 0, code, server.lines[-5:])
    print(f"{churn.loads} loads and {sum(churn.counts[n] for n in ('base', KEPT, *NAMES))} answers by {args.streams} streams in "
          f"{time.monotonic() - began:.1f} s, {churn.deaths} deaths: every digest as alone; memory in MB {churn.memory}; {dict(churn.counts)}")
    check(churn.loads >= 5 and all(churn.counts[n] for n in ("base", KEPT, *NAMES)), churn.counts)
    half = SAMPLES // 2
    check(churn.deaths or max(churn.memory[half:]) <= max(churn.memory[:half]) + GROWTH_MB, "memory grows", churn.memory)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--loads", type=int, default=0)
    parser.add_argument("--deaths", type=int, default=0)
    parser.add_argument("--server", default=BINARY)
    parser.add_argument("--only", choices=["calls", "churn"])
    args = parser.parse_args()
    end_when_terminated()
    raise_file_limit()
    with tempfile.TemporaryDirectory() as folder:
        folders = [make_adapter(f"{folder}/{i}", TINY_MATH, i, rank=4 + 4 * (i % 2), size=SIZE) for i in range(4)]
        folders[2] = make_adapter(f"{folder}/2", TINY_MATH, 2, size=SIZE)
        if args.only != "churn":
            refusals(args, folders)
            asyncio.run(calls(args, folders))
            print("calls of vLLM's and SGLang's clients: as they expect")
        if args.only != "calls":
            asyncio.run(loads_under_streams(args, folders))
            if not args.deaths and not args.loads:
                asyncio.run(loads_under_streams(argparse.Namespace(**vars(args) | {"deaths": 2, "seconds": args.seconds / 2}), folders))


if __name__ == "__main__":
    main()
