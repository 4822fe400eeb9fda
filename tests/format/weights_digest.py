"""Prints tensors, bytes, weights digest and layout digest of model directories, computed from the definition
in src/format/checkpoint.h and not from its code: where test_checkpoint.c has its expected values from.

    python3 tests/format/weights_digest.py DIR..."""
import hashlib
import json
import os
import struct
import sys


def u64(v):
    return struct.pack("<Q", v)


def tensors_of(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + n])
    header.pop("__metadata__", None)
    for name, t in header.items():
        begin, end = t["data_offsets"]
        yield name, (t["dtype"], t["shape"], raw[8 + n + begin : 8 + n + end])


for directory in sys.argv[1:]:
    single = os.path.join(directory, "model.safetensors")
    if os.path.exists(single):
        files = [single]
    else:
        index = json.load(open(single + ".index.json"))
        files = sorted({os.path.join(directory, f) for f in index["weight_map"].values()})
    tensors = {name: t for f in files for name, t in tensors_of(f)}
    weights = hashlib.sha256(b"invar weights 1\n" + u64(len(tensors)))
    layout = hashlib.sha256(b"invar layout 1\n" + u64(len(tensors)))
    for name in sorted(tensors, key=str.encode):
        dtype, shape, data = tensors[name]
        key = name.encode()
        record = u64(len(key)) + key + u64(len(dtype)) + dtype.encode()
        record += u64(len(shape)) + b"".join(map(u64, shape))
        layout.update(record)
        weights.update(record + hashlib.sha256(data).digest())
    size = sum(len(t[2]) for t in tensors.values())
    print(directory, len(tensors), size, weights.hexdigest(), layout.hexdigest())
