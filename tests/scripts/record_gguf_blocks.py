#!/usr/bin/env python3
"""record_gguf_blocks.py OUT.json: blocks of each of GGUF's formats and their values by `gguf` from PyPI (dequantize).

Per format four blocks of random bytes and, for each of 0, -0, the smallest subnormal, the largest number and the infinity of float16,
one random block with that in all its float16 fields. Hexadecimal: the bytes of the blocks; the bits of the values as big-endian float32.
Tested with gguf 0.19.0, numpy 2.4.6. tests/numerics/test_dequantize.c compares.
"""
import json
import sys

import gguf
import numpy as np

HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
EXTREMES = [0x0000, 0x8000, 0x0001, 0x7bff, 0x7c00]


def main(out):
    rng = np.random.default_rng(40)
    cases = {"made_by": f"tests/scripts/record_gguf_blocks.py, gguf {__import__('importlib.metadata').metadata.version('gguf')}"}
    for name, halves in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        _, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (4 + len(EXTREMES), size), dtype=np.uint8)
        for i, block in enumerate(blocks):
            for at in halves:  # finite scales, then the extremes
                half = EXTREMES[i - 4] if i >= 4 else int(rng.integers(0, 0x3c00)) | int(rng.integers(0, 2)) << 15
                block[at], block[at + 1] = half & 255, half >> 8
            if name == "MXFP4" and i >= 4:
                block[0] = [0, 1, 2, 254, 127][i - 4]
        with np.errstate(all="ignore"):
            values = gguf.dequantize(blocks.reshape(1, -1), kind).astype(np.float32)
        cases[name] = {"blocks": blocks.tobytes().hex(), "values": values.astype(">f4").tobytes().hex()}
    with open(out, "w") as f:
        json.dump(cases, f, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
