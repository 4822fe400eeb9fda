#!/usr/bin/env python3
"""Reads event files with TensorBoard's own reader and compares them with the log next to them (pip install tensorboard).

    mkdir DIR; INVAR_TEST_RECORD=DIR build/tests/test_train metrics; events.py DIR
"""
import json
import math
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
import glob

folder = sys.argv[1]
for path in glob.glob(folder + "/events.out.tfevents.*"):
    assert len(list(RawEventFileLoader(path).Load())) > 1, path  # checks every CRC
events = EventAccumulator(folder).Reload()
lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
names = {name for line in lines for name, v in line.items() if name != "step" and not isinstance(v, str)}
assert set(events.Tags()["scalars"]) == names, events.Tags()
for name in sorted(names):
    got = {e.step: e.value for e in events.Scalars(name)}
    want = {line["step"]: line[name] for line in lines}
    assert got.keys() == want.keys() and len(events.Scalars(name)) == len(want), name
    for step, v in want.items():
        f = math.nan if v is None else struct.unpack("f", struct.pack("f", v))[0]
        assert got[step] == f or (math.isnan(f) and math.isnan(got[step])), (name, step, got[step], v)
print("events:", len(lines), "steps of", len(names), "metrics are equal")
