#!/usr/bin/env python3
"""all.py: all tests and measurements on GPUs, in one run on any number of GPUs.

    python3 bench/gpu/all.py BUILD OUT [--peers DIR] [--shared DIR]
    python3 bench/gpu/all.py BUILD OUT --only '^figure' --dry-run     print the plan and its duration
    python3 bench/gpu/all.py BUILD OUT --only '^sanitize'             compute-sanitizer's tools; only on request
    python3 bench/gpu/all.py BUILD OUT --device cpu                   try it: tiny models, parts without a GPU

A part is a row of the table in all_parts.py: a test, a figure or a sanitizer. Parts for one GPU run in parallel, one per
GPU; figures of several GPUs follow, so that their links are idle. Each part has a time limit, and --seconds limits the
run: parts that no longer fit are reported as not run. OUT gets two files: records.jsonl, for figures.py, and log, with
each part's output in the table's order; both are rewritten completely after every part. Exit code 1 if a test failed or
did not run, or a figure's program failed. Plain Python.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from all_parts import Setting, table

POLL_S = 0.2
GROUPS = ("test", "sanitize", "figure")  # in starting order


class Run:
    """A part and its result."""

    def __init__(self, part):
        self.part, self.state, self.seconds, self.text = part, "waiting", 0.0, ""
        self.gpus, self.process, self.started, self.deadline, self.left = [], None, 0.0, 0.0, []


def order(parts):
    """Tests (the widest and the longest first, because they use all cores); sanitizers; figures of one GPU; figures of
    several GPUs, the widest first."""
    late = [p for p in parts if p.group == "figure" and p.gpus > 1]
    early = sorted((p for p in parts if p not in late), key=lambda p: (GROUPS.index(p.group), -p.gpus, -p.seconds))
    return early, sorted(late, key=lambda p: -p.gpus)


def simulate(parts, gpus):
    """{name: (start, GPUs)} and the total seconds, with the table's estimates."""
    plan, now = {}, 0.0
    for phase in order(parts):
        ends = [now] * gpus
        for part in phase:
            chosen = sorted(range(gpus), key=lambda g: (ends[g], g))[:part.gpus]
            start = max(ends[g] for g in chosen)
            plan[part.name] = (start, sorted(chosen))
            for g in range(gpus):  # parts start in order
                ends[g] = start + part.seconds if g in chosen else max(ends[g], start)
        now = max(ends)
    return plan, now


