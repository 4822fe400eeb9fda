#!/usr/bin/env python3
"""training.py: a training step on one GPU, invar and PyTorch by turns.

    python3 bench/gpu/training.py --invar build/invar [--ops build/bench/gpu/bench_training_ops] --out OUT
        [--shapes 0.6b,1.7b] [--plan ours,ops,torch,ours] [--limit 280]

Random weights in the shapes of Qwen3 (configs/), packed sequences, AdamW with float32 master weights, the gradient's norm
clipped. Ours is `invar train sft --device cuda`, as users run it: the metrics of its steps have the seconds of each part, the
hash of all weights after every step included. The run is stopped when it has enough steps, before it writes a checkpoint.
Theirs is training_torch.py, whose fastest variant counts. Memory: the most that nvidia-smi sees in use on the GPU; W and MHz:
medians of its samples under load.

With --lora R only an adapter of rank R on every linear layer but the head learns: ours is `--lora-rank R`, theirs has float32 A and B
next to frozen bfloat16 weights. MFU does not count what is not computed then: 4 N in place of 6 N.

The plan is a list of parts, which --shapes share: SHAPE/PART, or PART for every shape in turn. Parts: ours (the first setting
of --ours for the shape; the fastest so far when it comes again), ours2 (the second setting), ops (bench_training_ops with the
first), vanilla (the same by turns with steps whose products are cuBLAS's), torch, torch2 (more variants). Every part has a limit
of its own, and --limit is for all. What a part finds is a line of OUT/training.jsonl as soon as it ends; the table comes at the
end, and after each part with --tables.

MFU: (6 N + 6 layers * heads * head_dim * (tokens + 1) / 2 * 2) FLOPs a token with N all weights, of the dense peak of 989
TFLOP/s in bfloat16.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PEAK = 989e12
# recompute:virtual ranks:tokens of a pass (0: as many as fit)
OURS = {"0.6b": ["none:8:0", "layer:8:0"], "1.7b": ["none:1:16384", "layer:8:0"], "4b": ["none:1:8192", "layer:8:0"],
        "8b": ["layer:8:0", "none:8:16384"]}
TORCH = {"0.6b": ["copies:8:none:cudnn,copies:8:none:flash", "copies:4:none:cudnn,autocast:8:none:cudnn"],
         "1.7b": ["copies:4:none:cudnn,copies:8:layer:cudnn", "copies:4:none:flash,autocast:4:none:cudnn"],
         "4b": ["copies:2:none:cudnn,copies:8:layer:cudnn", "copies:8:layer:flash,autocast:8:layer:cudnn"],
         "8b": ["copies:8:layer:cudnn", "copies:4:none:cudnn"]}
LIMITS = {"ours": 60, "ours2": 60, "ops": 60, "vanilla": 90, "torch": 100, "torch2": 100}
PLAN = ("0.6b/ours,0.6b/ops,1.7b/ours,1.7b/ops,0.6b/torch,0.6b/ours,1.7b/torch,1.7b/ours2,1.7b/ours,0.6b/torch2,1.7b/torch2,"
        "0.6b/ours2")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--invar", required=True)
    p.add_argument("--ops", help="bench_training_ops; without it parts of that name are left out")
    p.add_argument("--python", default=sys.executable, help="that has torch")
    p.add_argument("--out", required=True)
    p.add_argument("--shapes", default="0.6b,1.7b", help="4b needs an H200's memory")
    p.add_argument("--plan", default=PLAN, help="parts of shapes that --shapes lacks are left out")
    p.add_argument("--limit", type=float, default=1e9, help="seconds of all parts")
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--sequences", type=int, default=8)
    p.add_argument("--steps", type=int, default=8, help="after warm-up")
    p.add_argument("--warm-up", type=int, default=3)
    p.add_argument("--model", help="a folder instead of configs/qwen3-SHAPE, for trying the script")
    p.add_argument("--device", default="cuda")
    p.add_argument("--torch-flags", default="", help="more flags for training_torch.py")
    p.add_argument("--ours", help="instead of the settings above, for all shapes: A,B")
    p.add_argument("--torch-variants", help="instead of those above, for all shapes")
    p.add_argument("--tables", action="store_true")
    p.add_argument("--lora", type=int, default=0, metavar="R", help="an adapter of this rank learns")
    p.add_argument("--lora-alpha", type=float, default=64)
    return p.parse_args()


class Watch:
    """The GPU while the block runs: the most memory in use, in bytes, and samples of power and clock; None without nvidia-smi."""

    def __enter__(self):
        self.most, self.samples, self.stop = None, [], threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        while not self.stop.is_set():
            try:
                asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.used,power.draw,clocks.sm", "--format=csv,noheader,nounits"],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=10)
                used, watts, clock = asked.stdout.splitlines()[0].split(",")
                self.most = max(self.most or 0, int(used) << 20)
                self.samples.append((float(watts), float(clock)))
            except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
                return
            self.stop.wait(0.5)

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(15)

    def busy(self):
        """Medians of power, W, and clock, MHz, of the samples with at least 80 % of the most power."""
        most = max((watts for watts, _ in self.samples), default=0)
        busy = [sample for sample in self.samples if sample[0] >= 0.8 * most]
        return {"watts": statistics.median(s[0] for s in busy), "mhz": statistics.median(s[1] for s in busy)} if busy else {}


def stop(process):
    """Ends the program that this script started."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


