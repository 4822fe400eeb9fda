#!/usr/bin/env python3
"""llama_cpp.py: invar and llama.cpp side by side, on the same random weights and the same cores.

Prefill of a prompt and decode after it, in tokens per second, for each thread count; with --concurrency N of N
concurrent requests, compared with llama-batched-bench. A repetition runs invar, then llama.cpp without and with flash
attention, so that slow phases of the machine affect all of them. Results are medians, for llama.cpp of the better
setting. Prints a Markdown table. make_model.py and make_gguf.py create the model on first use, get_llama_cpp.sh
builds the peer.
"""

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PEER = os.path.join(HERE, "peer")
# The peer's libraries are in the folder of its programs; its script downloads with this interpreter's pip.
ENVIRONMENT = dict(os.environ, LD_LIBRARY_PATH=os.path.join(PEER, "bin"), PYTHON=sys.executable)
PARTS = ("prefill", "decode", "total")  # total: of many requests at once


def run(command):
    """The command's standard output; exits with its messages on failure."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                          env=ENVIRONMENT)
    if done.returncode != 0:
        sys.exit(f"llama_cpp.py: {shlex.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def relative(path):
    return os.path.relpath(path, ROOT)


def our_command(options, threads):
    command = ["build/invar", "bench", options.model_folder, "--prompt-tokens", str(options.prompt),
               "--decode-tokens", str(options.decode), "--threads", str(threads), "--json"]
    if options.concurrency > 1:
        command += ["--concurrency", str(options.concurrency), "--repeat", "1"]
    return command


def their_command(options, threads, flash):
    if options.concurrency > 1:
        room = options.concurrency * (options.prompt + options.decode)
        return ["bench/peer/bin/llama-batched-bench", "-m", options.model_file, "-npp", str(options.prompt), "-ntg",
                str(options.decode), "-npl", str(options.concurrency), "-c", str(room), "-t", str(threads), "-tb",
                str(threads), "-fa", "on" if flash else "off", "--output-format", "jsonl"]
    return ["bench/peer/bin/llama-bench", "-m", options.model_file, "-p", str(options.prompt), "-n",
            str(options.decode), "-r", "1", "-t", str(threads), "-fa", str(flash), "-o", "json"]


def our_rates(options, threads):
    result = json.loads(run(our_command(options, threads)))
    return {part: result[part + "_tokens_per_s"] for part in options.parts}


def their_rates(options, threads, flash):
    rates = {}
    words = run(their_command(options, threads, flash))
    if options.concurrency > 1:
        result = json.loads(next(line for line in words.splitlines() if line.startswith("{")))
        return {"prefill": result["speed_pp"], "decode": result["speed_tg"], "total": result["speed"]}
    for test in json.loads(words):
        rates["prefill" if test["n_prompt"] else "decode"] = test["avg_ts"]
    return rates


def measure(options):
    """rates[(engine, threads, part)] = a list with one rate per repetition."""
    rates = {}
    for repeat in range(options.repeats):
        for threads in options.threads:
            figures = {} if options.peer_only else {"invar": our_rates(options, threads)}
            figures["llama.cpp"] = their_rates(options, threads, 0)
            figures["llama.cpp -fa"] = their_rates(options, threads, 1)
            for engine, parts in figures.items():
                for part, value in parts.items():
                    rates.setdefault((engine, threads, part), []).append(value)
            print(f"repetition {repeat + 1} of {options.repeats}, {threads} threads: " + ", ".join(
                f"{engine} " + " / ".join(f"{rate:.2f}" for rate in parts.values()) for engine, parts in figures.items()),
                file=sys.stderr)
    return rates


def cpu_name():
    name, flags = "unknown CPU", ""
    with open("/proc/cpuinfo") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            if key.strip() == "flags":
                flags = value.split()
    sets = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{name}, {os.cpu_count()} cores, {' '.join(sets)}"


def show(runs):
    return f"{statistics.median(runs):.1f} ({min(runs):.1f} to {max(runs):.1f})"


def report(options, rates, load_before):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    many = f"{options.concurrency} concurrent requests; " if options.concurrency > 1 else ""
    print(f"Model: {options.name}, random bf16 weights; {many}prefill of {options.prompt} tokens, decode of "
          f"{options.decode} tokens; tokens/s, medians of {options.repeats} alternating runs "
          "(in brackets the least and the most).\n")
    print("| threads | part | invar | llama.cpp | invar / llama.cpp |")
    print("|---|---|---|---|---|")
    for threads in options.threads:
        for part in options.parts:
            cell = {engine: rates.get((engine, threads, part)) for engine in ("invar", "llama.cpp", "llama.cpp -fa")}
            theirs = max(("llama.cpp", "llama.cpp -fa"), key=lambda engine: statistics.median(cell[engine]))
            ours = show(cell["invar"]) if cell["invar"] else "not measured"
            ratio = "-"
            if cell["invar"]:
                ratio = f"{statistics.median(cell['invar']) / statistics.median(cell[theirs]):.2f}"
            flash = " -fa 1" if theirs.endswith("-fa") else " -fa 0"
            print(f"| {threads} | {part} | {ours} | {show(cell[theirs])}{flash} | {ratio} |")
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    print(f"\n- machine: {cpu_name()}; load average {load_before:.2f} before, {os.getloadavg()[0]:.2f} after")
    print(f"- date: {now}; invar {commit.stdout.strip() or 'unknown'}; llama.cpp from llama-cpp-python 0.3.36")
    print(f"- ours: `{shlex.join(our_command(options, options.threads[0]))}`")
    print(f"- theirs: `{shlex.join(their_command(options, options.threads[0], 0))}`")


def prepare(options):
    tool = "llama-batched-bench" if options.concurrency > 1 else "llama-bench"
    if not os.path.exists(os.path.join(PEER, "bin", tool)):
        run([os.path.join(HERE, "get_llama_cpp.sh")])
    folder = os.path.join(PEER, "models", options.name)
    options.model_folder, options.model_file = relative(folder), relative(folder + ".gguf")
    if not os.path.exists(folder):
        run([sys.executable, os.path.join(HERE, "make_model.py"), options.name, folder])
    if not os.path.exists(folder + ".gguf"):
        run([sys.executable, os.path.join(HERE, "make_gguf.py"), folder, folder + ".gguf"])
    if not options.peer_only and not os.path.exists(os.path.join(ROOT, "build", "invar")):
        sys.exit("llama_cpp.py: build/invar is not there: ./run build (or --peer-only)")


def main():
    parser = argparse.ArgumentParser(description="invar and llama.cpp side by side")
    parser.add_argument("--name", default="qwen3-0.6b", help="a shape of make_model.py")
    parser.add_argument("--threads", default="1,2", help="thread counts, with commas between")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=1, help="requests at once")
    parser.add_argument("--peer-only", action="store_true", help="measure llama.cpp alone")
    options = parser.parse_args()
    options.threads = [int(threads) for threads in options.threads.split(",")]
    options.parts = PARTS if options.concurrency > 1 else PARTS[:2]
    prepare(options)
    load_before = os.getloadavg()[0]
    report(options, measure(options), load_before)


if __name__ == "__main__":
    main()