class Queue:
    def __init__(self, runs, options, scratch):
        self.options, self.scratch = options, scratch
        self.runs = {run.part.name: run for run in runs}
        self.free = list(options.gpu_ids)
        self.begin = time.monotonic()

    def now(self):
        return time.monotonic() - self.begin

    def say(self, text):
        print(f"[{self.now():5.0f} s] {text}", flush=True)

    def file(self, run, kind):
        return os.path.join(self.scratch, re.sub(r"[^a-z0-9]+", "_", run.part.name) + kind)

    def start(self, run):
        part, left = run.part, self.options.seconds - self.now()
        reason = part.missing or (f"{left:.0f} s left of {self.options.seconds}" if left < part.seconds else None)
        if reason:
            run.state, run.text = "not run", reason
            self.say(f"not run: {part.name}: {reason}")
            return
        run.gpus, self.free = self.free[:part.gpus], self.free[part.gpus:]
        run.started, run.deadline, run.left = self.now(), self.now() + min(part.limit, left), list(part.commands)
        run.state = "running"
        self.say(f"{part.name} on {','.join(run.gpus)}")
        self.next_command(run)

    def next_command(self, run):
        command = [word.replace("{records}", self.file(run, ".jsonl")) for word in run.left.pop(0)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(run.gpus), "PYTHONUNBUFFERED": "1"}
        environment.update(run.part.env)
        with open(self.file(run, ".log"), "ab") as log:
            log.write(f"$ {shown(run.part, command)}\n".encode())
            log.flush()
            try:
                run.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                               env=environment, preexec_fn=os.setpgrp)
            except OSError as problem:
                log.write(f"{command[0]}: {problem.strerror}\n".encode())
                run.process = None

    def end(self, run, state):
        run.state, run.seconds, run.process = state, self.now() - run.started, None
        self.free = sorted(self.free + run.gpus, key=self.options.gpu_ids.index)
        with open(self.file(run, ".log"), encoding="utf-8", errors="replace") as log:
            run.text = log.read().rstrip()
        self.say(f"{run.part.name}: {state}, {run.seconds:.0f} s")
        self.write()

    def look_at(self, run):
        if run.process is None:
            self.end(run, "FAILED: not started")
            return
        code = run.process.poll()
        if code is None and self.now() > run.deadline:
            self.kill(run)
            self.end(run, f"STOPPED after {self.now() - run.started:.0f} s")
        elif code == 0 and run.left:
            self.next_command(run)
        elif code is not None:
            if code < 0:
                state = f"FAILED: {signal.Signals(-code).name}"
            else:
                state = "ok" if code == 0 else "skipped" if code == 77 else f"FAILED: exit code {code}"
            self.end(run, state)

    def phase(self, parts):
        waiting, running = [self.runs[p.name] for p in parts], []
        while waiting or running:
            while waiting and (waiting[0].part.missing or len(self.free) >= waiting[0].part.gpus):
                run = waiting.pop(0)
                self.start(run)
                running += [run] if run.state == "running" else []
            for run in running:
                self.look_at(run)
            running = [run for run in running if run.state == "running"]
            if running:
                time.sleep(POLL_S)

    def stop(self):
        """Stops all running parts, however the run ends."""
        for run in self.runs.values():
            if run.state == "running":
                self.kill(run)
                self.end(run, "STOPPED with the run")

    def kill(self, run):
        if run.process and run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()

    def write(self):
        """Rewrites both files, so an interrupted run keeps its results."""
        with open(os.path.join(self.options.out, "records.jsonl"), "w", encoding="utf-8") as out:
            print(json.dumps(machine(self.options)), file=out)
            for run in self.runs.values():
                if run.state not in ("waiting", "running", "not run") and os.path.exists(self.file(run, ".jsonl")):
                    with open(self.file(run, ".jsonl"), encoding="utf-8") as records:
                        out.writelines(whole_lines(records))
        with open(os.path.join(self.options.out, "log"), "w", encoding="utf-8") as out:
            out.write(self.log() + "\n\n" + self.summary() + "\n")

    def log(self):
        ended = [run for run in self.runs.values() if run.text and run.state != "not run"]
        return "\n\n".join(f"== {run.part.name}: {run.state}, {run.seconds:.0f} s\n{run.text}" for run in ended)

    def summary(self):
        lines = [f"{len(self.options.gpu_ids)} {self.options.device}, {self.now():.0f} s"]
        for run in self.runs.values():
            took = f"{run.seconds:6.0f} s" if run.seconds else "        "
            skips = run.text.count("SKIPPED")
            why = f": {run.text}" if run.state == "not run" else f" ({skips} skips inside)" if skips else ""
            lines.append(f"{took} (of {run.part.limit:3d})  {run.part.name:28} {run.state}{why}")
        return "\n".join(lines)

    def failed(self):
        """Failed parts, and tests that should have run."""
        return [r for r in self.runs.values() if r.state.startswith(("FAILED", "STOPPED")) or
                (r.state == "not run" and r.part.group != "figure" and not r.part.excused)]


def whole_lines(file):
    """A stopped program may have left half a record."""
    for line in file:
        try:
            json.loads(line)
        except ValueError:
            continue
        yield line


def shown(part, command):
    names = [f"{name}={shlex.quote(value)}" for name, value in part.env.items()]
    return " ".join(names + [shlex.quote(word) for word in command])


