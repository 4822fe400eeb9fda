#!/usr/bin/env python3
"""verify_train.py: `invar verify --train` of four cases in parts, many at a time; a table and a picture of what it found.

    python3 bench/verify_train.py run RECORDS.jsonl [--invar build/invar] [--steps 200] [--combinations 1000] [--jobs N]
                                  [--seconds S] [--cases ...]
    python3 bench/verify_train.py draw RECORDS.jsonl --out docs/verify_train.svg

Cases: dense and experts (tests/data/hf/qwen3 and qwen3_moe), each with fma32 and tc16, on 40 random sequences of 2 to 12 tokens,
16 a step. Configurations: every value of every
axis alone, then random combinations: data-parallel worlds 1, 2, 4, 8; micro-batches of 1, 2, 4, 8 sequences or all; 1, 2, 4
tensor-parallel ranks; 1, 2, 3 threads; instruction sets; recomputation; interruptions, resumed in the same or another world.
A finished part is one line of RECORDS.jsonl; parts that the file has are not run again. With --seconds no part is started
that would end later, and none runs on after it. Plain Python, without dependencies.
"""

import argparse
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench", "gpu"))
from svg import STYLE, Chart  # noqa: E402

CASES = {f"{kind}-{arithmetic}": (f"tests/data/hf/{model}", arithmetic)
         for arithmetic in ("tc16", "fma32") for kind, model in (("dense", "qwen3"), ("experts", "qwen3_moe"))}
PARTS = {"fma32": 150, "tc16": 500}  # tc16 is slower on a CPU: fewer configurations a part
# Values of each axis, that of the quiet run first.
AXES = {"world": ("1", "2", "4", "8"), "micro-batch": ("all", "1", "2", "4", "8"), "tp": ("1", "2", "4"),
        "threads": ("1", "2", "3"), "isa": ("best", "scalar", "avx2"), "recompute": ("none", "attention", "layer"),
        "resume": ("no", "same", "worlds")}


