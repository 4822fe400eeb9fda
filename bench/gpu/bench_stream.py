#!/usr/bin/env python3
"""bench_stream.py: linear layers of few rows: every configuration of the stream family beside cuBLAS (torch.mm).

    python3 bench/gpu/bench_stream.py --ops build/bench/gpu/libinvar_gpu_ops.so [--tokens 1,8,16] [--all]

Calls follow one another in a CUDA graph, each with the next set of weights, so that weights come from memory and a
kernel may ask for its first ones under its predecessor's end, as in a model. The floor is the weights' bytes over
4.3 TB/s. --experts measures a mixture: 128 experts of 8 for a token, hidden 2048, inner 768.
"""

import argparse
import json

import torch

import measure
import ops as gpu_ops

SHAPES = {"qkv": (4096, 6144, "store"), "out": (4096, 4096, "residual"), "gate_up": (4096, 24576, "swiglu"),
          "down": (12288, 4096, "residual"), "head": (4096, 151936, "store"),
          "tp8_qkv": (4096, 768, "store"), "tp8_gate_up": (4096, 3072, "swiglu"), "tp2_down": (6144, 4096, "store")}
LEAVES = {"tp2_down": 4}
FLOOR = 4.3e6  # bytes in a microsecond
EXPERTS, CHOSEN = 128, 8


def output(m, n, epilogue, type_):
    if epilogue == "swiglu":
        return torch.zeros(m, n // 2, device="cuda", dtype=type_)
    return torch.zeros(m, n, device="cuda", dtype=torch.float32)


def candidates(ops, args, every):
    """Of the stream family; without --all those whose tile of tokens is no larger than needed."""
    found = [c for c in ops.linear_configs(args) if gpu_ops.FAMILIES[c.family] == "stream"]
    least = min((c.tile_m for c in found if c.tile_m >= args.rows), default=64)
    found = [c for c in found if c.tile_m == least]
    return found if every else found[:0]


def dense(ops, options, shape, m):
    k, n, epilogue = SHAPES[shape]
    type_ = torch.bfloat16
    count = measure.sets_for(n * k * 2)
    sets = [(torch.randn(m, k, device="cuda", dtype=type_), torch.randn(n, k, device="cuda", dtype=type_) * 0.02,
             output(m, n, epilogue, type_)) for _ in range(count)]
    named = {"epilogue": epilogue, "leaves": LEAVES.get(shape)}
    args = ops.linear_args(*sets[0], **named)
    theirs = torch.empty(m, n, device="cuda", dtype=type_)
    methods = {"cublas": [lambda x=x, w=w: torch.mm(x, w.t(), out=theirs) for x, w, _ in sets],
               "chosen": [ops.linear(*s, **named) for s in sets]}
    for c in candidates(ops, args, options.all):
        methods[ops.describe(c)] = [ops.linear(*s, config=c, **named) for s in sets]
    taken = measure.compare(methods, turns=options.turns, graph_ms=options.graph_ms)
    return taken, n * k * 2 / FLOOR, ops.describe(ops.linear_choose(args))


def routing(m):
    """Offsets and slots of a random choice, as ops.h has them."""
    ids = torch.stack([torch.randperm(EXPERTS)[:CHOSEN].sort().values for _ in range(m)])
    slots = torch.arange(m * CHOSEN).view(m, CHOSEN)
    order = torch.argsort(ids.flatten(), stable=True)
    counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    return offsets.int().cuda(), slots.flatten()[order].int().cuda(), int((counts > 0).sum())


def experts(ops, options, down, m):
    k, n = (768, 2048) if down else (2048, 1536)
    type_ = torch.bfloat16
    w = torch.randn(EXPERTS, n, k, device="cuda", dtype=type_) * 0.02
    weights = torch.rand(m * CHOSEN, device="cuda")
    keep, calls_of, hit = [], {}, 0
    for _ in range(8):
        offsets, slots, used = routing(m)
        hit += used / 8
        groups = gpu_ops.Groups(experts=EXPERTS, first=0, count=EXPERTS, offsets=offsets.data_ptr(),
                                slots=slots.data_ptr(), weights=weights.data_ptr(), experts_per_token=CHOSEN)
        x = torch.randn(m * CHOSEN if down else m, k, device="cuda", dtype=type_)
        out = output(m * CHOSEN, n, "store" if down else "swiglu", type_)
        args = ops.linear_args(x, w[0], out, epilogue="store" if down else "swiglu")
        args.rows, args.weighted, args.w.expert_bytes = m, down, n * k * 2
        args.groups = gpu_ops.ctypes.pointer(groups)
        keep.append((x, out, offsets, slots, groups, args))
    scratch = ops.scratch(ops.op("linear_scratch")(m * CHOSEN, n))
    configs = [c for c in ops.linear_configs(keep[0][-1]) if gpu_ops.FAMILIES[c.family] == "stream" and
               c.tile_m <= max(8, m)]
    chosen = ops.linear_choose(keep[0][-1])
    for name, c in [("chosen", chosen)] + [(ops.describe(c), c) for c in (configs if options.all else [])]:
        calls_of[name] = [lambda a=row[-1], c=c: gpu_ops.check(
            ops.op("linear_with")(a, c, scratch.data_ptr(), scratch.numel(), gpu_ops.stream()), "linear")
            for row in keep]
    taken = measure.compare(calls_of, turns=options.turns, graph_ms=options.graph_ms)
    return taken, hit * n * k * 2 / FLOOR, ops.describe(chosen)


def show(options, name, m, taken, floor, chosen):
    ours = sorted((us, c) for c, us in taken.items() if c not in ("cublas", "chosen") and us)
    cublas, us = taken.get("cublas"), taken["chosen"]
    ratio = f"{cublas / us:.2f}" if cublas and us else "-"
    print(f"{name:12} m {m:3}  floor {floor:7.2f}  cublas {measure.microseconds(cublas):>7}  chosen "
          f"{measure.microseconds(us):>7}  {ratio} of cublas, {us / floor if us else 0:.2f} of floor: {chosen}",
          flush=True)
    for best, c in ours[:options.best]:
        print(f"    {best:8.2f} {c}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", required=True)
    parser.add_argument("--shapes", type=lambda s: s.split(","), default=list(SHAPES))
    parser.add_argument("--tokens", type=lambda s: [int(m) for m in s.split(",")], default=[1, 8, 16])
    parser.add_argument("--all", action="store_true", help="every configuration, not the chosen one alone")
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--best", type=int, default=4, help="configurations shown")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--graph-ms", type=float, default=1.5)
    parser.add_argument("--json")
    options = parser.parse_args()
    ops = gpu_ops.Ops(options.ops)
    measure.warm_up()
    records = []
    for shape in options.shapes:
        for m in options.tokens:
            taken, floor, chosen = dense(ops, options, shape, m)
            show(options, shape, m, taken, floor, chosen)
            records.append({"shape": shape, "m": m, "floor": floor, "us": taken})
            torch.cuda.empty_cache()
    for m in options.tokens if options.experts else ():
        for down in (False, True):
            taken, floor, chosen = experts(ops, options, down, m)
            show(options, "expert down" if down else "expert up", m, taken, floor, chosen)
            records.append({"shape": "expert_down" if down else "expert_up", "m": m, "floor": floor, "us": taken})
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(records, file)


if __name__ == "__main__":
    main()