def nvidia_smi(fields):
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False)
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def machine(options):
    """The machine, for the caption of figures.py."""
    asked = nvidia_smi("name,driver_version") or ["no GPU, unknown"]
    name, driver = (word.strip() for word in asked[0].split(",")[:2])
    torch = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else "none"
    return {"bench": "machine", "gpu": name, "driver": driver, "torch": torch, "gpus": len(options.gpu_ids),
            "utc": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "minutes")}


def choose_gpus(options):
    """Names of the GPUs to use, in the form of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = visible.split(",") if visible else [str(i) for i in range(len(nvidia_smi("name")))]
    wanted = options.gpus or (len(found) or 4 if options.dry_run else len(found) or int(options.device == "cpu"))
    if options.dry_run or options.device == "cpu":
        found = [str(i) for i in range(wanted)]
    if not 0 < wanted <= len(found):
        sys.exit(f"all.py: wanted {options.gpus or 'at least one'} GPUs, the driver shows {len(found)}")
    return found[:wanted]


def print_plan(parts, options):
    plan, seconds = simulate(parts, len(options.gpu_ids))
    late = {p.name for p in order(parts)[1]}
    for part in sorted(parts, key=lambda p: (p.name in late, plan[p.name][0])):
        start, gpus = plan[part.name]
        print(f"{start:5.0f} s  {part.seconds:4d} s of {part.limit:3d}  GPU {','.join(map(str, gpus)):7}  {part.name}"
              + (f"  NOT RUN: {part.missing}" if part.missing else ""))
        for command in part.commands:
            print(f"             {shown(part, command)}")
    print(f"estimate: {seconds:.0f} s on {len(options.gpu_ids)} GPUs, of {options.seconds}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="build folder")
    parser.add_argument("out", help="folder for records.jsonl and log")
    parser.add_argument("--peers", default="none", help="folder of the compared projects' sources (README.md)")
    parser.add_argument("--shared", default=os.environ.get("INVAR_SHARED"), help="material not in the repository")
    parser.add_argument("--only", metavar="REGEX", help="parts whose name matches; sanitizers only if it contains sanitize")
    parser.add_argument("--skip", metavar="REGEX", help="parts to leave out")
    parser.add_argument("--gpus", type=int, help="number of GPUs; default: all")
    parser.add_argument("--seconds", type=int, default=570, help="of the whole run (570)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the commands")
    return parser.parse_args()


def choose_parts(options):
    setting = Setting(build=os.path.abspath(options.build), peers=os.path.abspath(options.peers),
                      shared=options.shared and os.path.abspath(options.shared), gpus=len(options.gpu_ids),
                      cpu=options.device == "cpu", assume_all=options.dry_run and not nvidia_smi("name"))
    only = options.only or ""
    parts = [p for p in table(setting) if re.search(only, p.name) and (p.group != "sanitize" or p.group in only)]
    parts = [p for p in parts if not (options.skip and re.search(options.skip, p.name))]
    if not parts:
        sys.exit(f"all.py: no part has a name with '{only}'")
    return parts


def main():
    options = arguments()
    options.gpu_ids = choose_gpus(options)
    parts = choose_parts(options)
    if options.dry_run:
        print_plan(parts, options)
        return
    os.makedirs(options.out, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="invar_all_")
    queue = Queue([Run(part) for part in parts], options, scratch)
    queue.say(f"{len(parts)} parts; estimate {simulate(parts, len(options.gpu_ids))[1]:.0f} s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for phase in order(parts):
            queue.phase(phase)
    finally:
        queue.stop()
        queue.write()
        shutil.rmtree(scratch)
    print(queue.log() + "\n\n" + queue.summary(), flush=True)
    bad = queue.failed()
    if bad:
        sys.exit("all.py: failed: " + ", ".join(run.part.name for run in bad))


if __name__ == "__main__":
    main()
