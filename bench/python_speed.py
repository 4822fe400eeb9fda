#!/usr/bin/env python3
"""LLM.generate compared with `invar bench`: requests of the same number and lengths, in turn.

    python_speed.py MODEL [ROUNDS] [THREADS]       with the installed package

Prints medians of tokens per second of wall time and, which other programs on the machine disturb less, per second of
processor time."""
import json
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import time

from invar import LLM, SamplingParams

PROGRAM = pathlib.Path(sys.executable).parent / "invar"
SHAPES = ((64, 32, 32), (256, 32, 32))  # requests, tokens of a prompt, tokens of an answer


def cpu_seconds(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def of_program(model, shape, threads):
    count, prompt, answer = shape
    words = [PROGRAM, "bench", model, "--concurrency", count, "--prompt-tokens", prompt, "--decode-tokens", answer,
             "--threads", threads, "--repeat", 1, "--json"]  # fmt: skip
    begin = cpu_seconds(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([str(word) for word in words], check=True, text=True, capture_output=True)
    used = cpu_seconds(resource.RUSAGE_CHILDREN) - begin
    return json.loads(ran.stdout)["total_tokens_per_s"], count * (prompt + answer) / used


def of_package(llm, shape, rng):
    count, prompt, answer = shape
    prompts = [{"prompt_token_ids": [rng.randrange(10, 600) for _ in range(prompt)]} for _ in range(count)]
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    begin, used = time.perf_counter(), cpu_seconds(resource.RUSAGE_SELF)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds, used = time.perf_counter() - begin, cpu_seconds(resource.RUSAGE_SELF) - used
    assert all(len(output.outputs[0].token_ids) == answer for output in outputs)
    return count * (prompt + answer) / seconds, count * (prompt + answer) / used


def main():
    model = sys.argv[1]
    rounds, threads = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((2, 5), (3, 2)))
    rng = random.Random(1)
    for shape in SHAPES:
        with LLM(model, max_num_seqs=shape[0], threads=threads) as llm:
            pairs = [(of_program(model, shape, threads), of_package(llm, shape, rng)) for _ in range(rounds)]
        print(f"{shape[0]} requests of {shape[1]} + {shape[2]} tokens, {threads} threads, {rounds} rounds")
        for i, clock in enumerate(("wall", "processor")):
            program, package = (statistics.median(pair[side][i] for pair in pairs) for side in (0, 1))
            ratios = sorted(pair[1][i] / pair[0][i] for pair in pairs)
            print(f"  {clock:9} invar bench {program:8.0f} tokens/s   LLM.generate {package:8.0f}   ratio {statistics.median(ratios):.3f}"
                  f" ({ratios[0]:.3f} to {ratios[-1]:.3f})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
