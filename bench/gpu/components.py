#!/usr/bin/env python3
"""components.py: the cost of the parts of a step of Qwen3-8B: the engine's ops compared with PyTorch's.

    python3 bench/gpu/components.py --ops build/bench/gpu/libinvar_gpu_ops.so --json components.jsonl

Each op runs alone, many times in one CUDA graph on rotating inputs; a part's figure is the sum of its ops times their
number in a step. Results are compared first, so no op is timed that computes something else. PyTorch's linear layers are
cuBLAS, its attention is cuDNN (else flash); its residual has 16 bits, ours 32. With --peers DIR (see linear.py) linear
layers are also measured with BIO, and as in the paper: BIO, but TBIK where ranks would split K (out, down).
"""

import argparse
import math
import os

import torch
from torch.nn import functional
from torch.nn.attention import sdpa_kernel

import linear as linear_bench
import measure
import ops as gpu_ops
import torch_loop

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = gpu_ops.ATTENTION_BLOCK
METHODS = {"invar": "invar", "torch plain": "PyTorch", "bio": "BIO", "tbik": "TBIK"}


def random(*shape, dtype=torch.bfloat16, scale=1.0):
    return torch.empty(*shape, device="cuda", dtype=dtype).normal_(0, scale)


def same(what, ours, theirs, limit=0.03):
    ours, theirs = ours.float(), theirs.float()
    error = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-9)).item()
    if not error < limit:
        raise RuntimeError(f"{what}: wrong: relative difference {error:.3g}")


