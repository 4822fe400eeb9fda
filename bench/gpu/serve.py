#!/usr/bin/env python3
"""serve.py: the server on GPUs: digests over HTTP compared with the CPU's tc16, and the server's throughput compared with
the engine's.

    python3 bench/gpu/serve.py build/invar                       one GPU, and all available numbers of GPUs
    python3 bench/gpu/serve.py build/invar --ranks 4 --tp 4      digests and throughput on four GPUs
    python3 bench/gpu/serve.py build/invar --devices cpu         try the script

First a server of a small model receives the same concurrent requests, some sampled, on each device and number of ranks;
each digest must be that of a server with --device cpu --arithmetic tc16 for the single request. Then `invar bench serve`
runs with as many streams as sequences, alternating with `invar bench` for the same requests without a server. Exit code
1 if a digest differs. Plain Python.
"""

import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = os.path.join(HERE, "..", "..", "models", "tiny-math")
REQUESTS, TOKENS = 48, 40


def start(program, model, flags):
    """A server on a free port; its process and its address."""
    process = subprocess.Popen([program, "serve", model, "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if "listening on " in line:
            return process, line.split("listening on ")[1].strip()
    process.wait()
    raise RuntimeError(said[-1].strip() if said else "the server said nothing")


def stop(process):
    process.terminate()
    process.stderr.read()
    process.wait()


def ask(address, number):
    body = {"prompt": f"Mia has {number} marbles and finds {number % 7} more.", "max_tokens": TOKENS, "seed": number,
            "temperature": (0, 0.8, 1.0)[number % 3], "top_k": 0, "top_p": 1, "logprobs": 3}
    request = urllib.request.Request(address + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["invar"]["digest"]


def digests(program, flags, together):
    process, address = start(program, SMALL, flags)
    try:
        with concurrent.futures.ThreadPoolExecutor(together) as pool:
            return list(pool.map(lambda n: ask(address, n), range(REQUESTS)))
    finally:
        stop(process)


def compare_digests(options):
    want = digests(options.program, ["--device", "cpu", "--arithmetic", "tc16"], 1)
    differing = 0
    for device in options.devices:
        for ranks in options.ranks:
            flags = ["--device", device, "--arithmetic", "tc16", "--tp", str(ranks)]
            try:
                got = digests(options.program, flags, REQUESTS)
            except RuntimeError as problem:
                print(f"{device}, {ranks} ranks: not run: {problem}")
                differing += ranks in options.needed
                break
            wrong = sum(a != b for a, b in zip(want, got))
            print(f"{device}, {ranks} ranks: {REQUESTS - wrong} of {REQUESTS} digests are the CPU's", flush=True)
            differing += wrong
    return differing


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"serve.py: {' '.join(command)}: exit code {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare_throughput(options):
    flags = [options.model, "--load-format", "dummy", "--device", options.devices[0], "--tp", str(options.tp),
             "--max-num-seqs", str(options.streams), "--max-model-len", str(options.input + options.output + 8), "--json"]
    offline, served = [], []
    for _ in range(options.turns):
        offline.append(run([options.program, "bench", *flags, "--concurrency", str(options.streams), "--prompt-tokens",
                            str(options.input), "--decode-tokens", str(options.output), "--repeat", "1"])
                       ["total_tokens_per_s"])
        served.append(run([options.program, "bench", "serve", *flags, "--num-prompts", str(options.streams),
                           "--random-input-len", str(options.input), "--random-output-len", str(options.output),
                           "--check-prompts", "0"])["total_token_throughput"])
    a, b = statistics.median(offline), statistics.median(served)
    name = os.path.basename(options.model)
    print(f"{name}, {options.tp} {options.devices[0]} ranks, {options.streams} streams, {options.input} tokens read "
          f"and {options.output} written: offline {a:.0f} tokens/s, over HTTP {b:.0f}, ratio {b / a:.3f}")
    if not options.json:
        return
    with open(options.json, "a", encoding="utf-8") as file:
        for method, rate in (("engine alone", a), ("over HTTP", b)):
            print(json.dumps({"bench": "serve", "method": method, "model": name, "gpus": options.tp,
                              "streams": options.streams, "input": options.input, "output": options.output,
                              "tokens_per_s": round(rate, 1)}), file=file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="invar")
    parser.add_argument("--devices", type=lambda s: s.split(","), default=["cuda"])
    parser.add_argument("--ranks", type=lambda s: [int(n) for n in s.split(",")], default=None,
                        help="of the digests: these must run; else 1, 2, 4 and 8 as far as there are GPUs")
    parser.add_argument("--tp", type=int, default=1, help="ranks of the throughput")
    parser.add_argument("--json", help="records, one a line, appended")
    parser.add_argument("--model", default=os.path.join(HERE, "configs", "qwen3-8b"), help="of the throughput")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--input", type=int, default=256)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    options.needed = options.ranks or []
    options.ranks = options.ranks or [1, 2, 4, 8]
    differing = compare_digests(options)
    compare_throughput(options)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
