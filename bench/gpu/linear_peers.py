#!/usr/bin/env python3
"""linear_peers.py: configurations of linear layers beside cuBLAS (torch.mm), of one family or all.

    python3 bench/gpu/linear_peers.py --ops libinvar_gpu_ops.so --rows 16,256 --shapes qkv,down [--family wgmma]
        [--only REGEX] [--best 3]

Calls follow one another in a CUDA graph, each with the next set of inputs, so weights come from memory. Shown are what
is chosen and the best of the others. The floor is the weights' bytes over 4.3 TB/s; TFLOP/s count 2 m n k.
"""

import argparse
import re

import torch

import measure
import ops as gpu_ops

SHAPES = {"qkv": (4096, 6144, "store"), "out": (4096, 4096, "residual"), "gate_up": (4096, 24576, "swiglu"),
          "down": (12288, 4096, "residual"), "head": (4096, 151936, "store"), "store": (4096, 4096, "store"),
          "tp2_down": (6144, 4096, "store"), "tp4_down": (3072, 4096, "store"), "tp8_down": (1536, 4096, "store"),
          "one_leaf": (12288, 4096, "store")}
LEAVES = {"one_leaf": 1, "tp2_down": 4, "tp4_down": 2, "tp8_down": 1}


def problem(m, shape):
    k, n, epilogue = SHAPES[shape]
    type_ = torch.bfloat16
    wide = epilogue == "swiglu"
    x = torch.randn(m, k, device="cuda", dtype=type_)
    w = torch.randn(n, k, device="cuda", dtype=type_) * 0.02
    out = torch.zeros(m, n // 2 if wide else n, device="cuda", dtype=type_ if wide else torch.float32)
    return x, w, out


def run(ops, options, shape, m):
    k, n, epilogue = SHAPES[shape]
    least = 2 if m <= 256 else 1
    sets = [problem(m, shape) for _ in range(measure.sets_for(n * k * 2 + m * (k * 2 + n * 4), least=least))]
    named = {"epilogue": epilogue, "leaves": LEAVES.get(shape)}
    args = ops.linear_args(*sets[0], **named)
    theirs = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    methods = {"cublas": [lambda x=x, w=w: torch.mm(x, w.t(), out=theirs) for x, w, _ in sets],
               "chosen": [ops.linear(*s, **named) for s in sets]}
    for c in ops.linear_configs(args):
        name = ops.describe(c)
        if options.family not in ("all", gpu_ops.FAMILIES[c.family]) or not re.search(options.only, name):
            continue
        if c.tile_m >= 2 * m and c.tile_m > 16 or gpu_ops.FAMILIES[c.family] == "generic":
            continue
        methods[name] = [ops.linear(*s, config=c, **named) for s in sets]
    taken = measure.compare(methods, turns=options.turns, graph_ms=options.graph_ms)
    return taken, ops.describe(ops.linear_choose(args))


def main():
    parser = argparse.ArgumentParser(description="Linear layers beside cuBLAS.")
    parser.add_argument("--ops", required=True)
    parser.add_argument("--shapes", default="qkv,out,gate_up,down")
    parser.add_argument("--rows", default="16,64,128,256")
    parser.add_argument("--family", default="wgmma")
    parser.add_argument("--only", default="")
    parser.add_argument("--best", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--graph-ms", type=float, default=1.5)
    options = parser.parse_args()
    ops = gpu_ops.Ops(options.ops)
    torch.manual_seed(1)
    measure.warm_up()
    for m in map(int, options.rows.split(",")):
        for shape in options.shapes.split(","):
            k, n, _ = SHAPES[shape]
            taken, chosen = run(ops, options, shape, m)
            cublas, tera = taken["cublas"], 2e-6 * m * n * k
            others = sorted((v, name) for name, v in taken.items() if name not in ("cublas", "chosen") and v)
            print(f"{shape} m {m}: floor {n * k * 2 / 4.3e6:.1f} cublas {cublas:.1f} us {tera / cublas:.0f} TF", end="")
            if taken["chosen"]:
                print(f"; chosen [{chosen}] {taken['chosen']:.1f} us {tera / taken['chosen']:.0f} TF,"
                      f" {cublas / taken['chosen']:.3f} of cublas", end="")
            print()
            for v, name in others[:options.best]:
                print(f"    {v:8.1f} us {tera / v:4.0f} TF {cublas / v:.3f}  {name}", flush=True)


if __name__ == "__main__":
    main()
