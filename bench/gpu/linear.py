#!/usr/bin/env python3
"""linear.py: linear layers of Qwen3-8B, and the shape of the paper's Figure 8, on one GPU, by several implementations.

    python3 bench/gpu/linear.py --ops build/bench/gpu/libinvar_gpu_ops.so --peers DIR --json linear.jsonl
    python3 bench/gpu/linear.py --figure8 ...
    python3 bench/gpu/linear.py --in-turn ...       the four layers of a decoder layer, in sequence
    python3 bench/gpu/linear.py --sweep --in-turn   the time of each configuration there (fit_linear.py)

cuBLAS is torch.mm. DIR holds the compared projects' sources, which are not part of this repository: batch_invariant_ops.py
(Thinking Machines) and tree_based_matmul.py (TBIK's Triton kernel); a missing one is reported. All methods compute
y = x W^T with W stored [n][k]. Ours has the engine's epilogues (qkv, head: float32; out, down: residual; gate_up: SwiGLU,
rounded), the others store 16 bits.
"""

import argparse
import importlib
import math
import multiprocessing
import os
import re
import sys

import torch

import measure
import ops as gpu_ops

SHAPES = {"qkv": (4096, 6144, "store"), "out": (4096, 4096, "residual"), "gate_up": (4096, 24576, "swiglu"),
          "down": (12288, 4096, "residual"), "head": (4096, 151936, "store"), "figure8": (6144, 2048, "store")}