def last_line(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in file.read().splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "no output"


def flops_per_token(folder, tokens, lora):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        c = json.load(file)
    hidden, width = c["hidden_size"], c["num_attention_heads"] * c["head_dim"]
    layer = hidden * (2 * width + 2 * c["num_key_value_heads"] * c["head_dim"]) + 3 * hidden * c["intermediate_size"]
    weights = c["num_hidden_layers"] * layer + c["vocab_size"] * hidden * (1 if c["tie_word_embeddings"] else 2)
    attention = c["num_hidden_layers"] * 12 * width * (tokens + 1) / 2
    return (4 if lora else 6) * weights + attention


class Bench:
    def __init__(self, a):
        self.a, self.begun = a, time.monotonic()
        os.makedirs(a.out, exist_ok=True)
        self.work = os.path.join(os.path.abspath("/tmp"), f"invar-training-{os.getpid()}")
        os.makedirs(self.work)
        self.records, self.log = [], open(os.path.join(a.out, "training.jsonl"), "a", encoding="utf-8")
        self.best, self.times = {}, {}

    def left(self):
        return self.a.limit - (time.monotonic() - self.begun)

    def folder(self, shape):
        return self.a.model or os.path.join(HERE, "configs", f"qwen3-{shape}")

    def add(self, shape, record):
        if record.get("seconds"):
            flops = flops_per_token(self.folder(shape), self.a.tokens, self.a.lora)
            record["mfu"] = record["tokens_per_second"] * flops / PEAK
        record = {"shape": shape, **record}
        self.records.append(record)
        print(json.dumps(record), file=self.log, flush=True)
        short = {k: v for k, v in record.items() if k not in ("all_seconds", "bench")}
        print(f"# {time.monotonic() - self.begun:.0f} s: {json.dumps(short)}", flush=True)

    def data(self, shape):
        """Random tokens, some steps of them: the run goes over them again."""
        path = os.path.join(self.work, f"{shape}.jsonl")
        if not os.path.exists(path):
            with open(os.path.join(self.folder(shape), "config.json"), encoding="utf-8") as file:
                vocab = json.load(file)["vocab_size"]
            draw = random.Random(1)
            with open(path, "w", encoding="utf-8") as file:
                for _ in range(4 * self.a.sequences):
                    ids = [draw.randrange(vocab) for _ in range(self.a.tokens)]
                    print(json.dumps({"ids": ids, "mask": [0] + [1] * (self.a.tokens - 1)}), file=file)
        return path

    # ---- ours

    def settings(self, shape):
        return self.a.ours.split(",") if self.a.ours else OURS[shape]

    def ours(self, shape, setting, limit):
        a, (recompute, ranks, tokens) = self.a, setting.split(":")
        out = os.path.join(self.work, f"run-{len(self.records)}")
        command = [a.invar, "train", "sft", self.folder(shape), "--load-format", "dummy", "--data", self.data(shape),
                   "--output", out, "--device", a.device, "--dtype", "bfloat16", "--arithmetic", "tc16", "--batch-size",
                   str(a.sequences), "--steps", "1000000", "--lr", "1e-6", "--lr-scheduler", "constant", "--weight-decay",
                   "0.1", "--adam-beta2", "0.95", "--recompute", recompute, "--virtual-ranks", ranks, "--pass-tokens",
                   tokens, "--quiet"]
        if a.lora:
            command += ["--lora-rank", str(a.lora), "--lora-alpha", f"{a.lora_alpha:g}"]
        record = {"bench": "training", "who": "invar", "variant": setting}
        began, lines, first = time.monotonic(), [], None
        errors = out + ".err"
        with Watch() as gpu, open(errors, "w", encoding="utf-8") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
            try:
                while len(lines) < a.warm_up + a.steps and process.poll() is None:
                    if time.monotonic() - began > limit:
                        break
                    time.sleep(0.05)
                    lines = self.lines(os.path.join(out, "metrics.jsonl"))
                    if lines and first is None:
                        first = time.monotonic() - began
                code = process.poll()
            finally:
                stop(process)
        counted = lines[a.warm_up:]
        if not counted:
            what = f"exit {code}: {last_line(errors)}" if code is not None else f"no steps after {limit:.0f} s"
            return {**record, "failed": f"{len(lines)} steps; {what}"}
        median = {name: statistics.median(line[name] for line in counted) for name in counted[0]
                  if name.startswith("seconds") or name in ("passes", "trainer_bytes", "tokens")}
        record.update(median, tokens_per_second=median["tokens"] / median["seconds"], steps=len(counted),
                      all_seconds=[line["seconds"] for line in counted], first_step=first, peak_bytes=gpu.most,
                      hash_share=median["seconds_weights_hash"] / median["seconds"], loss=lines[0]["loss"],
                      last_loss=lines[-1]["loss"], weights=lines[0]["weights"], **gpu.busy())
        return record

    @staticmethod
    def lines(path):
        try:
            with open(path, encoding="utf-8") as file:
                return [json.loads(line) for line in file.read().splitlines(True) if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def run_ours(self, shape, which, limit):
        settings = self.settings(shape)
        setting = self.best.get(shape, (settings[0], 0))[0] if which == 0 else settings[which] if which < len(
            settings) else None
        if setting is None:
            return
        record = self.ours(shape, setting, limit)
        if record.get("tokens_per_second", 0) > self.best.get(shape, ("", 0))[1]:
            self.best[shape] = (setting, record["tokens_per_second"])
        self.add(shape, record)

    def run_ops(self, shape, limit, vanilla=False):
        a, (recompute, ranks, tokens) = self.a, self.settings(shape)[0].split(":")
        if not a.ops:
            return
        out = os.path.join(a.out, f"{'vanilla' if vanilla else 'ops'}-{shape}")
        command = [a.ops, self.folder(shape), "--tokens", str(a.tokens), "--sequences", str(a.sequences), "--recompute",
                   recompute, "--virtual-ranks", ranks, "--pass", tokens, "--repeat", "3", "--json", out + ".jsonl",
                   *(["--vanilla"] if vanilla else [])]
        with open(out + ".md", "w", encoding="utf-8") as file:
            code = self.run_to(command, file, limit)
        with open(out + ".md", encoding="utf-8", errors="replace") as file:
            print(file.read()[:5000], flush=True)
        record = {"bench": "training", "who": "ops", "variant": self.settings(shape)[0], "exit": code}
        if code == 0 and vanilla:
            with open(out + ".jsonl", encoding="utf-8") as file:
                seconds = {r["who"]: r["seconds"] for r in map(json.loads, file) if "with_events" in r}
            ours = seconds.pop("ours")
            record.update(ours_seconds=ours, cost={who: ours / s - 1 for who, s in seconds.items()})
        self.add(shape, record)

    @staticmethod
    def run_to(command, file, limit):
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"stopped after {limit:.0f} s"
        finally:
            stop(process)

    # ---- theirs

    def run_torch(self, shape, which, limit):
        a = self.a
        variants = a.torch_variants or TORCH[shape][which]
        command = [a.python, os.path.join(HERE, "training_torch.py"), self.folder(shape), "--tokens", str(a.tokens),
                   "--sequences", str(a.sequences), "--steps", str(a.steps), "--warm-up", str(a.warm_up), "--variants",
                   variants, "--limit", f"{0.6 * limit:.0f}", "--device", a.device, *(["--lora", str(a.lora), "--lora-alpha", str(a.lora_alpha)] if a.lora else []),
                   *a.torch_flags.split()]
        path = os.path.join(self.work, f"torch-{len(self.records)}.txt")
        with Watch() as gpu, open(path, "w", encoding="utf-8") as file:
            code = self.run_to(command, file, limit)
        found = 0
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("{"):
                    found += 1
                    self.add(shape, {**json.loads(line), "peak_seen": gpu.most, **gpu.busy()})
        if code != 0 or not found:
            self.add(shape, {"bench": "training", "who": "torch", "variant": variants, "exit": code,
                             "failed": f"exit {code}: {last_line(path)}"})

    # ---- all

    def part(self, shape, what):
        limit = min(LIMITS[what], self.left() - 3)
        if limit < 12:
            print(f"# {shape}/{what}: no time was left", flush=True)
            return
        try:
            if what.startswith("ours"):
                self.run_ours(shape, 1 if what == "ours2" else 0, limit)
            elif what in ("ops", "vanilla"):
                self.run_ops(shape, limit, what == "vanilla")
            else:
                self.run_torch(shape, 1 if what == "torch2" else 0, limit)
        except (OSError, ValueError, KeyError) as problem:  # of a part: the others go on
            self.add(shape, {"bench": "training", "who": what, "failed": repr(problem)[:300]})
        if self.a.tables:
            self.table()

    def table(self):
        """For every variant the median over its runs."""
        rows = {}
        for r in self.records:
            if r["who"] in ("invar", "torch"):
                rows.setdefault((r["shape"], r["who"], r["variant"]), []).append(r)
        fastest = {}
        for (shape, who, _), runs in rows.items():
            rates = [r["tokens_per_second"] for r in runs if "tokens_per_second" in r]
            if rates and who == "torch":
                fastest[shape] = max(fastest.get(shape, 0), statistics.median(rates))
        print("\n| shape | who | variant | runs | s/step | tokens/s | / PyTorch's best | MFU | peak GiB | hash | W | MHz |")
        print("|---|---|---|---|---|---|---|---|---|---|---|---|")
        for (shape, who, variant), runs in rows.items():
            good = [r for r in runs if "tokens_per_second" in r]
            if not good:
                print(f"| {shape} | {who} | {variant} | {len(runs)} | {runs[-1].get('failed', 'failed')} |")
                continue
            rate = statistics.median(r["tokens_per_second"] for r in good)
            peak = max((r.get("reserved_bytes") or r.get("peak_bytes") or 0) for r in good)
            share = f"{100 * good[-1]['hash_share']:.2f} %" if "hash_share" in good[-1] else ""
            ratio = f"{rate / fastest[shape]:.3f}" if shape in fastest else ""
            seconds, mfu = statistics.median(r["seconds"] for r in good), statistics.median(r["mfu"] for r in good)
            print(f"| {shape} | {who} | {variant} | {len(good)} | {seconds:.4f} | {rate:.0f} | {ratio} | {100 * mfu:.1f} % | "
                  f"{peak / 2**30:.1f} | {share} | {good[-1].get('watts', 0):.0f} | {good[-1].get('mhz', 0):.0f} |")
        for r in self.records:
            if r["who"] == "invar" and "seconds_gradients" in r:
                print(f"{r['shape']} {r['variant']}: gradients {r['seconds_gradients']:.4f}, reduction and norm "
                      f"{r['seconds_reduction']:.4f}, AdamW {r['seconds_optimizer']:.4f}, weights {r['seconds_weights']:.4f}, hash "
                      f"{r['seconds_weights_hash']:.4f} s; {r['passes']:.0f} passes; ready for the first step's end "
                      f"after {r['first_step']:.1f} s")
            for who, cost in r.get("cost", {}).items():
                print(f"{r['shape']} {r['variant']}: {100 * cost:+.1f} % of the time of {who}")
        sys.stdout.flush()


def main():
    a = parse()
    shapes = a.shapes.split(",")
    plan = []
    for item in a.plan.split(","):
        shape, slash, what = item.rpartition("/")
        plan += [(shape, what)] if slash else [(s, what) for s in shapes]
        if what not in LIMITS:
            sys.exit(f"training.py: --plan: wanted parts of {', '.join(LIMITS)}, found '{what}'")
    bench = Bench(a)
    try:
        for shape, what in plan:
            if shape in shapes:
                bench.part(shape, what)
        bench.table()
    finally:
        shutil.rmtree(bench.work, ignore_errors=True)


if __name__ == "__main__":
    main()
