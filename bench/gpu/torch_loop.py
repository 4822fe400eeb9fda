#!/usr/bin/env python3
"""torch_loop.py: a model of Qwen3-8B's shape in plain PyTorch, for comparison with an engine's step.

    python3 bench/gpu/torch_loop.py [--model bench/gpu/configs/qwen3-8b] [--json torch_loop.jsonl]

bfloat16, random weights, a static cache of keys and values, attention by SDPA (cuDNN, else flash), greedy tokens. A
decode step reads `context` tokens of cache for each sequence and is captured as a whole into a CUDA graph; so is a
prefill of one sequence. "plain" runs PyTorch's kernels; "compiled" fuses each layer with torch.compile. There is no
scheduling, sampling or serving: only the model.
"""

import argparse
import json
import os
import statistics
import time

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import measure

HERE = os.path.dirname(os.path.abspath(__file__))
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Shape:
    def __init__(self, folder, layers=None):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            c = json.load(file)
        if c["model_type"] != "qwen3":
            raise SystemExit(f"torch_loop.py: wanted a qwen3, found {c['model_type']}")
        self.hidden, self.inner, self.vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.layers, self.eps = layers or c["num_hidden_layers"], c["rms_norm_eps"]
        self.theta = c["rope_parameters"]["rope_theta"]


def weights(shape, device, dtype):
    """Of one layer each, in the order that block takes them; then embedding, final norm, head."""
    def matrix(n, k):
        return torch.empty(n, k, device=device, dtype=dtype).normal_(0, 0.02)

    def norm(n):
        return torch.ones(n, device=device, dtype=dtype)

    s, heads = shape, (shape.heads + 2 * shape.kv_heads) * shape.dim
    layers = [(norm(s.hidden), matrix(heads, s.hidden), norm(s.dim), norm(s.dim), matrix(s.hidden, s.heads * s.dim),
               norm(s.hidden), matrix(2 * s.inner, s.hidden), matrix(s.hidden, s.inner)) for _ in range(s.layers)]
    return layers, matrix(s.vocab, s.hidden), norm(s.hidden), matrix(s.vocab, s.hidden)