LAYERS = ("qkv", "out", "gate_up", "down", "head")
# A rank's part of the layers that are cut over their outputs, for 2, 4 and 8 ranks.
RANKS = {f"{name}/{ranks}": (SHAPES[name][0], SHAPES[name][1] // ranks, SHAPES[name][2])
         for name in ("qkv", "gate_up", "head") for ranks in (2, 4, 8)}
SHAPES.update(RANKS)
TOKENS = (1, 8, 16, 64, 100, 128, 200, 256, 1000, 1024, 4096, 8192)  # some do not fill a tile
# Decoders whose layers run in sequence: hidden, outputs of qkv, inputs of out, outputs of gate_up, leaves of out and
# down (fewer on a TP shard).
DECODERS = {"8b": (4096, 6144, 4096, 24576, 8), "8b/2": (4096, 3072, 2048, 12288, 4),
            "8b/4": (4096, 1536, 1024, 6144, 2), "8b/8": (4096, 768, 512, 3072, 1),
            "32b": (5120, 10240, 8192, 51200, 8), "32b/2": (5120, 5120, 4096, 25600, 4),
            "32b/4": (5120, 2560, 2048, 12800, 2), "70b/4": (8192, 2560, 2048, 14336, 2),
            "1.7b": (2048, 4096, 2048, 12288, 8), "0.6b": (1024, 4096, 2048, 6144, 8)}
FIGURE8_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HEAD_TOKENS_MAX, FLOAT32_TOKENS_MAX = 256, 4096
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
PEERS = {"bio": ("batch_invariant_ops", "matmul_persistent"), "tbik": ("tree_based_matmul", "matmul_tp_persistent")}


def peer(name):
    module, function = PEERS[name]
    return getattr(importlib.import_module(module), function)


def warm_one(job):
    """In a process of its own: compiles one kernel into Triton's cache."""
    folder, name, type_name, k, m = job
    try:
        sys.path.insert(0, folder)
        x = torch.ones(m, k, device="cuda", dtype=TYPES[type_name])
        w = torch.ones(256, k, device="cuda", dtype=TYPES[type_name])
        peer(name)(x, w.t())
        torch.cuda.synchronize()
        return None
    except Exception as problem:
        return f"{name} {type_name} k {k} m {m}: {str(problem)[-200:]}"


def warm_peers(options):
    """Triton specialises for 1, for multiples of 16 and for the rest; TBIK's kernel for every k too."""
    kinds = [(t, SHAPES[s][0]) for t in options.types for s in options.shapes]
    jobs = [(options.peers, name, t, k, m) for name in ("tbik", "bio") for t, k in dict.fromkeys(kinds)
            for m in (1, 8, 16) if name == "tbik" or k == kinds[0][1]]
    with multiprocessing.get_context("spawn").Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        for problem in filter(None, pool.imap_unordered(warm_one, jobs)):
            measure.missing("peer", problem)


def copy_bandwidth():
    """GB/s of a device-to-device copy, bytes read and written. Not captured: copies in graphs are slower."""
    a = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    ms = min(measure.once(lambda: [b.copy_(a) for _ in range(5)]) for _ in range(5))
    return 5 * 2 * a.numel() / ms / 1e6


def inputs(type_, k, n, m):
    """Sets of x and w that exceed the cache. More rows follow x, as in a model's buffers."""
    count = measure.sets_for((n + m) * k * type_.itemsize)
    padded = -(-m // 128) * 128
    return [(torch.randn(padded, k, device="cuda", dtype=type_)[:m],
             torch.randn(n, k, device="cuda", dtype=type_) * 0.02) for _ in range(count)]


def check_result(x, w, out, epilogue):
    """That a first call, on an `out` of zeros, did the work at all; bits are the tests' business."""
    rows = min(64, x.shape[0])
    want = x[:rows].double() @ w.double().t() if w.numel() < 1 << 27 else x[:rows].float() @ w.float().t()
    if epilogue == "swiglu":
        gate, up = want.view(rows, -1, 2, 8).unbind(2)
        want = (torch.nn.functional.silu(gate) * up).reshape(rows, -1)
    error = ((out[:rows] - want).abs().max() / want.abs().max()).item()
    if not error < 0.02:
        raise RuntimeError(f"wrong: relative difference {error:.3g}")


def options_of(x, epilogue, leaves):
    """Of ops.linear; leaves None: the law's number."""
    return {"epilogue": epilogue, "arithmetic": "fma32" if x.dtype == torch.float32 else "tc16", "leaves": leaves}


def our_calls(ops, sets, epilogue, leaves):
    calls = []
    for x, w in sets:
        m, n = x.shape[0], w.shape[0]
        if epilogue == "swiglu":
            out = torch.zeros(m, n // 2, device="cuda", dtype=x.dtype)
        else:
            out = torch.zeros(m, n, device="cuda", dtype=torch.float32)
        calls.append(ops.linear(x, w, out, **options_of(x, epilogue, leaves)))
        if len(calls) == 1:
            calls[0]()
            check_result(x, w, out, epilogue)
    return calls


def our_name(leaves):
    return f"invar L={leaves}" if leaves else "invar"


def methods_for(options, ops, peers, sets, epilogue):
    outs = [torch.empty(x.shape[0], w.shape[0], device="cuda", dtype=x.dtype) for x, w in sets[:2]]
    methods = {"cublas": [lambda x=x, w=w, o=outs[i % 2]: torch.mm(x, w.t(), out=o) for i, (x, w) in enumerate(sets)]}
    for name, function in peers.items():
        methods[name] = [lambda x=x, w=w, f=function: f(x, w.t()) for x, w in sets]
    for leaves in options.leaves if ops else ():
        try:
            methods[our_name(leaves)] = our_calls(ops, sets, epilogue, leaves)
        except RuntimeError as problem:
            measure.missing(our_name(leaves), problem)
    return methods


def config_text(ops, sets, epilogue, leaves):
    x, w = sets[0]
    return ops.describe(ops.linear_choose(ops.linear_args(x, w, x, **options_of(x, epilogue, leaves))))


def measure_shape(options, records, ops, peers, bandwidth, shape, type_name):
    k, n, epilogue = SHAPES[shape]
    rows = []
    for m in options.tokens or (FIGURE8_TOKENS if shape == "figure8" else TOKENS):
        if (shape == "head" and m > HEAD_TOKENS_MAX) or (type_name == "float32" and m > FLOAT32_TOKENS_MAX):
            continue
        sets = inputs(TYPES[type_name], k, n, m)
        taken = measure.compare(methods_for(options, ops, peers, sets, epilogue), turns=options.turns)
        configs = {our_name(leaves): config_text(ops, sets, epilogue, leaves) for leaves in options.leaves if ops}
        size = (n * k + m * (n + k)) * TYPES[type_name].itemsize
        for method, us in taken.items():
            if us is not None:
                records.add({"bench": "linear", "shape": shape, "k": k, "n": n, "m": m, "type": type_name,
                             "method": method, "us": round(us, 3), "tflops": round(2e-6 * m * n * k / us, 2),
                             "config": configs.get(method)})
        row = [shape, type_name, str(m), measure.microseconds(size / bandwidth / 1e3)]
        row += [measure.microseconds(taken.get(method)) for method in ("cublas", "bio", "tbik")]
        for name in map(our_name, options.leaves):
            ours, cublas = taken.get(name), taken.get("cublas")
            row += [measure.microseconds(ours), f"{cublas / ours:.2f}" if ours and cublas else "-",
                    configs[name] if ours else ""]
        rows.append(row)
        print("# " + " ".join(row), flush=True)
        del sets
        torch.cuda.empty_cache()
    return rows


def one_after_another(layers):
    """The calls of several layers -> calls that make one of each."""
    def together(calls):
        return lambda: [call() for call in calls]
    return [together(calls) for calls in zip(*layers)]


def in_turn(options, records, ops):
    """The four layers of a decoder layer in sequence, as in a model, and the sum of each alone."""
    names, rows = LAYERS[:4], []
    for m in options.tokens or TOKENS:
        made = {}
        for name in names:
            k, n, epilogue = SHAPES[name]
            sets = inputs(TYPES["bfloat16"], k, n, m)[:2]
            while len(sets) < 6 and m <= 1024:  # no layer finds its weights in the cache
                sets.append((sets[0][0], torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02))
            made[name] = methods_for(argparse.Namespace(leaves=[None]), ops, {}, sets, epilogue)
        methods = {}
        for method in ("cublas", "invar"):
            methods[method] = one_after_another([made[name][method] for name in names])
            methods.update({f"{method} {name}": made[name][method] for name in names})
        taken = measure.compare(methods, turns=options.turns)
        row = [str(m)]
        for method in ("cublas", "invar"):
            alone = sum(taken[f"{method} {name}"] for name in names)
            records.add({"bench": "in_turn", "m": m, "method": method, "us": round(taken[method], 2),
                         "alone_us": round(alone, 2)})
            row += [measure.microseconds(taken[method]), measure.microseconds(alone)]
        rows.append(row + [f"{taken['cublas'] / taken['invar']:.2f}"])
        print("# " + " ".join(rows[-1]), flush=True)
        del made, methods
        torch.cuda.empty_cache()
    print("\nmicroseconds of qkv, out, gate_up and down, one after another\n")
    measure.table(["tokens", "cuBLAS", "sum of each alone", "invar", "sum of each alone", "cuBLAS / invar"], rows)


class Neighbour:
    """A small layer of float16 that runs before every call: between two uses of a kernel a model runs others, and what
    they leave of its code in the caches is part of its time. It leaves most multiprocessors to the call that follows,
    as no layer of a model does, which tells of calls that wait for memory. `alone`: there is none."""

    def __init__(self, ops, alone):
        self.call, self.us = None, 0.0
        if alone:
            return
        x, w = (torch.randn(n, 1024, device="cuda", dtype=torch.float16) for n in (64, 2048))
        self.call = ops.linear(x, w, torch.zeros(64, 2048, device="cuda"))
        self.us = measure.compare({"alone": [self.call]})["alone"]

    def time(self, calls, turns):
        """Microseconds of a call that follows; None if it cannot run."""
        def after(call):
            return lambda: (self.call(), call())
        calls = [after(c) for c in calls] if self.call else calls
        us = measure.compare({"after": calls}, turns=turns, graph_ms=0.5)["after"]
        return us and us - self.us


def sweep_problem(ops, sets, epilogue, leaves, options, neighbour):
    """[(us, text)] of every legal configuration, fastest first, None for those far behind; and those whose bits are
    not the first one's."""
    x, w = sets[0]
    shape = (x.shape[0], w.shape[0] // 2 if epilogue == "swiglu" else w.shape[0])
    kind = x.dtype if epilogue == "swiglu" else torch.float32
    how = options_of(x, epilogue, leaves)
    outs = [torch.zeros(shape, device="cuda", dtype=kind) for _ in sets]
    want, best, taken, wrong = None, math.inf, [], []
    args = ops.linear_args(x, w, outs[0], **how)
    for config in ops.linear_configs(args):
        text = ops.describe(config)
        if not any(re.search(wanted, text) for wanted in options.only):
            continue
        calls = [ops.linear(*s, o, config=config, **how) for s, o in zip(sets, outs)]
        try:
            outs[0].zero_()
            ms = measure.once(calls[0])
            got = outs[0].view(torch.int16 if kind.itemsize == 2 else torch.int32)
            if want is None:
                want = got.clone()
            elif not torch.equal(want, got):
                wrong.append(text)
            ms = min(ms, measure.once(calls[-1]))
            us = neighbour.time(calls, options.turns) if ms < 4 * best else None
        except RuntimeError as problem:
            measure.missing(text, problem)
            continue
        best = min(best, us / 1e3 if us else best)
        taken.append((us, text))
    return sorted(taken, key=lambda t: t[0] or math.inf), wrong


def sweep(options, records, ops):
    """Every legal configuration of every problem: are the bits equal, and which one is fastest?"""
    rows, neighbour = [], Neighbour(ops, options.alone)
    for type_name in options.types:
        for shape in options.shapes:
            k, n, epilogue = SHAPES[shape]
            for m in options.tokens or TOKENS:
                if (shape == "head" and m > HEAD_TOKENS_MAX) or (type_name == "float32" and m > FLOAT32_TOKENS_MAX):
                    continue
                sets = inputs(TYPES[type_name], k, n, m)
                cublas = measure.compare({"cublas": [lambda x=x, w=w: torch.mm(x, w.t()) for x, w in sets]},
                                         turns=options.turns)["cublas"]
                for leaves in options.leaves:
                    taken, wrong = sweep_problem(ops, sets, epilogue, leaves, options, neighbour)
                    chosen = config_text(ops, sets, epilogue, leaves)
                    records.add({"bench": "sweep", "shape": shape, "k": k, "n": n, "m": m, "type": type_name,
                                 "leaves": leaves or gpu_ops.leaf_count(k, epilogue == "residual"),
                                 "cublas_us": cublas, "chosen": chosen, "wrong": wrong, "configs": taken})
                    rows.append([shape, type_name, str(m), str(leaves or "law"), measure.microseconds(cublas),
                                 measure.microseconds(dict((t, us) for us, t in taken).get(chosen)), chosen,
                                 f"{len(taken)}, {len(wrong)} wrong"] +
                                [f"{measure.microseconds(us)} {text}" for us, text in taken[:options.best]])
                    print("# " + " | ".join(rows[-1]) + (" WRONG: " + "; ".join(wrong[:3]) if wrong else ""), flush=True)
                del sets
                torch.cuda.empty_cache()
    measure.table(["layer", "type", "tokens", "leaves", "cuBLAS", "chosen", "which", "configurations"] +
                  ["best"] * options.best, rows)


class Decoder:
    """One decoder's layer at one number of rows: norm, qkv, two small kernels in place of rotation and attention, out,
    norm, gate_up, down."""

    def __init__(self, ops, sizes, m, sets=5):
        hidden, qkv, heads, inner2, cut = sizes
        kind, padded = torch.bfloat16, -(-m // 256) * 256

        def rows(n, dtype=kind):
            return torch.randn(padded, n, device="cuda", dtype=dtype)[:m]

        self.ops, self.x, h, act = ops, rows(hidden, torch.float32), rows(hidden), rows(inner2 // 2)
        end = "residual" if cut == 8 else "store"  # a rank's outputs are nodes
        node = self.x if cut == 8 else rows(hidden, torch.float32)
        self.layers = {"qkv": (h, rows(qkv, torch.float32), "store", None), "out": (rows(heads), node, end, cut),
                       "gate_up": (h, act, "swiglu", None), "down": (act, node, end, cut)}
        self.norm = ops.rmsnorm(self.x, torch.ones(hidden, device="cuda"), h)
        self.between = ops.rmsnorm(rows(heads, torch.float32), torch.ones(heads, device="cuda"), self.layers["out"][0])
        self.weights = {name: [torch.randn(out.shape[1] * (2 if name == "gate_up" else 1), x.shape[1], device="cuda",
                                           dtype=kind) * 0.02 for _ in range(sets)]
                        for name, (x, out, _, _) in self.layers.items()}

    def call(self, name, at, config=None):
        x, out, epilogue, leaves = self.layers[name]
        return self.ops.linear(x, self.weights[name][at], out, config=config, **options_of(x, epilogue, leaves))

    def args(self, name):
        x, out, epilogue, leaves = self.layers[name]
        return self.ops.linear_args(x, self.weights[name][0], out, **options_of(x, epilogue, leaves))

    def turns(self, name=None, config=None, without=None):
        """Calls of the whole, with this configuration of one layer, or without one."""
        def turn(at):
            calls = {n: self.call(n, at, config if n == name else None) for n in self.layers if n != without}
            calls.update({1: self.norm, 2: self.between})
            order = [calls[n] for n in (1, "qkv", 2, 2, "out", 1, "gate_up", "down") if n in calls]
            return lambda: [call() for call in order]
        return [turn(at) for at in range(len(self.weights["qkv"]))]

    def near(self, name, times=1.5, most=28):
        """Candidates for the fastest configuration, by their time alone."""
        taken = []
        for config in self.ops.linear_configs(self.args(name)):
            call = self.call(name, 1, config)
            try:
                call()
                taken.append((min(measure.once(call) for _ in range(3)), config))
            except RuntimeError as problem:
                measure.missing(self.ops.describe(config), problem)
        taken.sort(key=lambda t: t[0])
        return [config for ms, config in taken if ms < times * taken[0][0]][:most]


def sweep_in_turn(options, records, ops):
    """The time that each configuration of each layer adds to the others, in the sequence of a model."""
    for which in options.decoders or DECODERS:
        for m in options.tokens or TOKENS:
            d = Decoder(ops, DECODERS[which], m)
            for name, (_, _, _, leaves) in d.layers.items():
                if name not in options.shapes:
                    continue
                d.x.normal_()  # residuals grow
                methods = {"": d.turns(without=name)}
                methods.update({ops.describe(c): d.turns(name, c) for c in d.near(name)})
                chosen = ops.describe(ops.linear_choose(d.args(name)))
                if chosen not in methods:
                    methods[chosen] = d.turns()
                taken = measure.compare(methods, turns=options.turns, graph_ms=1.2)
                rest = taken.pop("")
                configs = sorted((us - rest, text) for text, us in taken.items() if us)
                n, k = d.weights[name][0].shape
                records.add({"bench": "sweep", "shape": f"{which} {name}", "k": k, "n": n, "m": m, "type": "bfloat16",
                             "leaves": leaves or d.args(name).w.leaves, "rest_us": rest, "chosen": chosen, "wrong": [],
                             "configs": configs})
                us = dict((t, u) for u, t in configs)[chosen]
                print(f"# {which} {name} {m} | others {rest:.1f} | {us:.1f} {chosen} | "
                      f"{configs[0][0]:.1f} {configs[0][1]}", flush=True)
            del d
            torch.cuda.empty_cache()


def load(options):
    """Our library and the available functions of the compared projects."""
    ops, peers = None, {}
    if options.ops:
        ops = gpu_ops.Ops(options.ops)
    else:
        measure.missing("invar", "no --ops")
    if options.peers:
        sys.path.insert(0, options.peers)
    for name in PEERS:
        try:
            peers[name] = peer(name)
        except ImportError as problem:
            measure.missing(name, f"{problem} (--peers DIR)")
    return ops, peers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", help="libinvar_gpu_ops.so")
    parser.add_argument("--peers", help="folder of the peers' sources")
    parser.add_argument("--json", help="records, one a line")
    parser.add_argument("--shapes", type=lambda s: s.split(","), default=None, help=", ".join(SHAPES))
    parser.add_argument("--figure8", action="store_true", help="K = 6144, N = 2048 in all types")
    parser.add_argument("--types", type=lambda s: s.split(","), default=None)
    parser.add_argument("--tokens", type=lambda s: [int(m) for m in s.split(",")], default=None)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="only compile the peers' kernels, many at a time")
    parser.add_argument("--leaves", type=lambda s: [int(n) or None for n in s.split(",")], default=[None],
                        help="of ours, e.g. 1,2,8: each is measured; 0: as many as the law has")
    parser.add_argument("--shape", action="append", default=[], metavar="K,N,EPILOGUE", help="one more shape")
    parser.add_argument("--ranks", action="store_true", help="the shapes of ranks: " + ", ".join(RANKS))
    parser.add_argument("--in-turn", action="store_true", help="the four layers of a decoder layer, in sequence")
    parser.add_argument("--decoders", type=lambda s: s.split(","),
                        help="with --sweep --in-turn: " + ", ".join(DECODERS))
    parser.add_argument("--sweep", action="store_true", help="every legal configuration of ours: bits, times, the best")
    parser.add_argument("--alone", action="store_true", help="with --sweep: launches that follow one another, and not a "
                                                             "small layer each")
    parser.add_argument("--only", action="append", help="with --sweep: configurations whose text this pattern finds")
    parser.add_argument("--best", type=int, default=2, help="with --sweep: how many are printed")
    options = parser.parse_args()
    for text in options.shape:
        k, n, epilogue = text.split(",")
        SHAPES[text.replace(",", "x")] = (int(k), int(n), epilogue)
        options.shapes = (options.shapes or []) + [text.replace(",", "x")]
    if options.ranks:
        options.shapes = (options.shapes or []) + list(RANKS)
    options.only = options.only or [""]
    options.shapes = options.shapes or (["figure8"] if options.figure8 else list(LAYERS))
    options.types = options.types or (list(TYPES) if options.figure8 else ["bfloat16"])
    if options.compile:
        warm_peers(options)
        return
    records = measure.Records(options.json)
    if options.sweep and options.in_turn:
        measure.warm_up()
        sweep_in_turn(options, records, gpu_ops.Ops(options.ops))
        return
    if options.sweep:
        sweep(options, records, gpu_ops.Ops(options.ops))
        return
    ops, peers = load(options)
    measure.warm_up()
    if options.in_turn:
        in_turn(options, records, ops)
        return
    bandwidth = copy_bandwidth()
    records.add({"bench": "copy", "gb_per_s": round(bandwidth, 1)})
    rows = []
    for type_name in options.types:
        for shape in options.shapes:
            rows += measure_shape(options, records, ops, peers, bandwidth, shape, type_name)
    print(f"\nmicroseconds; floor: bytes over the copy bandwidth measured here, {bandwidth:.0f} GB/s\n")
    measure.table(["layer", "type", "tokens", "floor", "cuBLAS", "BIO", "TBIK"] +
                  [word for name in map(our_name, options.leaves) for word in (name, "cuBLAS / it", "how")], rows)


if __name__ == "__main__":
    main()
