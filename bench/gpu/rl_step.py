#!/usr/bin/env python3
"""rl_step.py: where the time of a step of reinforcement learning goes, rollouts and learner on one GPU.

    python3 bench/gpu/rl_step.py --invar build/invar --out OUT [--model bench/gpu/configs/qwen3-1.7b]
        [--completions 512] [--group 8] [--prompt 64] [--tokens 1024] [--steps 3] [-- MORE FLAGS OF invar train rl]

GRPO from random weights: prompts of random ids, completions of exactly --tokens tokens (random weights hardly ever draw an
end), rewards of the built-in rule `length`, one update a step. The metrics of each step have the seconds of the rollouts, of
the rewards, of the learner (its comparison with the sampler included) and of the switch to the new weights; the rest is what
is none of these. The first step, in which graphs are captured, is not counted."""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = ("rollout", "learner", "engine_update", "reward")


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--invar", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--model", default=os.path.join(HERE, "configs", "qwen3-1.7b"))
    p.add_argument("--completions", type=int, default=512)
    p.add_argument("--group", type=int, default=8)
    p.add_argument("--prompt", type=int, default=64)
    p.add_argument("--tokens", type=int, default=1024)
    p.add_argument("--steps", type=int, default=3, help="after the first")
    p.add_argument("--limit", type=float, default=600, help="seconds")
    p.add_argument("more", nargs="*", help="flags of invar train rl")
    return p.parse_args()


def write_prompts(path, count, length, vocab):
    rng = random.Random(1)
    with open(path, "w") as f:
        for _ in range(count):
            ids = [rng.randrange(vocab) for _ in range(length)]
            f.write(json.dumps({"ids": ids, "answer": "0"}) + "\n")


def read_steps(path):
    if not os.path.exists(path):
        return []
    with open(path) as f:
        lines = [line for line in f if line.endswith("\n")]
    return [step for step in map(json.loads, lines) if "seconds_rollout" in step]


def main():
    a = parse()
    os.makedirs(a.out, exist_ok=True)
    data, run = os.path.join(a.out, "prompts.jsonl"), os.path.join(a.out, "run")
    batch = a.completions // a.group
    with open(os.path.join(a.model, "config.json")) as f:
        vocab = json.load(f)["vocab_size"]
    write_prompts(data, batch * (a.steps + 2), a.prompt, vocab)
    command = [a.invar, "train", "rl", a.model, "--load-format", "dummy", "--data", data, "--output", run, "--reward", "length",
               "--batch-size", str(batch), "--group-size", str(a.group), "--max-new-tokens", str(a.tokens),
               "--steps", str(a.steps + 2), "--quiet", *a.more]
    shutil.rmtree(run, ignore_errors=True)
    program = subprocess.Popen(command)
    steps, until = [], time.monotonic() + a.limit
    while len(steps) < a.steps + 1 and program.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
        steps = read_steps(os.path.join(run, "metrics.jsonl"))
    program.kill()  # a checkpoint of this size would take longer than the steps
    steps = steps[1:]
    if not steps:
        raise SystemExit(f"no counted step: invar ended with {program.wait()}")
    print("\n| step | " + " | ".join(PARTS) + " | rest | rest, share | tokens/s | compared, equal |")
    print("|---|" + "---|" * (len(PARTS) + 4))
    for s in steps:
        rest = s["seconds"] - sum(s["seconds_" + p] for p in PARTS)
        print(f"| {s['seconds']:.3f} | " + " | ".join(f"{s['seconds_' + p]:.3f}" for p in PARTS) +
              f" | {rest:.3f} | {100 * rest / s['seconds']:.2f} % | {s['tokens_per_second']:,.0f}"
              f" | {s['tokens_compared']:.0f}, {s['tokens_equal']:.0f} |")
    print(f"median step {statistics.median(s['seconds'] for s in steps):.3f} s")


if __name__ == "__main__":
    main()