def write_data(path):
    """Random ids, a quarter of which is not learned or has a weight; from a generator of its own, the same everywhere."""
    state = 1

    def pick(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (state >> 33) % n

    with open(path, "w", encoding="utf-8") as file:
        for _ in range(40):
            n = 2 + pick(11)
            mask = [0, 1] + [(1, 1, 1, 1, 1, 1, 0.25, 0)[pick(8)] for _ in range(n - 2)]
            file.write(json.dumps({"ids": [pick(512) for _ in range(n)], "mask": mask}) + "\n")


def parts_of(case):
    return PARTS[CASES[case][1]]


def flags(options, case, part):
    model, arithmetic = CASES[case]
    return [options.invar, "verify", os.path.join(ROOT, model), "--train", "--data", options.data, "--device", "cpu", "--steps",
            str(options.steps), "--batch-size", str(options.batch_size), "--arithmetic", arithmetic, "--tp-sizes", "2,4", "--scalar-steps",
            str(options.scalar_steps), "--combinations", str(options.combinations), "--part", f"{part}/{parts_of(case)}",
            "--json", "-"]


def short(report, case, part, options, seconds):
    """What the table and the picture need of one part."""
    configurations = [[c["axes"], c["status"], c.get("steps", 0), c.get("steps_equal", 0), len(c.get("parts", [0])),
                       round(c["seconds"], 2)] for c in report["configurations"][1:]]
    return {"case": case, "part": part, "parts": parts_of(case), "combinations": options.combinations, "steps": report["steps"],
            "batch_size": report["batch_size"], "seed": report["seed"], "dtype": report["dtype"], "isa": report["isa"],
            "weights": report["weights"][-1],
            "all_weights": hashlib.sha256("".join(report["weights"]).encode()).hexdigest(),
            "configurations": configurations, "seconds": round(seconds, 1)}


class Pool:
    """Parts of cases, a few at a time; the longest so far predicts the next."""

    def __init__(self, options, wanted):
        self.o, self.wanted, self.total = options, queue.SimpleQueue(), len(wanted)
        self.lock, self.longest, self.done, self.failed, self.began = threading.Lock(), 0.0, 0, [], time.monotonic()
        for item in wanted:
            self.wanted.put(item)

    def left(self):
        return self.o.seconds - (time.monotonic() - self.began) if self.o.seconds else float("inf")

    def run_part(self, case, part):
        began, left = time.monotonic(), self.left()
        done = subprocess.run(flags(self.o, case, part), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=None if left == float("inf") else max(1, left))
        if not done.stdout.startswith("{"):
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-600:]}")
        record = short(json.loads(done.stdout), case, part, self.o, time.monotonic() - began)
        with self.lock:
            self.done += 1
            self.longest = max(self.longest, record["seconds"])
            with open(self.o.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(record, separators=(",", ":")) + "\n")
            differ = sum(c[1] == "differs" for c in record["configurations"])
            print(f"{time.monotonic() - self.began:6.1f} s  {self.done}/{self.total}  {case} part {part}: "
                  f"{len(record['configurations'])} configurations, {differ} differ, weights {record['weights'][:12]}, "
                  f"{record['seconds']} s", flush=True)

    def work(self):
        while self.left() > 1.1 * self.longest:
            try:
                case, part = self.wanted.get_nowait()
            except queue.Empty:
                return
            try:
                self.run_part(case, part)
            except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as problem:
                with self.lock:
                    self.failed.append(f"{case} part {part}: {problem}")
                    print(self.failed[-1][:900], file=sys.stderr, flush=True)

    def run(self):
        workers = [threading.Thread(target=self.work) for _ in range(self.o.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def run(options):
    done = set()
    if os.path.exists(options.out):
        with open(options.out, encoding="utf-8") as file:
            done = {(r["case"], r["part"], r["parts"]) for r in map(json.loads, file)}
    wanted = [(case, part) for part in range(1, max(PARTS.values()) + 1) for case in options.cases.split(",")
              if part <= parts_of(case) and (case, part, parts_of(case)) not in done]
    print(f"{len(wanted)} parts, {options.jobs} at a time", flush=True)
    pool = Pool(options, wanted)
    with tempfile.TemporaryDirectory() as folder:
        options.data = os.path.join(folder, "data.jsonl")
        write_data(options.data)
        pool.run()
    print(f"{pool.done} parts done, {len(pool.failed)} failed, {pool.total - pool.done - len(pool.failed)} not started, "
          f"{time.monotonic() - pool.began:.0f} s")
    return 1 if pool.failed else 0


# ---- table and picture


class Case:
    """All records of one case. cells: {((axis, value), (axis, value)): [configurations, of these equal]}."""

    def __init__(self, records):
        self.runs = [c for r in records for c in r["configurations"] if c[1] != "not run"]
        self.refused = sum(c[1] == "not run" for r in records for c in r["configurations"])
        self.equal = sum(c[1] == "equal" for c in self.runs)
        self.steps, self.steps_equal = sum(c[2] for c in self.runs), sum(c[3] for c in self.runs)
        self.interrupted = sum(c[4] > 1 for c in self.runs)
        self.quiet = {r["all_weights"] for r in records}
        self.hashes = sorted({r["weights"] for r in records})
        self.length, self.batch_size = records[0]["steps"], records[0]["batch_size"]
        self.cells = {}
        for axes, status, *_ in self.runs:
            values = [(axis, axes.get(axis, names[0])) for axis, names in AXES.items()]
            for a in values:
                for b in values:
                    cell = self.cells.setdefault((a, b), [0, 0])
                    cell[0] += 1
                    cell[1] += status == "equal"


def table(cases):
    print("| case | configurations | equal | interrupted | steps compared | equal | different weights at the end | weights |")
    print("|---|---|---|---|---|---|---|---|")
    for name, c in cases.items():
        print(f"| {name} | {len(c.runs)} | {c.equal} | {c.interrupted} | {c.steps:,} | {c.steps_equal:,} | {len(c.hashes)} | "
              f"`{c.hashes[0][:12]}...` |")
        if c.refused or len(c.quiet) != 1:
            print(f"{name}: {c.refused} refused, {len(c.quiet)} sequences of weights in the quiet runs", file=sys.stderr)


class Pairs(Chart):
    """Per case a triangle of all pairs of values of two axes: how many configurations had both, and whether all were equal."""

    CELL, NAMES, TOP, GAP = 17, 112, 92, 40

    def __init__(self, cases):
        some = next(iter(cases.values()))
        runs = sum(len(c.runs) for c in cases.values())
        super().__init__(f"Training in {runs:,} layouts: one set of weights a case",
                         f"{some.length} steps of {some.batch_size} sequences; a cell: the layouts with both values; its number: how many",
                         [], {})
        self.cases = cases
        self.values = [(axis, value) for axis, names in AXES.items() for value in names]

    def cell(self, case, i, j, left, top):
        a, b = self.values[i], self.values[j]
        count, equal = case.cells.get((a, b), (0, 0))
        if a[0] == b[0] and i != j:
            return
        style = "faint" if not count else "series2" if equal == count else "series1"
        x, y = left + self.NAMES + j * self.CELL, top + i * self.CELL
        words = f"{a[0]} {a[1]}" + (f", {b[0]} {b[1]}" if i != j else "")
        self.tip(f'rect class="shape fill {style}" x="{x:.6g}" y="{y:.6g}" width="{self.CELL - 2}" height="{self.CELL - 2}" '
                 f'rx="2"', f"{words}: {count} layouts, {equal} equal in every step")
        if count:
            self.put(f'<text class="paper middle" style="font-size:7px" x="{x + (self.CELL - 2) / 2:.6g}" y="{y + 10:.6g}">{count}</text>')

    def triangle(self, name, case, left, top):
        self.text(left, top - 12, f"{name}: {case.equal:,} of {len(case.runs):,} equal, {case.hashes[0][:12]}", "ink strong")
        for i, (axis, value) in enumerate(self.values):
            self.text(left + self.NAMES - 6, top + i * self.CELL + 11, f"{axis} {value}", "soft small end")
            for j in range(i + 1):
                self.cell(case, i, j, left, top)

    def document(self):
        side = self.NAMES + len(self.values) * self.CELL
        width, height = 2 * side + 3 * self.GAP, self.TOP + 2 * (len(self.values) * self.CELL + self.GAP) + 20
        self.put(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                 f'role="img" aria-labelledby="title desc"><title id="title">{self.title}</title>'
                 f'<desc id="desc">{self.subtitle}</desc>')
        self.put(STYLE.strip())
        self.put(f'<rect class="shape fill paper" x="0" y="0" width="{width}" height="{height}"/>')
        self.text(20, 30, self.title, "ink large strong")
        self.text(20, 50, self.subtitle)
        for i, (name, case) in enumerate(self.cases.items()):
            self.triangle(name, case, self.GAP + i % 2 * (side + self.GAP),
                          self.TOP + i // 2 * (len(self.values) * self.CELL + self.GAP))
        for x, style, words in ((20, "series2", "all equal"), (120, "series1", "some differ"), (230, "faint", "none had both")):
            self.put(f'<rect class="shape fill {style}" x="{x}" y="{height - 24}" width="12" height="12" rx="2"/>')
            self.text(x + 18, height - 14, words, "ink")
        self.put("</svg>\n")
        return "\n".join(self.parts)


def draw(options):
    records = {}
    with open(options.records, encoding="utf-8") as file:
        for record in map(json.loads, file):
            records.setdefault(record["case"], {})[record["part"]] = record
    cases = {name: Case(list(records[name].values())) for name in CASES if name in records}
    table(cases)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(Pairs(cases).document())
    return 0 if all(len(c.runs) == c.equal and len(c.quiet) == 1 for c in cases.values()) else 1


def main():
    parser = argparse.ArgumentParser(description="invar verify --train over many configurations")
    commands = parser.add_subparsers(dest="what", required=True)
    p = commands.add_parser("run")
    p.add_argument("out", help="JSON lines, appended")
    p.add_argument("--invar", default=os.path.join(ROOT, "build", "invar"))
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--scalar-steps", type=int, default=5, help="of 200, with the slow scalar instruction set")
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--combinations", type=int, default=1000)
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--seconds", type=float, default=0, help="limit of the whole call; 0: none")
    p.set_defaults(run=run)
    p = commands.add_parser("draw")
    p.add_argument("records")
    p.add_argument("--out", required=True, help="SVG")
    p.set_defaults(run=draw)
    options = parser.parse_args()
    if options.what == "run":
        options.invar = os.path.abspath(options.invar)
        unknown = [c for c in options.cases.split(",") if c not in CASES]
        if unknown:
            parser.error(f"--cases: wanted {', '.join(CASES)}, found {unknown[0]}")
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
