#!/usr/bin/env python3
"""tiny_math.py: trains models/tiny-math from random weights with `invar train sft`, and scores it on its held-out problems.

    python3 bench/tiny_math.py --invar build/invar --dir build/tiny-math --out OUT [--seconds 540] [--calls 1]
                               [--steps N] [--device cuda]

Writes the training problems (models/tiny-math/make.py), times a few layouts of ranks and threads (they change no bit), sets
the steps so that the run fits into --calls calls of --seconds each, and trains. On a CPU every checkpoint is scored on the
first 200 held-out problems while training goes on; a GPU trains alone. The last one is scored on all 1,000 if it is good enough. A call whose time is over ends its
step, writes a checkpoint and says so; the same command continues it. Into OUT: model.safetensors of the newest checkpoint,
metrics.jsonl, curves.svg, accuracy.json, train.log and command.txt.

Flags after `--` are added to `invar train sft`. Plain Python, without dependencies.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "models", "tiny-math")
RECIPE = ("--load-format dummy --dummy-seed 1 --seed 1 --virtual-ranks 16 --lr-scheduler wsd --warmup 0.03 --adam-beta2 0.98 "
          "--weight-decay 0.1 --max-grad-norm 1").split()
TRIAL_STEPS = 16
RESERVE = 45  # seconds of a call for what is not training: reading the data, the last checkpoint, scoring it


class Call:
    """A call of this program and its files."""

    def __init__(self, options):
        self.o, self.began = options, time.monotonic()
        self.plan_path = os.path.join(options.dir, "plan.json")
        self.run_dir = os.path.join(options.dir, "run")
        self.data = os.path.join(options.dir, "train.jsonl")
        self.scores_path = os.path.join(options.dir, "accuracy.json")
        self.scores = read_json(self.scores_path, [])
        self.log = open(os.path.join(options.dir, "train.log"), "a", encoding="utf-8")

    def used(self):
        return time.monotonic() - self.began

    def say(self, text):
        line = f"{self.used():6.1f} s  {text}"
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()


def read_json(path, otherwise):
    if not os.path.exists(path):
        return otherwise
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path, value):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(path + ".new", path)


def make_data(call, examples):
    """Each example is seen once, so that none is learned by heart."""
    subprocess.run([sys.executable, os.path.join(MODEL, "make.py"), "--count", str(examples), "--seed", "1", "--out",
                    call.data], check=True)
    call.say(f"{examples} problems, {os.path.getsize(call.data) / 1e6:.0f} MB")


def command(call, steps, layout, output, data):
    o = call.o
    decay = max(1, int(steps * 0.3))
    return [o.invar, "train", "sft", MODEL, "--data", data, "--output", output, "--steps", str(steps), "--batch-size",
            str(o.batch_size), "--lr", o.lr, "--decay-steps", str(decay), *RECIPE, *layout, *o.flags]


def layouts(options):
    """Ranks x threads that use all CPUs; a GPU has one."""
    cpus = options.cpus
    if options.layout:
        return [options.layout.split()]
    if options.device == "cuda":
        return [["--device", "cuda"]]
    sizes = [dp for dp in (1, 2, 4, 8, 16) if dp <= cpus]
    return [["--dp", str(dp), "--threads", str(max(dp, cpus))] for dp in sizes[-3:]]


def trial(call, layout):
    """Tokens per second of a few steps, and tokens of a step."""
    out = os.path.join(call.o.dir, "trial")
    data = os.path.join(call.o.dir, "trial.jsonl")
    shutil.rmtree(out, ignore_errors=True)
    with open(call.data, encoding="utf-8") as file, open(data, "w", encoding="utf-8") as some:
        for _ in range(TRIAL_STEPS * call.o.batch_size):
            some.write(file.readline())
    done = subprocess.run(command(call, TRIAL_STEPS, layout, out, data) + ["--quiet"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"tiny_math.py: {done.stderr.strip()}")
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        steps = [json.loads(line) for line in file][2:]  # the first ones touch memory
    shutil.rmtree(out)
    tokens = sum(s["tokens"] for s in steps)
    seconds = sum(s["seconds"] for s in steps)
    call.say(f"{' '.join(layout)}: {tokens / seconds:.0f} tokens/s, {1000 * seconds / len(steps):.0f} ms a step")
    return seconds / len(steps)


def make_plan(call):
    """The run's steps and layout, once; later calls read them."""
    o = call.o
    plan = read_json(call.plan_path, None)
    if plan:
        if not os.path.exists(call.data):
            make_data(call, plan["steps"] * plan["batch_size"])
        return plan
    make_data(call, TRIAL_STEPS * o.batch_size)
    found = [(trial(call, layout), layout) for layout in layouts(o)]
    seconds, layout = min(found)
    room = o.calls * (o.seconds - RESERVE) - call.used()
    steps = o.steps or max(100, int(0.93 * room / seconds) // 100 * 100)
    plan = {"steps": steps, "layout": layout, "batch_size": o.batch_size, "lr": o.lr}
    call.say(f"plan: {steps} steps of {o.batch_size}, {' '.join(layout)}, about {steps * seconds:.0f} s")
    make_data(call, steps * o.batch_size)
    write_json(call.plan_path, plan)
    return plan


def checkpoints(call):
    """{step: model directory} of whole checkpoints."""
    found = {}
    for name in sorted(os.listdir(call.run_dir)) if os.path.isdir(call.run_dir) else []:
        if name.startswith("checkpoint-") and os.path.exists(os.path.join(call.run_dir, name, "model", "config.json")):
            found[int(name.split("-")[1])] = os.path.join(call.run_dir, name, "model")
    return found


class Scorer:
    """Scores one checkpoint at a time next to the training."""

    def __init__(self, call):
        self.call, self.process, self.step, self.limit = call, None, 0, 0

    def start(self, step, model, limit, threads):
        """Of a copy: training may remove the checkpoint."""
        copy = os.path.join(self.call.o.dir, "scored")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(model, copy)
        self.step, self.limit = step, limit
        self.out = open(os.path.join(self.call.o.dir, "score.json"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [self.call.o.invar, "eval", copy, "--dataset", os.path.join(MODEL, "problems.jsonl"), "--limit", str(limit),
             "--temperature", "0", "--max-tokens", "120", "--max-num-seqs", "256" if self.call.o.device == "cuda" else "64",
             "--device", self.call.o.device, "--threads", str(threads), "--json"], stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.DEVNULL)

    def finish(self, wait):
        """Notes the score if it is there."""
        if not self.process or (not wait and self.process.poll() is None):
            return
        code = self.process.wait()
        self.out.seek(0)
        text, self.process = self.out.read(), None
        self.out.close()
        if code != 0:
            self.call.say(f"step {self.step}: invar eval: exit code {code}")
            return
        report = json.loads(text)
        score = {"step": self.step, "problems": report["scored"], "accuracy": report["configurations"][0]["accuracy"]}
        self.call.scores.append(score)
        write_json(self.call.scores_path, self.call.scores)
        self.call.say(f"step {self.step}: {score['accuracy']:.4f} of {score['problems']} held-out problems right")

    def look(self):
        self.finish(wait=False)
        done = {s["step"] for s in self.call.scores}
        new = [(step, model) for step, model in checkpoints(self.call).items() if step not in done and step > self.step]
        if new and not self.process:
            try:
                self.start(*new[-1], 200, 1)
            except OSError:
                pass  # removed meanwhile: the next one comes


def train(call, plan):
    """Until the last step or the call's time is over; whether the run is done."""
    steps = plan["steps"]
    words = command(call, steps, plan["layout"], call.run_dir, call.data)
    words += ["--save-every", str(max(1, steps // 12)), "--keep", "3", "--resume", "--quiet"]
    with open(os.path.join(call.o.dir, "command.txt"), "w", encoding="utf-8") as file:
        file.write(" ".join(words) + "\n")
    began = time.monotonic()
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=call.log, stderr=call.log)
    scorer, reported, stopped = Scorer(call), 0.0, False
    while process.poll() is None:
        time.sleep(0.5)
        if call.o.device == "cpu":
            scorer.look()
        if call.used() - reported > 20:
            reported = call.used()
            call.say(last_step(call))
        if call.o.seconds and call.used() > call.o.seconds - RESERVE / 2 and not stopped:
            stopped = True
            call.say("time is over: ending after this step")
            process.send_signal(signal.SIGINT)
    scorer.finish(wait=True)
    call.say(f"training took {time.monotonic() - began:.1f} s, {last_step(call)}")
    if process.returncode not in (0, -signal.SIGINT, 128 + signal.SIGINT):
        raise SystemExit(f"tiny_math.py: invar train: exit code {process.returncode}, see {call.log.name}")
    last = max(checkpoints(call).items())
    rough = call.scores and call.scores[-1]["accuracy"] < 0.5  # answers that do not end take long
    scorer.start(*last, 200 if rough else 1000, min(4, call.o.cpus))
    scorer.finish(wait=True)
    return last


def last_step(call):
    path = os.path.join(call.run_dir, "metrics.jsonl")
    if not os.path.exists(path):
        return "no step yet"
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 2000))
        lines = [line for line in file.read().decode().split("\n")[1:] if line.endswith("}")]
    if not lines:
        return "no step yet"
    step = json.loads(lines[-1])
    return f"step {step['step']}: loss {step['loss']:.4f}, {step['tokens_per_second']:.0f} tokens/s"


def copy_out(call, model):
    os.makedirs(call.o.out, exist_ok=True)
    call.log.flush()
    files = [os.path.join(model, "model.safetensors"), call.scores_path, call.log.name]
    files += [os.path.join(call.run_dir, name) for name in ("metrics.jsonl", "curves.svg")]
    files.append(os.path.join(call.o.dir, "command.txt"))
    for path in files:
        shutil.copy(path, call.o.out)


def main():
    parser = argparse.ArgumentParser(description="trains tiny-math from random weights")
    parser.add_argument("--invar", default=os.path.join(ROOT, "build", "invar"))
    parser.add_argument("--dir", default=os.path.join(ROOT, "build", "tiny-math"), help="data, run and checkpoints; kept")
    parser.add_argument("--out", required=True, help="directory for the results")
    parser.add_argument("--seconds", type=float, default=540, help="of one call; 0: no limit, with --steps")
    parser.add_argument("--calls", type=int, default=1, help="calls that the run may take")
    parser.add_argument("--steps", type=int, default=0, help="0: as many as fit")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", default="1e-3")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--cpus", type=int, default=len(os.sched_getaffinity(0)), help="to use; all by default")
    parser.add_argument("--layout", help="flags of ranks and threads; by default the fastest of a few")
    parser.add_argument("flags", nargs="*", help="more flags of invar train sft, after --")
    options = parser.parse_args()
    if not options.seconds and not options.steps:
        parser.error("wanted --steps with --seconds 0")
    options.invar = os.path.abspath(options.invar)
    os.makedirs(options.dir, exist_ok=True)
    call = Call(options)
    plan = make_plan(call)
    step, model = train(call, plan)
    copy_out(call, model)
    call.say(f"step {step} of {plan['steps']}" + ("" if step == plan["steps"] else ": the same command continues"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
