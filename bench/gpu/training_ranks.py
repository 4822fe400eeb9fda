#!/usr/bin/env python3
"""training_ranks.py: training on several GPUs: one hash of the weights for every layout, and tokens per second.

    python3 bench/gpu/training_ranks.py --invar build/invar --out OUT [--gpus 8] [--parts math,shape,rl,speed] [--limit 300]
        [--shards optimizer,parameters] [--starts threads,mpirun]

Parts: `math`, 100 steps of tiny-math from random weights; `shape`, two short steps of the Qwen3-0.6B shape; `rl`, some steps
of GRPO on tiny-math, its rollouts on several GPUs too; `rl-long`, 50 larger ones; `speed`, steps of 32,768 tokens of the 0.6B
shape; `speed-4b`, of the 4B shape. A layout is DPxTP, data-parallel by tensor-parallel ranks, a GPU each. In the first three
parts a CPU has the hash to compare with, and in `math` a run with other virtual ranks is the control, whose hash must differ;
hashes of CPUs that OUT or --wanted has are not computed again. A layout runs for each of --shards (what a GPU has its part of
alone) and --starts: `threads`, one process; `mpirun`, a process for each data-parallel rank (not in `rl`). Runs share the GPUs,
each with its own; those of `speed` that use more than half of the GPUs run alone. Memory is the trainer's count for a GPU, and
the most that nvidia-smi saw on one of the run's GPUs. Every run has a limit of its own, and those of shapes are stopped before they write a
checkpoint. What is found is a line of OUT/training_ranks.jsonl; tables come at the end. Exit code 1 if a hash differs or a
token does.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
MATH = os.path.join(ROOT, "models", "tiny-math")
SHAPES = {"shape": "qwen3-0.6b", "speed": "qwen3-0.6b", "speed-4b": "qwen3-4b"}
LAYOUTS = {1: [(1, 1)], 2: [(2, 1), (1, 2)], 4: [(4, 1), (1, 4), (2, 2)], 8: [(8, 1), (1, 8), (4, 2), (2, 4)]}
LIMITS = {"math": 60, "shape": 40, "rl": 40, "rl-long": 60, "speed": 45, "speed-4b": 60}
HEADS = {"math": 4, "rl": 4, "rl-long": 4, "shape": 8, "speed": 8, "speed-4b": 8}  # KV heads, which tensor-parallel ranks divide


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--invar", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--gpus", type=int, default=8)
    p.add_argument("--sizes", default="1,2,4,8", help="numbers of GPUs of the layouts")
    p.add_argument("--parts", default="math,shape,rl,speed")
    p.add_argument("--limit", type=float, default=1e9, help="seconds of everything")
    p.add_argument("--threads", type=int, default=0, help="of a CPU's run; 0: all")
    p.add_argument("--wanted", default="", help="part:hash,... that CPUs had before: they do not run again")
    p.add_argument("--steps", type=int, default=8, help="of speed, after two")
    p.add_argument("--shards", default="optimizer,parameters")
    p.add_argument("--starts", default="threads", help="threads, mpirun")
    p.add_argument("--math-steps", type=int, default=100)
    p.add_argument("--device", default="cuda", help="cpu: to try the script")
    return p.parse_args()


class Run:
    def __init__(self, part, layout, gpus, command, limit, lines=0, alone=False, control=False, cpu=False, processes=1):
        self.part, self.layout, self.gpus, self.command, self.limit = part, layout, gpus, command, limit
        self.lines, self.alone, self.control, self.cpu = lines, alone, control, cpu  # lines of metrics that are enough
        self.process, self.used, self.began, self.processes, self.memory = None, [], 0.0, processes, 0.0

    @property
    def name(self):
        return f"{self.part} {self.layout}"


class Bench:
    def __init__(self, a):
        self.a, self.begun = a, time.monotonic()
        os.makedirs(a.out, exist_ok=True)
        self.work = os.path.join("/tmp", f"invar-training-ranks-{os.getpid()}")
        os.makedirs(self.work)
        path = os.path.join(a.out, "training_ranks.jsonl")
        earlier = self.lines(path)
        self.log = open(path, "a", encoding="utf-8")
        self.records, self.count, self.looked = [], 0, 0.0
        self.wanted = {r["part"]: r["weights"] for r in earlier if r["cpu"] and "failed" not in r}
        self.wanted.update(item.split(":") for item in a.wanted.split(",") if item)

    def now(self):
        return time.monotonic() - self.begun

    # ---- data

    def ids(self, name, vocab, sequences, tokens):
        path = os.path.join(self.work, name)
        draw = random.Random(1)
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as file:
                for _ in range(sequences):
                    ids = [draw.randrange(vocab) for _ in range(tokens)]
                    print(json.dumps({"ids": ids, "mask": [0] + [1] * (tokens - 1)}), file=file)
        return path

    def problems(self):
        path = os.path.join(self.work, "math.jsonl")
        if not os.path.exists(path):
            subprocess.run([sys.executable, os.path.join(MATH, "make.py"), "--count", "800", "--seed", "7", "--out", path],
                           check=True, stdout=subprocess.DEVNULL)
        return path

    def reward(self):
        """A reward by number: tiny-math solves its problems, so that rewards for right answers would have no gradient."""
        path = os.path.join(self.work, "reward.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write("import json, sys\nfor line in sys.stdin:\n    n = json.loads(line)['id']\n"
                       "    print(json.dumps({'id': n, 'reward': n % 16 * 7 % 5}), flush=True)\n")
        return f"{sys.executable} {path}"

    # ---- runs

    def command(self, part):
        a = self.a
        common = ["--arithmetic", "tc16", "--quiet", "--json"]
        if part == "math":
            return [a.invar, "train", "sft", MATH, "--data", self.problems(), "--load-format", "dummy", "--dummy-seed", "3",
                    "--steps", str(a.math_steps), "--batch-size", "8", "--lr", "1e-3", *common]
        if part.startswith("rl"):
            steps, batch = ("50", "32") if part == "rl-long" else ("4", "4")
            return [a.invar, "train", "rl", MATH, "--data", os.path.join(MATH, "problems.jsonl"), "--reward", self.reward(),
                    "--steps", steps, "--batch-size", batch, "--group-size", "8", "--max-new-tokens", "64", "--lr", "1e-5",
                    *common]
        data = self.ids("shape.jsonl", 151936, 16, 48) if part == "shape" else self.ids("speed.jsonl", 151936, 32, 4096)
        return [a.invar, "train", "sft", os.path.join(HERE, "configs", SHAPES[part]), "--data", data, "--load-format",
                "dummy", "--dtype", "bfloat16", "--steps", "1000000", "--batch-size", "8", "--lr", "1e-5", "--lr-scheduler",
                "constant", *common]

    def add(self, runs, part, layout, extra, gpus, **more):
        device = ["--device", "cuda" if gpus else "cpu"] if self.a.device == "cuda" else ["--device", "cpu"]
        command = self.command(part) + device + extra
        if more.get("processes", 1) > 1:
            command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--quiet", "-n", str(more["processes"])] + command
        lines = {"shape": 2, "speed": self.a.steps + 2, "speed-4b": self.a.steps + 2}.get(part, 0)
        runs.append(Run(part, layout, gpus, command, LIMITS[part] if gpus else 1e9, lines, **more))

    def plan(self):
        a, runs = self.a, []
        sizes = [n for n in LAYOUTS if n <= a.gpus and str(n) in a.sizes.split(",")]
        for part in a.parts.split(","):
            reference = part in ("math", "shape", "rl") and part not in self.wanted
            if reference:
                threads = ["--threads", str(a.threads)]
                self.add(runs, part, "CPU", ["--dp", "4" if part == "rl" else "8", *threads], 0, cpu=True)
            if part == "math" and 1 in sizes:
                self.add(runs, part, "control", ["--virtual-ranks", "4"], 1, control=True)
            for n in reversed(sizes):
                for dp, tp in LAYOUTS[n]:
                    if tp <= HEADS[part] and (part not in ("rl-long", "speed-4b") or n >= 4):
                        self.layouts(runs, part, n, dp, tp)
        return runs

    def layouts(self, runs, part, n, dp, tp):
        ways = [[]]
        if part == "math" and n in (2, 4):
            ways.append(["--micro-batch", "1", "--recompute", "layer"])
        if part.startswith("rl"):
            ways = [["--rollout-tp", str(min(4, n))]] + ([["--rollout-tp", "1"]] if n == 4 and tp == 1 else [])
        shards = [s for s in self.a.shards.split(",") if s == "optimizer" or (n > 1 and (tp == 1 or self.a.device == "cuda"))]
        starts = [s for s in self.a.starts.split(",") if s == "threads" or (dp > 1 and not part.startswith("rl"))]
        for way, shard, start in itertools.product(ways, shards, starts):
            way = way + (["--shard", shard] if shard != "optimizer" else [])
            text = f"{dp}x{tp}" + "".join(" " + word for word in way) + (" mpirun" if start == "mpirun" else "")
            more = ["--dp", str(dp), "--tp", str(tp)] + way
            self.add(runs, part, text, more, n, alone=part.startswith("speed"), processes=dp if start == "mpirun" else 1)

    # ---- running

    def start(self, run, free):
        run.used, run.began = [free.pop(0) for _ in range(run.gpus)], self.now()
        self.count += 1
        run.base = os.path.join(self.work, f"run-{self.count}")
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, run.used))} if self.a.device == "cuda" else {}
        with open(run.base + ".txt", "w", encoding="utf-8") as out, open(run.base + ".err", "w", encoding="utf-8") as errors:
            run.process = subprocess.Popen(run.command + ["--output", run.base, "--keep", "1"], stdin=subprocess.DEVNULL,
                                           stdout=out, stderr=errors, env={**os.environ, **visible})

    def look(self, running):
        """The memory in use on the runs' GPUs, now and then."""
        if self.a.device != "cuda" or self.now() - self.looked < 1:
            return
        self.looked = self.now()
        try:
            out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                                 stdout=subprocess.PIPE, text=True, timeout=20, check=True).stdout
            used = [float(line) / 1024 for line in out.split()]
        except (OSError, ValueError, subprocess.SubprocessError):
            return
        for run in running:
            run.memory = max([run.memory] + [used[i] for i in run.used if i < len(used)])

    def enough(self, run):
        return run.lines and len(self.lines(os.path.join(run.base, "metrics.jsonl"))) >= run.lines

    def end(self, run, free, late):
        enough = run.process.poll() is None and self.enough(run)
        if run.process.poll() is None and run.processes > 1:
            run.process.terminate()  # mpirun ends its processes
            try:
                run.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        if run.process.poll() is None:
            run.process.kill()
        code = run.process.wait()
        if enough:
            code = late = 0
        free.extend(run.used)
        free.sort()
        record = {"part": run.part, "layout": run.layout, "gpus": run.gpus, "control": run.control, "cpu": run.cpu,
                  "wall": self.now() - run.began}
        lines = self.lines(os.path.join(run.base, "metrics.jsonl"))
        lines = lines[:run.lines] if run.lines else lines
        try:
            with open(run.base + ".txt", encoding="utf-8") as file:
                summary = json.load(file)
        except ValueError:
            summary = {}
        record["summary"] = summary
        if code != 0:
            with open(run.base + ".err", encoding="utf-8", errors="replace") as file:
                record["failed"] = ("late" if late else f"exit {code}") + ": " + file.read().strip()[-300:]
        record["steps"] = len(lines)
        if lines:
            record["weights"] = lines[-1].get("weights")
            if code:
                record["last"] = lines[-1].get("step")
            record["gpu_gib"] = run.memory
            counted = lines[2:] or lines
            for name in ("seconds", "seconds_gradients", "seconds_reduction", "seconds_optimizer", "seconds_weights",
                         "seconds_weights_hash", "seconds_rollout", "seconds_learner", "seconds_engine_update", "tokens",
                         "tokens_per_second", "trainer_bytes", "passes"):
                if name in lines[-1]:
                    record[name] = statistics.median(line[name] for line in counted)
            if "trainer_bytes" in record and run.gpus:
                record["trainer_gpu_gib"] = record["trainer_bytes"] / 2**30 / (run.gpus // run.processes)
            compared = [line["tokens_compared"] for line in lines if "tokens_compared" in line]
            if compared:
                record["compared"] = int(sum(compared))
                record["different"] = record["compared"] - int(sum(line["tokens_equal"] for line in lines))
        self.records.append(record)
        print(json.dumps(record), file=self.log, flush=True)
        short = {k: v for k, v in record.items() if k not in ("summary",)}
        print(f"# {self.now():.0f} s {json.dumps(short)}", flush=True)
        shutil.rmtree(run.base, ignore_errors=True)

    @staticmethod
    def lines(path):
        try:
            with open(path, encoding="utf-8") as file:
                return [json.loads(line) for line in file.read().splitlines(True) if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def go(self):
        waiting, running, free = self.plan(), [], list(range(self.a.gpus))
        while waiting or running:
            over = self.now() > self.a.limit
            for run in list(waiting):
                if over or self.now() > self.a.limit - 10:
                    waiting.remove(run)
                    continue
                busy = any(r.gpus for r in running)
                alone = run.alone and run.gpus * 2 > self.a.gpus
                if any(r.alone and r.gpus * 2 > self.a.gpus for r in running) and run.gpus:
                    break
                if len(free) < run.gpus or (alone and busy):
                    if run.gpus:
                        break  # in order: the widest are not overtaken
                    continue
                waiting.remove(run)
                self.start(run, free)
                running.append(run)
            self.look(running)
            for run in list(running):
                late = self.now() - run.began > run.limit or self.now() > self.a.limit
                if run.process.poll() is not None or late or self.enough(run):
                    running.remove(run)
                    self.end(run, free, late)
            time.sleep(0.05)

    # ---- tables

    def table(self):
        wrong = 0
        print("\n| part | layout (DP x TP) | weights after the last step | steps | s/step | tokens/s | compared, different "
              "| GiB a GPU, seen |")
        print("|---|---|---|---|---|---|---|---|")
        for part in self.a.parts.split(","):
            rows = [r for r in self.records if r["part"] == part]
            wanted = self.wanted.get(part) or next((r["weights"] for r in rows if r["cpu"] and "failed" not in r), None)
            first = next((r["weights"] for r in rows if not r["control"] and "failed" not in r), None)
            for r in rows:
                if "failed" in r and not r["cpu"]:
                    print(f"| {part} | {r['layout']} | FAILED {r['failed']} |")
                    wrong += 1
                    continue
                same = str(r.get("weights")).startswith(str(wanted or first)) if "failed" not in r else None
                mark = {True: "", False: " OTHER", None: " (stopped)"}[same]
                if r["control"]:
                    mark = " (control: another)" if not same else " CONTROL IS EQUAL"
                    same = not same
                wrong += same is False
                seconds = r.get("seconds")
                rate = f"{r['tokens'] / seconds:.0f}" if seconds and "tokens" in r else f"{r.get('tokens_per_second', 0):.0f}"
                tokens = f"{r['compared']}, {r['different']}" if "compared" in r else ""
                wrong += bool(r.get("different"))
                print(f"| {part} | {r['layout']} | `{str(r.get('weights'))[:8]}`{mark} | {r['steps']} | {seconds or 0:.4f} | "
                      f"{rate} | {tokens} | {r.get('trainer_gpu_gib', 0):.2f}, {r.get('gpu_gib', 0):.2f} |")
            if wanted is None and rows and part in ("math", "shape", "rl"):
                print(f"{part}: no hash of a CPU: the layouts are compared with each other")
        for r in self.records:
            if r["part"].startswith("speed") and "seconds_gradients" in r:
                print(f"{r['part']} {r['layout']}: gradients {r['seconds_gradients']:.4f}, reduction and norm "
                      f"{r['seconds_reduction']:.4f}, AdamW {r['seconds_optimizer']:.4f}, weights "
                      f"{r['seconds_weights']:.4f}, hash {r['seconds_weights_hash']:.4f} s; {r['passes']:.0f} passes, "
                      f"{r.get('trainer_gpu_gib', 0):.1f} GiB a GPU, {r['gpu_gib']:.1f} seen")
        sys.stdout.flush()
        return wrong


def main():
    bench = Bench(parse())
    try:
        bench.go()
        wrong = bench.table()
    finally:
        shutil.rmtree(bench.work, ignore_errors=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
