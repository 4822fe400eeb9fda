"""Makes tests/data/gradients from whole recorded gradients: of a tensor of more than 4,096 elements every fifth is kept, in order.

    thin_gradients.py FROM TO      (FROM/MODEL: batch.jsonl, reference.json, gradients.safetensors with float32)

Five divides no row's length, so every row and column keeps elements. A relative error over a fifth of so many elements is that
over all, within a few percent. Needs Python alone.
"""

import array
import json
import pathlib
import shutil
import struct
import sys

WHOLE, STEP = 4096, 5


def thin(source, target):
    data = source.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header, out, body = json.loads(data[8 : 8 + size]), {}, bytearray()
    for name, tensor in sorted(header.items()):
        if name == "__metadata__":
            continue
        assert tensor["dtype"] == "F32", name
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        values, shape = array.array("f", data[begin:end]), tensor["shape"]
        if len(values) > WHOLE:
            values = values[::STEP]
            shape = [len(values)]
        out[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + 4 * len(values)]}
        body += values.tobytes()
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    for folder in sorted(p for p in source.iterdir() if p.is_dir()):
        (target / folder.name).mkdir(parents=True, exist_ok=True)
        for name in ["batch.jsonl", "reference.json"]:
            shutil.copyfile(folder / name, target / folder.name / name)
        thin(folder / "gradients.safetensors", target / folder.name / "gradients.safetensors")


main()