def rope_tables(shape, positions, device, dtype):
    frequencies = shape.theta ** (-torch.arange(0, shape.dim, 2, device=device, dtype=torch.float32) / shape.dim)
    angles = torch.outer(torch.arange(positions, device=device, dtype=torch.float32), frequencies)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cosine, sine):
    """x [batch, heads, rows, dim]; tables [rows, dim / 2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


def attention_of(shape, q, k, v, causal):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shape.heads != shape.kv_heads)


def make_block(shape):
    """One layer: x is what the layer before adds to the residual. cache: K and V [batch, kv_heads, positions, dim] of
    this layer; the rows stand at `at`, a tensor, and see keys [0, keys)."""
    def block(x, residual, layer, key_cache, value_cache, cosine, sine, at, keys, causal):
        norm1, qkv, q_norm, k_norm, out, norm2, gate_up, down = layer
        residual = residual + x
        h = functional.rms_norm(residual, (shape.hidden,), norm1, shape.eps)
        batch, rows, _ = h.shape
        wide = functional.linear(h, qkv).view(batch, rows, -1, shape.dim).transpose(1, 2)
        q, k, v = wide.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        q = rotate(functional.rms_norm(q, (shape.dim,), q_norm, shape.eps), cosine, sine)
        k = rotate(functional.rms_norm(k, (shape.dim,), k_norm, shape.eps), cosine, sine)
        key_cache.index_copy_(2, at, k)
        value_cache.index_copy_(2, at, v)
        a = attention_of(shape, q, key_cache[:, :, :keys], value_cache[:, :, :keys], causal)
        residual = residual + functional.linear(a.transpose(1, 2).reshape(batch, rows, -1), out)
        h = functional.rms_norm(residual, (shape.hidden,), norm2, shape.eps)
        gate, up = functional.linear(h, gate_up).chunk(2, -1)
        return functional.linear(functional.silu(gate) * up, down), residual

    return block


class Loop:
    """A step over `batch` sequences of `rows` rows each, which end at position `context`."""

    def __init__(self, shape, parts, block, batch, rows, context, device, dtype):
        self.shape, self.block, self.rows, self.context = shape, block, rows, context
        self.layers, self.embedding, self.final_norm, self.head = parts
        cache = (shape.layers, batch, shape.kv_heads, context, shape.dim)
        self.keys = torch.empty(cache, device=device, dtype=dtype).normal_()
        self.values = torch.empty(cache, device=device, dtype=dtype).normal_()
        cosine, sine = rope_tables(shape, context, device, dtype)
        self.at = torch.arange(context - rows, context, device=device)
        self.cosine, self.sine = cosine[self.at].contiguous(), sine[self.at].contiguous()
        self.ids = torch.randint(shape.vocab, (batch, rows), device=device)
        self.token = torch.zeros(batch, device=device, dtype=torch.long)

    def step(self):
        x = functional.embedding(self.ids, self.embedding)
        residual = torch.zeros_like(x)
        for i, layer in enumerate(self.layers):
            x, residual = self.block(x, residual, layer, self.keys[i], self.values[i], self.cosine, self.sine, self.at,
                                     self.context, self.rows > 1)
        last = (x + residual)[:, -1]
        logits = functional.linear(functional.rms_norm(last, (self.shape.hidden,), self.final_norm, self.shape.eps),
                                   self.head)
        torch.argmax(logits, -1, out=self.token)
        if self.rows == 1:
            self.ids.copy_(self.token[:, None])


def time_step(loop, turns):
    """Milliseconds of a step inside a CUDA graph."""
    graph = measure.capture([loop.step], 1)
    graph.replay()
    return statistics.median(measure.once(graph.replay) for _ in range(turns))


def run_case(options, records, shape, parts, name, block, case):
    batch, rows, context = case
    start = time.time()
    try:
        loop = Loop(shape, parts, block, batch, rows, context, options.device, options.dtype)
        with torch.no_grad(), sdpa_kernel(BACKENDS, set_priority=True):
            ms = time_step(loop, options.turns)
    except Exception as problem:
        measure.missing(f"{name} batch {batch} rows {rows}", problem)
        return None
    finally:
        loop = None
        torch.cuda.empty_cache()
    what = "decode" if rows == 1 else "prefill"
    records.add({"bench": "model", "method": f"torch {name}", "model": options.name, "layers": shape.layers,
                 "what": what, "batch": batch, "rows": rows, "context": context, "ms": round(ms, 4), "gpus": 1})
    print(f"# {name} {what} batch {batch} rows {rows} context {context}: {ms:.3f} ms "
          f"({batch * rows / ms * 1e3:.0f} tokens/s), {time.time() - start:.0f} s in all", flush=True)
    return ms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.path.join(HERE, "configs", "qwen3-8b"))
    parser.add_argument("--layers", type=int, default=None, help="fewer than the model has")
    parser.add_argument("--batches", type=lambda s: [int(b) for b in s.split(",") if b], default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prefill", type=int, default=8192, help="0: none")
    parser.add_argument("--methods", default="plain,compiled")
    parser.add_argument("--autotune", action="store_true", help="torch.compile with max-autotune-no-cudagraphs")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    options.device, options.dtype = "cuda", torch.bfloat16
    options.name = os.path.basename(os.path.normpath(options.model))
    shape = Shape(options.model, options.layers)
    records = measure.Records(options.json)
    torch._dynamo.config.cache_size_limit = 64
    parts = weights(shape, options.device, options.dtype)
    measure.warm_up()
    blocks = {"plain": make_block(shape)}
    mode = "max-autotune-no-cudagraphs" if options.autotune else "default"
    blocks["compiled"] = torch.compile(make_block(shape), mode=mode, dynamic=False)
    cases = [(batch, 1, options.context) for batch in options.batches]
    if options.prefill:
        cases.append((1, options.prefill, options.prefill))
    rows = []
    for case in cases:
        taken = {name: run_case(options, records, shape, parts, name, blocks[name], case)
                 for name in options.methods.split(",")}
        what = f"decode, batch {case[0]}" if case[1] == 1 else f"prefill of {case[1]}"
        rows.append([what] + ["-" if taken.get(n) is None else f"{taken[n]:.2f}" for n in ("plain", "compiled")])
    print(f"\n{options.name}, {shape.layers} layers, {options.context} tokens of context, ms a step\n")
    measure.table(["step", "plain", "compiled"], rows)


if __name__ == "__main__":
    main()