class Step:
    """`batch` sequences of `rows` rows each that end at `context`."""

    def __init__(self, name, shape, ops, peers, batch, rows, context):
        self.name, self.shape, self.ops, self.peers = name, shape, ops, peers
        self.batch, self.rows, self.context = batch, rows, context
        self.count = batch * rows  # rows of all

    def times(self, sets_bytes):
        return measure.sets_for(sets_bytes)

    # Each part: {method: [calls]}. Calls of one method over sets of inputs.

    def peers_of(self, epilogue):
        """{method: y = f(x, w)} of a layer."""
        found = {"torch plain": functional.linear}
        if "bio" in self.peers:
            found["bio"] = lambda x, w, f=self.peers["bio"]: f(x, w.t())
        if "tbik" in self.peers and (epilogue == "residual" or "bio" in found):
            f = self.peers["tbik" if epilogue == "residual" else "bio"]
            found["tbik"] = lambda x, w, f=f: f(x, w.t())
        return found

    def linear(self, k, n, epilogue, rows=None):
        ours, rows, peers = [], rows or self.count, self.peers_of(epilogue)
        theirs = {method: [] for method in peers}
        for i in range(self.times((n + rows) * k * 2)):
            x, w = random(rows, k), random(n, k, scale=0.02)
            swiglu = epilogue == "swiglu"
            out = torch.zeros(rows, n // 2 if swiglu else n, device="cuda", dtype=x.dtype if swiglu else torch.float32)
            ours.append(self.ops.linear(x, w, out, epilogue=epilogue))
            if i == 0 and not swiglu:
                ours[0]()
                same("linear", out[:64], functional.linear(x[:64].float(), w.float()))
            residual = random(rows, n) if epilogue == "residual" else None
            for method, f in peers.items():
                if swiglu:
                    def call(x=x, w=w, f=f):
                        gate, up = f(x, w).chunk(2, -1)
                        return functional.silu(gate) * up
                elif residual is not None:
                    def call(x=x, w=w, f=f, residual=residual):
                        return residual.add_(f(x, w))
                else:
                    def call(x=x, w=w, f=f):
                        return f(x, w)
                theirs[method].append(call)
        return {"invar": ours, **theirs}

    def norm(self):
        ours, theirs, s = [], [], self.shape
        for _ in range(min(8, self.times(self.count * s.hidden * 4))):
            x = random(self.count, s.hidden, dtype=torch.float32)
            weight, out, narrow = torch.ones(s.hidden, device="cuda"), random(self.count, s.hidden), x.bfloat16()
            ours.append(self.ops.rmsnorm(x, weight, out, s.eps))
            theirs.append(lambda x=narrow, w=weight.bfloat16(): functional.rms_norm(x, (s.hidden,), w, s.eps))
            if len(ours) == 1:
                ours[0]()
                same("rmsnorm", out, theirs[0]())
        return {"invar": ours, "torch plain": theirs}

    def pages(self):
        """Random pages for all sequences, and their numbers [batch][pages of one]."""
        each = -(-self.context // PAGE)
        pages = random(self.batch * each, self.shape.kv_heads, 2, PAGE, self.shape.dim)
        return pages, torch.randperm(self.batch * each, device="cuda").to(torch.int32).view(self.batch, each)

    def flat(self, pages, table, part):
        """[batch, kv_heads, context, dim] of keys (0) or values (1)."""
        s = self.shape
        picked = pages[table.long(), :, part]  # [batch, each, heads, 64, dim]
        return picked.transpose(1, 2).reshape(self.batch, s.kv_heads, -1, s.dim)[:, :, :self.context].contiguous()

    def attention(self):
        ours, theirs, s = [], [], self.shape
        cache = self.batch * self.context * s.kv_heads * s.dim * 4
        spans = [(i * self.rows, self.rows, self.context - self.rows, i * -(-self.context // PAGE))
                 for i in range(self.batch)]
        for i in range(self.times(cache)):
            pages, table = self.pages()
            q, out = random(self.count, s.heads * s.dim), random(self.count, s.heads * s.dim)
            ours.append(self.ops.attention(q, pages, table, spans, out, s.heads, s.kv_heads, s.dim))
            k, v = self.flat(pages, table, 0), self.flat(pages, table, 1)
            heads = q.view(self.batch, self.rows, s.heads, s.dim).transpose(1, 2)
            theirs.append(lambda q=heads, k=k, v=v: torch_loop.attention_of(s, q, k, v, self.rows > 1))
            if i == 0:
                ours[0]()
                same("attention", out.view(self.batch, self.rows, s.heads, s.dim).transpose(1, 2), theirs[0]())
        return {"invar": ours, "torch plain": theirs}

    def rotate(self):
        ours, theirs, s = [], [], self.shape
        cosine, sine = torch_loop.rope_tables(s, self.context, "cuda", torch.float32)
        positions = torch.arange(self.context - self.rows, self.context, device="cuda").repeat(self.batch)
        at = torch.arange(self.context - self.rows, self.context, device="cuda")
        near, tall = cosine[at].bfloat16(), sine[at].bfloat16()
        norm = torch.ones(s.dim, device="cuda")
        pages, table = self.pages()
        sequence = torch.arange(self.batch, device="cuda").repeat_interleave(self.rows)
        slots = table[sequence, positions // PAGE].long() * PAGE + positions % PAGE
        cache = [random(self.batch, s.kv_heads, self.context, s.dim) for _ in range(2)]
        for i in range(min(8, self.times(self.count * (s.heads + 2 * s.kv_heads) * s.dim * 6))):
            qkv = random(self.count, (s.heads + 2 * s.kv_heads) * s.dim, dtype=torch.float32)
            q = random(self.count, s.heads * s.dim)
            ours.append(self.ops.rotate(qkv, norm, norm, cosine, sine, positions.to(torch.int32), slots, pages, q, s.eps))

            def call(x=qkv.bfloat16(), w=norm.bfloat16()):
                wide = x.view(self.batch, self.rows, -1, s.dim).transpose(1, 2)
                a, k, v = wide.split((s.heads, s.kv_heads, s.kv_heads), 1)
                a = torch_loop.rotate(functional.rms_norm(a, (s.dim,), w, s.eps), near, tall)
                cache[0].index_copy_(2, at, torch_loop.rotate(functional.rms_norm(k, (s.dim,), w, s.eps), near, tall))
                cache[1].index_copy_(2, at, v)
                return a

            theirs.append(call)
            if i == 0:
                ours[0]()
                same("rotate", q.view(self.batch, self.rows, s.heads, s.dim).transpose(1, 2), call())
                same("keys", self.flat(pages, table, 0)[:, :, -1], cache[0][:, :, -1])
        return {"invar": ours, "torch plain": theirs}

    def sample(self):
        ours, theirs = [], []
        for i in range(self.times(self.batch * self.shape.vocab * 4)):
            logits = random(self.batch, self.shape.vocab, dtype=torch.float32)
            call, ids = self.ops.sample(logits)
            ours.append(call)
            theirs.append(lambda x=logits: torch.log_softmax(x, -1).max(-1))
            if i == 0:
                call()
                if not torch.equal(ids.long(), logits.argmax(-1)):
                    raise RuntimeError("sample: wrong")
        return {"invar": ours, "torch plain": theirs}

    def parts(self):
        """{part: [(op, how often in a step)]}."""
        s, many = self.shape, self.shape.layers
        wide = (s.heads + 2 * s.kv_heads) * s.dim
        return {"linear layers": [(lambda: self.linear(s.hidden, wide, "store"), many),
                                  (lambda: self.linear(s.heads * s.dim, s.hidden, "residual"), many),
                                  (lambda: self.linear(s.hidden, 2 * s.inner, "swiglu"), many),
                                  (lambda: self.linear(s.inner, s.hidden, "residual"), many)],
                "attention": [(self.attention, many)],
                "norms": [(self.norm, 2 * many + 1)],
                "rope, cache": [(self.rotate, many)],
                "head": [(lambda: self.linear(s.hidden, s.vocab, "store", self.batch), 1)],
                "sampling": [(self.sample, 1)]}


def shown(ms):
    return "-" if ms is None or math.isnan(ms) else f"{ms:.3f}"


def measure_step(step, records, turns):
    rows, sums = [], {}
    for part, listed in step.parts().items():
        total = {}
        for make, often in listed:
            try:
                with sdpa_kernel(torch_loop.BACKENDS, set_priority=True):
                    taken = measure.compare(make(), turns=turns, graph_ms=1.0)
            except Exception as problem:
                measure.missing(f"{step.name}: {part}", problem)
                taken = {}
            for method in METHODS:
                us = taken.get(method)
                total[method] = math.nan if us is None else total.get(method, 0.0) + us * often / 1e3
            torch.cuda.empty_cache()
        for method, ms in total.items():
            sums[method] = sums.get(method, 0.0) + ms
            if not math.isnan(ms):
                records.add({"bench": "component", "method": method, "step": step.name, "component": part,
                             "ms": round(ms, 4)})
        rows.append([step.name, part] + [shown(total.get(m)) for m in METHODS])
    rows.append([step.name, "all"] + [shown(sums.get(m)) for m in METHODS])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", required=True, help="libinvar_gpu_ops.so")
    parser.add_argument("--peers", help="folder of the peers' sources")
    parser.add_argument("--model", default=os.path.join(HERE, "configs", "qwen3-8b"))
    parser.add_argument("--decode", type=lambda s: [int(b) for b in s.split(",") if b], default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prefill", type=int, default=8192, help="0: none")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    records = measure.Records(options.json)
    shape = torch_loop.Shape(options.model)
    ops, peers = linear_bench.load(options)
    steps = [Step(f"decode, batch {b}", shape, ops, peers, b, 1, options.context) for b in options.decode]
    if options.prefill:
        steps.append(Step(f"prefill of {options.prefill}", shape, ops, peers, 1, options.prefill, options.prefill))
    measure.warm_up()
    rows = []
    with torch.no_grad():
        for step in steps:
            rows += measure_step(step, records, options.turns)
    print(f"\nms a step, {options.context} tokens of context\n")
    measure.table(["step", "part"] + list(METHODS.values()), rows)


if __name__ == "__main__":
    main()
