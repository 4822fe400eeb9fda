#!/usr/bin/env python3
"""rl_seeds.py: reinforcement learning of models/tiny-sum under mismatch of sampler and learner, many seeds at a time.

    python3 bench/rl_seeds.py --invar build/invar --out RECORDS.jsonl [--parts gap,dose,stale] [--seeds 1-5] [--steps 300]
                              [--seconds 500] [--work DIR]

Runs `invar train rl` with the recipe of `./run demo-rl` (but --steps) for each condition and seed: as many processes at a
time as there are CPUs, one thread and one CPU each; with --jobs N another number of processes, on any CPU. A finished run is
one line of RECORDS.jsonl: the metrics of every step, and the greedy accuracy on the held-out problems at the start and at
every checkpoint. Runs that the file has already are not run again, and files of several calls can be concatenated. With
--seconds no run is started that would end later. bench/rl_figures.py draws.

Conditions, all with --on-mismatch report:

    gap    sampler with four tensor-parallel ranks, learner with one; the sampler's sums: invar, bio, vanilla
    dose   sampler's matrices rounded to 3, 2, 1 or 0 mantissa bits ("exact": none); "-tis": with importance weights of
           learner to sampler, truncated at 2
    stale  sampler takes the learner's weights every 2 or 8 steps; also with -tis

Plain Python, without dependencies.
"""

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "models", "tiny-sum")
RECIPE = ("--algorithm grpo --reward exact --batch-size 64 --group-size 8 --max-new-tokens 4 --lr 1e-3 "
          "--lr-scheduler linear --warmup 5 --adam-beta2 0.95 --threads 1 --on-mismatch report --quiet --json").split()
TIS = "--correction truncate --correction-cap 2"
BITS = {f"bits-{m}": f"--rollout-mantissa-bits {m}" for m in (3, 2, 1, 0)}
STALE = {f"every-{n}": f"--rollout-sync-every {n}" for n in (2, 8)}
PARTS = {
    "gap": {"tp4-invar": "--rollout-tp 4", "tp4-bio": "--rollout-tp 4 --rollout-numerics bio",
            "tp4-vanilla": "--rollout-tp 4 --rollout-numerics vanilla"},
    "dose": {"exact": "", **BITS},
    "stale": dict(STALE),
}
for part in ("dose", "stale"):
    PARTS[part].update({f"{name}-tis": f"{flags} {TIS}" for name, flags in list(PARTS[part].items())})
METRICS = ("reward", "kl", "kl_k1", "largest_logprob_difference", "largest_probability_difference", "tokens_compared",
           "tokens_equal", "entropy_estimate", "gradient_norm")
CHECKPOINTS = 8


def call(command, cpu):
    """The command's JSON summary; raises with its last words. cpu: to run on; None: any."""
    pin = None if cpu is None else lambda: os.sched_setaffinity(0, {cpu})
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=pin)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-600:]}")
    return json.loads(done.stdout)


def accuracy(invar, model, cpu):
    report = call([invar, "eval", model, "--dataset", os.path.join(MODEL, "held_out.jsonl"), "--no-chat", "--temperature",
                   "0", "--max-tokens", "4", "--device", "cpu", "--threads", "1", "--max-num-seqs", "64", "--json"], cpu)
    return report["configurations"][0]["accuracy"]


def digits(x):
    return None if x is None else float(f"{x:.6g}")


