#!/usr/bin/env python3
"""experts.py: the layers of a mixture, compared with torch._grouped_mm.

    python3 bench/gpu/experts.py --ops build/bench/gpu/libinvar_gpu_ops.so [--all] [--leaves 1,8] [--packed] [--peer]
                                 [--tokens 1,8,64,256]

128 experts, 8 per token, hidden 2048, inner 768. Calls follow one another in a CUDA graph, each with other routing and
inputs, as in a model. --all: every configuration of the wgmma family, which must all have the same bits. --packed: also
rows that were gathered beforehand, and the time of gathering. The floor is the bytes of the weights in use over 4.3 TB/s.
"""

import argparse
import json
import re

import torch

import measure
import ops as gpu_ops

FLOOR = 4.3e6  # bytes per microsecond
EXPERTS, CHOSEN = 128, 8
EXPERT_TOKENS = (1, 8, 64, 256, 1024, 8192)
PROBLEMS = 8
PEER = "grouped_mm"


def output(m, n, epilogue, type_):
    if epilogue == "swiglu":
        return torch.zeros(m, n // 2, device="cuda", dtype=type_)
    return torch.zeros(m, n, device="cuda", dtype=torch.float32)


def routing(m):
    """Offsets and slots of a random choice, as ops.h has them."""
    ids = torch.rand(m, EXPERTS).argsort(1)[:, :CHOSEN].sort(1).values
    slots = torch.arange(m * CHOSEN).view(m, CHOSEN)
    order = torch.argsort(ids.flatten(), stable=True)
    counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    return offsets.int().cuda(), slots.flatten()[order].int().cuda(), int((counts > 0).sum())


def expert_problems(ops, m, down, leaves, packed):
    """Problems that differ in routing and inputs, and the average number of experts with rows."""
    k, n = (768, 2048) if down else (2048, 1536)
    type_, entries, problems, hit = torch.bfloat16, m * CHOSEN, [], 0
    w = torch.randn(EXPERTS, n, k, device="cuda", dtype=type_) * 0.02
    weights = torch.rand(entries, device="cuda")
    for _ in range(PROBLEMS if m <= 1024 else 2):
        offsets, slots, used = routing(m)
        hit += used
        groups = gpu_ops.Groups(experts=EXPERTS, first=0, count=EXPERTS, offsets=offsets.data_ptr(),
                                slots=slots.data_ptr(), weights=weights.data_ptr(), experts_per_token=CHOSEN,
                                packed=packed)
        x = torch.randn(entries if down else m, k, device="cuda", dtype=type_)
        if packed:
            rows = torch.empty(entries, k, device="cuda", dtype=type_)
            gpu_ops.check(ops.op("pack_rows")(groups, m, x.data_ptr(), k * 2, rows.data_ptr(), gpu_ops.stream()), "pack")
            x = rows
        out = output(entries, n, "store" if down else "swiglu", type_)
        args = ops.linear_args(x, w[0], out, epilogue="store" if down else "swiglu", leaves=leaves)
        args.rows, args.weighted, args.w.expert_bytes = m, down, n * k * 2
        args.groups = gpu_ops.ctypes.pointer(groups)
        problems.append((args, out, x, w, weights, offsets, slots, groups))
    return problems, hit / len(problems)


def expert_calls(ops, problems, config):
    return [lambda a=p[0]: gpu_ops.check(ops.op("linear_with")(a, config, gpu_ops.stream()), "linear")
            for p in problems]


def peer_calls(problems):
    """torch._grouped_mm of the same rows, gathered beforehand: no activation, no scattering."""
    calls = []
    for _, _, x, w, _, offsets, slots, _ in problems:
        entries = slots.numel()
        rows = x if x.shape[0] == entries else x[slots.long() // CHOSEN]
        calls.append(lambda rows=rows, w=w, ends=offsets[1:]: torch._grouped_mm(rows, w.transpose(-2, -1), offs=ends))
    return calls


def bits_of(out):
    return out.view(torch.int16 if out.dtype == torch.bfloat16 else torch.int32)


def experts(ops, options, down, m, leaves, packed):
    """Times of the chosen configuration and, with --all, of those nearly as fast; and those whose bits differ."""
    problems, hit = expert_problems(ops, m, down, leaves, packed)
    args, out = problems[0][:2]
    chosen = ops.linear_choose(args)
    configs = [c for c in ops.linear_configs(args) if options.all and gpu_ops.FAMILIES[c.family] != "generic" and
               re.search(options.only, ops.describe(c))]
    methods, wrong, best = {"chosen": expert_calls(ops, problems, chosen)}, [], None
    if options.peer and hasattr(torch, "_grouped_mm"):
        methods[PEER] = peer_calls(problems)
    measure.once(methods["chosen"][0])
    want = bits_of(out).clone()
    for c in configs:
        calls, text = expert_calls(ops, problems, c), ops.describe(c)
        out.zero_()
        measure.once(calls[0])
        if not torch.equal(bits_of(out), want):
            wrong.append(text)
        ms = min(measure.once(call) for call in calls[:2])
        best = min(best or ms, ms)
        if ms < 2 * best + 0.02:
            methods[text] = calls
    taken = measure.compare(methods, turns=options.turns, graph_ms=options.graph_ms)
    if wrong:
        print(f"WRONG: {len(wrong)} of {len(configs)}: " + "; ".join(wrong[:3]), flush=True)
    return taken, hit * args.w.n * args.w.k_padded * 2 / FLOOR, ops.describe(chosen)


def packing(ops, options, m):
    """Times of gathering rows, and the bytes read and written over the floor's."""
    problems, _ = expert_problems(ops, m, False, 1, True)
    methods = {"chosen": [lambda p=p, x=torch.randn(m, 2048, device="cuda", dtype=torch.bfloat16): gpu_ops.check(
        ops.op("pack_rows")(p[-1], m, x.data_ptr(), 4096, p[2].data_ptr(), gpu_ops.stream()), "pack") for p in problems]}
    taken = measure.compare(methods, turns=options.turns, graph_ms=options.graph_ms)
    return taken, m * (CHOSEN + 1) * 4096 / FLOOR, "rows put together"


def all_experts(ops, options, records):
    for m in options.tokens or EXPERT_TOKENS:
        cases = [(down, leaves, packed) for down in (False, True) for leaves in options.leaves
                 for packed in ((False, True) if options.packed and not down else (False,))]
        for down, leaves, packed in cases:
            taken, floor, chosen = experts(ops, options, down, m, leaves, packed)
            name = f"{'down' if down else 'up'} L{leaves or ''}{' packed' if packed else ''}"
            show(options, name, m, taken, floor, chosen)
            records.append({"shape": "expert_down" if down else "expert_up", "m": m, "leaves": leaves,
                            "packed": packed, "floor": floor, "us": taken})
            torch.cuda.empty_cache()
        if options.packed:
            taken, floor, chosen = packing(ops, options, m)
            show(options, "pack", m, taken, floor, chosen)
            records.append({"shape": "pack", "m": m, "floor": floor, "us": taken})


def show(options, name, m, taken, floor, chosen):
    ours = sorted((us, c) for c, us in taken.items() if c not in (PEER, "chosen") and us)
    theirs, us = taken.get(PEER), taken["chosen"]
    ratio = f"{theirs / us:.2f}" if theirs and us else "-"
    print(f"{name:12} m {m:4}  floor {floor:7.2f}  {PEER} {measure.microseconds(theirs):>7}  chosen "
          f"{measure.microseconds(us):>7}  {ratio} of {PEER}, {us / floor if us else 0:.2f} of floor: {chosen}",
          flush=True)
    for best, c in ours[:options.best]:
        print(f"    {best:8.2f} {c}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", required=True)
    parser.add_argument("--tokens", type=lambda s: [int(m) for m in s.split(",")])
    parser.add_argument("--all", action="store_true", help="every configuration, not the chosen one alone")
    parser.add_argument("--leaves", type=lambda s: [int(n) or None for n in s.split(",")], default=[None],
                        help="of the experts' layers, e.g. 1,8; 0: as many as the K has")
    parser.add_argument("--only", default="", help="with --all: configurations whose text this finds")
    parser.add_argument("--packed", action="store_true", help="also gathered rows")
    parser.add_argument("--peer", action="store_true", help="also torch._grouped_mm")
    parser.add_argument("--best", type=int, default=4, help="configurations shown")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--graph-ms", type=float, default=1.5)
    parser.add_argument("--json")
    options = parser.parse_args()
    ops = gpu_ops.Ops(options.ops)
    measure.warm_up()
    records = []
    all_experts(ops, options, records)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(records, file)


if __name__ == "__main__":
    main()
