#!/usr/bin/env python3
"""eval.py: `invar eval` on GPUs: the digest of every answer compared with the CPU's tc16.

    python3 bench/gpu/eval.py build/invar                        one GPU, and all available numbers of GPUs
    python3 bench/gpu/eval.py build/invar --devices cpu          try the script

On each device the problems are answered, sampled, with several numbers of concurrent requests and chunk sizes. All
answers to a problem must have one digest. The control: with --numerics vanilla, on one device, they must not. Exit code
1 if either fails. Plain Python.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "models", "tiny-math")
AXES = "bs=1,24 chunk=17,512"


def answers(options, device, axes):
    """{problem: the digests of its answers}"""
    found = collections.defaultdict(set)
    with tempfile.TemporaryDirectory() as folder:
        command = [options.program, "eval", MODEL, "--dataset", os.path.join(MODEL, "problems.jsonl"), "--limit",
                   str(options.problems), "--device", device, "--configs", axes, "--out", folder]
        command += ["--arithmetic", "tc16"] if device == "cpu" else []
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
        with open(os.path.join(folder, "results.jsonl"), encoding="utf-8") as lines:
            for line in list(lines)[1:]:
                answer = json.loads(line)
                found[answer["id"]].add(answer["receipt"]["outcome"]["digest"])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--devices", default="cuda")
    parser.add_argument("--tp", default="1", help="numbers of GPUs, as 1,2")
    parser.add_argument("--problems", type=int, default=24)
    options = parser.parse_args()
    want = answers(options, "cpu", "bs=8")
    failed = 0
    for device in options.devices.split(","):
        tp = options.tp if device == "cuda" else "1"
        got = answers(options, device, f"tp={tp} {AXES}")
        same = sum(got[problem] == want[problem] for problem in want)
        print(f"{device}, tp={tp} {AXES}: {same} of {len(want)} problems have the one digest of the CPU's tc16")
        failed += same != len(want) or len(got) != len(want)
        vanilla = answers(options, device, f"numerics=vanilla {AXES}")
        many = sum(len(digests) > 1 for digests in vanilla.values())
        print(f"{device}, vanilla: {many} of {len(vanilla)} problems have several (wanted: some)")
        failed += many == 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