def train(options, condition, flags, seed, cpu):
    """One run: its record."""
    began = time.monotonic()
    out = os.path.join(options.work, f"{condition}-{seed}")
    shutil.rmtree(out, ignore_errors=True)
    every = max(1, options.steps // CHECKPOINTS)
    try:
        summary = call([options.invar, "train", "rl", MODEL, "--data", os.path.join(MODEL, "problems.jsonl"), "--output", out,
                        "--steps", str(options.steps), "--seed", str(seed), "--save-every", str(every), "--keep", "0",
                        *RECIPE, *flags.split()], cpu)
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
            steps = [json.loads(line) for line in file]
        held_out = [[0, accuracy(options.invar, MODEL, cpu)]]
        for name in sorted(os.listdir(out)):
            if name.startswith("checkpoint-"):
                held_out.append([int(name.split("-")[1]), accuracy(options.invar, os.path.join(out, name, "model"), cpu)])
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return {"condition": condition, "flags": flags, "seed": seed, "steps": options.steps, "weights": summary["weights"],
            "identity": summary["identity"], "tokens_compared": summary["tokens_compared"],
            "tokens_different": summary["tokens_different"], "held_out": held_out,
            "seconds": round(time.monotonic() - began, 1),
            "metrics": {name: [digits(step[name]) for step in steps] for name in METRICS}}


class Pool:
    """Runs over CPUs; the longest run so far predicts the next."""

    def __init__(self, options, wanted):
        self.options, self.wanted, self.total = options, queue.SimpleQueue(), len(wanted)
        self.lock, self.longest, self.done, self.failed = threading.Lock(), 0.0, 0, []
        self.began = time.monotonic()
        for item in wanted:
            self.wanted.put(item)

    def too_late(self):
        used = time.monotonic() - self.began
        return self.options.seconds and used + 1.15 * self.longest > self.options.seconds

    def write(self, record):
        with self.lock:
            self.done += 1
            self.longest = max(self.longest, record["seconds"])
            with open(self.options.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(record, separators=(",", ":")) + "\n")
            print(f"{time.monotonic() - self.began:6.1f} s  {self.done}/{self.total}  {record['condition']} seed "
                  f"{record['seed']}: held-out {record['held_out'][-1][1]:.3f}, {record['tokens_different']} of "
                  f"{record['tokens_compared']} tokens differ, {record['seconds']} s", flush=True)

    def work(self, cpu):
        while not self.too_late():
            try:
                condition, flags, seed = self.wanted.get_nowait()
            except queue.Empty:
                return
            try:
                self.write(train(self.options, condition, flags, seed, cpu))
            except (RuntimeError, OSError, ValueError, KeyError) as problem:
                with self.lock:
                    self.failed.append(f"{condition} seed {seed}: {problem}")
                    print(self.failed[-1], file=sys.stderr, flush=True)

    def run(self, cpus):
        workers = [threading.Thread(target=self.work, args=(cpu,)) for cpu in cpus]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def seeds_of(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def finished(path):
    if not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8") as file:
        return {(r["condition"], r["seed"], r["steps"]) for r in map(json.loads, file)}


def main():
    parser = argparse.ArgumentParser(description="RL under mismatch: conditions x seeds")
    parser.add_argument("--invar", default=os.path.join(ROOT, "build", "invar"))
    parser.add_argument("--out", required=True, help="JSON lines, appended")
    parser.add_argument("--parts", default="gap,dose,stale", help="of gap, dose, stale")
    parser.add_argument("--only", help="conditions by name, separated by commas")
    parser.add_argument("--seeds", type=seeds_of, default=range(1, 6), help="FIRST-LAST")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=0, help="limit of the whole call; 0: none")
    parser.add_argument("--jobs", type=int, default=0, help="processes at a time, on any CPU; 0: one on each")
    parser.add_argument("--work", help="directory for runs; a temporary one by default")
    options = parser.parse_args()
    unknown = [p for p in options.parts.split(",") if p not in PARTS]
    if unknown:
        parser.error(f"--parts: wanted {', '.join(PARTS)}, found {unknown[0]}")
    conditions = {name: flags for p in options.parts.split(",") for name, flags in PARTS[p].items()}
    if options.only:
        missing = [n for n in options.only.split(",") if n not in conditions]
        if missing:
            parser.error(f"--only: wanted {', '.join(conditions)}, found {missing[0]}")
        conditions = {name: conditions[name] for name in options.only.split(",")}
    options.invar = os.path.abspath(options.invar)
    options.work = options.work or tempfile.mkdtemp(prefix="rl-seeds-")
    os.makedirs(options.work, exist_ok=True)
    done = finished(options.out)
    wanted = [(name, flags, seed) for seed in options.seeds for name, flags in conditions.items()
              if (name, seed, options.steps) not in done]
    cpus = sorted(os.sched_getaffinity(0))
    if options.jobs and options.jobs != len(cpus):
        cpus = [None] * options.jobs
    print(f"{len(wanted)} runs of {options.steps} steps, {len(cpus)} at a time", flush=True)
    pool = Pool(options, wanted)
    pool.run(cpus)
    left = pool.total - pool.done - len(pool.failed)
    print(f"{pool.done} runs done, {len(pool.failed)} failed, {left} not started, {time.monotonic() - pool.began:.0f} s")
    return 1 if pool.failed else 0


if __name__ == "__main__":
    sys.exit(main())
