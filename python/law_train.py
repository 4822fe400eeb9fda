"""A second implementation of the law of training (docs/NUMERICS.md, section 15), over whole arrays.

    python3 python/law_train.py > tests/data/law_train.json        needs numpy, mpmath; about two minutes
    python3 python/law_train.py --check tests/data/law_train.json  the same runs, compared
    LAW_RUNS=qwen3,qwen2 ...                                       only the runs of these models

Trains the models of tests/data/hf for two steps and records hashes of log-probabilities, gradients and weights.
tests/train/test_law_train.c runs the learner on the same batches. Passes, threads and ranks do not exist here.
"""
import hashlib
import json
import os
import struct
import sys

import numpy as np

import law
import law_vector as v
import rope_data
from law_vector import CHAIN, ROUND, f32, f64, fma, linear, pad16

HF = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "hf")
BLOCK = 4096

# ---- 15.1: weights ---------------------------------------------------------------------------------------


def read_tensors(directory):
    out = {}
    for name in sorted(os.listdir(directory)):
        if not name.startswith("model") or not name.endswith(".safetensors"):
            continue
        with open(os.path.join(directory, name), "rb") as file:
            head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            data = file.read()
        for tensor, t in head.items():
            if tensor == "__metadata__":
                continue
            assert t["dtype"] == "BF16", tensor
            raw = np.frombuffer(data[t["data_offsets"][0] : t["data_offsets"][1]], np.uint16)
            out[tensor] = (raw.astype(np.uint32) << 16).view(f32).reshape(t["shape"])
    return out


class Flat:
    """Tensors in byte order of their names, each padded to whole blocks."""

    def __init__(self, tensors):
        self.shape, self.at, n = {}, {}, 0
        for name in sorted(tensors, key=lambda s: s.encode()):
            self.shape[name], self.at[name] = tensors[name].shape, n
            n += -(-tensors[name].size // BLOCK) * BLOCK
        self.size = n

    def join(self, tensors):
        row = np.zeros(self.size, f32)
        for name, at in self.at.items():
            row[at : at + tensors[name].size] = tensors[name].ravel()
        return row

    def part(self, row):
        return {name: row[at : at + int(np.prod(self.shape[name]))].reshape(self.shape[name]) for name, at in self.at.items()}


# ---- 15.2: virtual ranks ---------------------------------------------------------------------------------


def virtual_ranks(lengths, ranks):
    """The sequences of each virtual rank."""
    load, out = [0] * ranks, [[] for _ in range(ranks)]
    for s in sorted(range(len(lengths)), key=lambda s: (-lengths[s], s)):
        least = min(range(ranks), key=lambda r: (load[r], r))
        load[least] += -(-lengths[s] // 16) * 16
        out[least].append(s)
    return [sorted(r) for r in out]


# ---- the model -------------------------------------------------------------------------------------------


class Config:
    def __init__(self, directory, changes):
        with open(os.path.join(directory, "config.json")) as file:
            c = json.load(file)
        c.update(changes)
        self.hidden, self.layers, self.vocab = c["hidden_size"], c["num_hidden_layers"], c["vocab_size"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.dim = c.get("head_dim") or self.hidden // self.heads
        self.eps, self.tied = f32(c["rms_norm_eps"]), c["tie_word_embeddings"]
        self.window = c.get("sliding_window") or 0
        self.experts, self.chosen = c.get("num_local_experts", 0), c.get("num_experts_per_tok", 0)
        self.normalise = c.get("norm_topk_prob", False)
        rope = c["rope_parameters"]
        self.rope = {"theta": rope["rope_theta"], "head_dim": self.dim, "factor": rope.get("factor", 1.0)}
        if rope["rope_type"] == "llama3":
            self.rope.update(low=rope["low_freq_factor"], high=rope["high_freq_factor"],
                             original=rope["original_max_position_embeddings"])
        self.scale1 = f32(1.0 / np.sqrt(f64(self.dim)))
        self.scale = f32(1.4426950408889634 / np.sqrt(f64(self.dim)))

    def table(self, n):
        frequencies = rope_data.law_frequencies(self.rope)
        pairs = [[rope_data.law_sine_cosine(t * f) for f in frequencies] for t in range(n)]
        return (np.array([[p[1] for p in row] for row in pairs], f32)[:, None, :],
                np.array([[p[0] for p in row] for row in pairs], f32)[:, None, :])


class Step:
    """One batch: forward, backward, gradients by name. Everything outside the token axis is per sequence."""

    def __init__(self, run, config, weights, sequences):
        self.arithmetic, self.kind, self.ranks = run["arithmetic"], run["dtype"], run["virtual_ranks"]
        self.round, self.exp2 = ROUND[self.kind], v.ex2 if self.arithmetic == "tc16" else v.exp2
        self.add = v.ADD[self.arithmetic]
        self.c, self.sequences, self.temperature = config, sequences, f32(run["temperature"])
        self.master = weights
        self.w = {name: self.round(t) if t.ndim == 2 else t for name, t in weights.items()}
        self.of = virtual_ranks([len(s["ids"]) for s in sequences], self.ranks)
        self.tables = config.table(max(len(s["ids"]) for s in sequences))
        self.gradient = {}

    def linear(self, x, name, leaves=4):
        y = linear(self.arithmetic, self.kind, x, self.w[name + ".weight"], leaves)
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, x, name):
        return self.round(v.rmsnorm(x, self.w[name + ".weight"], self.c.eps))

    # ---- 15.3: sums over tokens; terms are lists with one array of rows a sequence ----

    def chains(self, dy, x):
        sums = []
        for of in self.of:
            acc = np.zeros((dy[0].shape[1], x[0].shape[1]), f32)
            a = [pad16(dy[s], 0) for s in of if len(dy[s])]
            if a:
                b = [pad16(x[s], 0) for s in of if len(x[s])]
                acc = v.chain_matrix(self.arithmetic, self.kind, acc, np.concatenate(a).T, np.concatenate(b).T)
            sums.append(acc)
        return v.tree(sums, v.add_plain)

    def columns(self, step, width):
        """step(s, sequence, row): the sum with that row's term."""
        sums = []
        for of in self.of:
            acc = np.zeros(width, f32)
            for s in of:
                for term in step[s]:
                    acc = term(acc)
            sums.append(acc)
        return v.tree(sums, v.add_plain)

    def bias(self, name, dy):
        if name + ".bias" in self.w:
            add = [[lambda acc, row=row: acc + row for row in rows] for rows in dy]
            self.gradient[name + ".bias"] = self.columns(add, dy[0].shape[1])

    def norm_weight(self, name, dy, x):
        step = []
        for d, rows in zip(dy, x):
            xr = rows * v.rms_factor(rows, self.c.eps)[:, None] if len(rows) else rows
            step.append([lambda acc, a=a, b=b: fma(a, b, acc) for a, b in zip(d, xr)])
        self.gradient[name + ".weight"] = self.columns(step, dy[0].shape[1])

    # ---- 15.4: sums over outputs ----

    def inputs(self, dy, names, leaves, chunk):
        """dX of layers that share an input. dy: their columns, typed; chunk(layer, n, leaf): first and end of its part."""
        w = [self.w[name + ".weight"] for name in names]
        nodes = []
        for leaf in range(leaves):
            acc = np.zeros((len(dy[0]), w[0].shape[1]), f32)
            for d, m in zip(dy, w):
                first, end, padded = chunk(len(m), leaf)
                a, b = np.zeros((len(d), padded), f32), np.zeros((m.shape[1], padded), f32)
                a[:, : max(0, end - first)], b[:, : max(0, end - first)] = d[:, first:end], m[first:end].T
                acc = v.chain_matrix(self.arithmetic, self.kind, acc, a, b)
            nodes.append(acc)
        return v.tree(nodes, self.add)

    def inputs_by_size(self, dy, names, leaves):
        """leaves: at most so many; experts have 1, and a part that need not be a multiple of 16."""
        padded = -(-len(self.w[names[0] + ".weight"]) // 16) * 16
        leaves = v.leaves_of(padded, leaves)
        part = padded // leaves
        return self.inputs(dy, names, leaves, lambda n, i: (min(n, i * part), min(n, (i + 1) * part), part))

    def qkv_leaves(self):
        return max(p for p in (1, 2, 4, 8) if self.c.kv_heads % p == 0)

    def inputs_of_qkv(self, dy, names):
        leaves = self.qkv_leaves()
        return self.inputs(dy, names, leaves, lambda n, i: (i * n // leaves, (i + 1) * n // leaves, -(-n // leaves // 16) * 16))

    # ---- forward ----

    def attention(self, q, k, value):
        """One head of one sequence: the output before R, and lse2."""
        n, dim = q.shape
        score = self.chain(np.zeros((n, n), f32), pad16(q)[:, None], pad16(k)[None])
        at = np.arange(n)
        seen = (at[None] <= at[:, None]) & ((at[None] > at[:, None] - self.c.window) | (self.c.window == 0))
        blocks = -(-n // 64) * 64
        score = np.where(seen, score, f32(-np.inf))
        score = np.pad(score, [(0, 0), (0, blocks - n)], constant_values=-np.inf)
        visible = np.pad(seen, [(0, 0), (0, blocks - n)])
        rows_v = np.pad(value, [(0, blocks - n), (0, 0)])
        out, lse2 = np.zeros((n, dim), f32), np.zeros(n, f32)
        for t in range(n):
            total = None
            for split in range(0, t + 1, 256):
                m, s, lanes, o = f32(-np.inf), f32(0), np.zeros(8, f32), np.zeros(dim, f32)
                used = False
                for b in range(split, min(split + 256, blocks), 64):
                    mask = visible[t, b : b + 64]
                    if not mask.any():
                        continue
                    used = True
                    x = score[t, b : b + 64]
                    most = max(x) * self.c.scale
                    new = most if most > m + f32(8) else m
                    alpha = self.exp2(np.array(m - new, f32))
                    w = self.round(self.exp2(fma(x, self.c.scale, -new)))
                    if self.arithmetic == "tc16":
                        s = self.chain(np.array([s * alpha], f32), w[None], np.ones((1, 64), f32))[0]
                    else:
                        lanes = lanes * alpha
                        for j in range(0, 64, 8):
                            lanes = lanes + w[j : j + 8]
                    column = np.where(mask[:, None], rows_v[b : b + 64], f32(0)).T
                    o = self.chain(o * alpha, w[None], column) + f32(0)
                    m = new
                if not used:
                    continue
                if self.arithmetic == "fma32":
                    s = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
                if total is None:
                    total = m, s, o
                    continue
                new = max(total[0], m)
                keep, add = self.exp2(np.array(total[0] - new, f32)), self.exp2(np.array(m - new, f32))
                total = new, fma(s, add, total[1] * keep), fma(o, add, total[2] * keep)
            out[t] = total[2] / total[1]
            lse2[t] = fma(law.log(f32(total[1])), law.h("0x1.715476p+0"), total[0])
        return out, lse2

    def chain(self, acc, a, b):
        return CHAIN[self.arithmetic](acc, a, b, self.kind)

    def heads(self, x, count):
        return x.reshape(len(x), count, self.c.dim)

    def attention_block(self, x, name, tape):
        c = self.c
        tape["x"] = x
        h = tape["h"] = self.norm(x, name + ".input_layernorm")
        q, k, value = (self.linear(h, name + ".self_attn.%s_proj" % p) for p in "qkv")
        q, k = self.heads(q, c.heads), self.heads(k, c.kv_heads)
        tape["q_raw"], tape["k_raw"] = self.round(q), self.round(k)
        if name + ".self_attn.q_norm.weight" in self.w:
            q = v.rmsnorm(q, self.w[name + ".self_attn.q_norm.weight"], c.eps)
            k = v.rmsnorm(k, self.w[name + ".self_attn.k_norm.weight"], c.eps)
        cosine, sine = (t[: len(x)] for t in self.tables)
        tape["q"], tape["k"] = self.round(v.rope(q, cosine, sine)), self.round(v.rope(k, cosine, sine))
        tape["v"] = self.heads(self.round(value), c.kv_heads)
        group = c.heads // c.kv_heads
        each = [self.attention(tape["q"][:, i], tape["k"][:, i // group], tape["v"][:, i // group]) for i in range(c.heads)]
        tape["a"], tape["lse2"] = self.round(np.stack([e[0] for e in each], 1)), [e[1] for e in each]
        return x + self.linear(tape["a"].reshape(len(x), -1), name + ".self_attn.o_proj", 8)

    def mlp(self, h, name, tape, leaves=(4, 8)):
        gate, up = self.linear(h, name + ".gate_proj", leaves[0]), self.linear(h, name + ".up_proj", leaves[0])
        g = self.round(v.silu(gate) * up)
        tape.update(gate=self.round(gate), up=self.round(up), g=g)
        return self.linear(g, name + ".down_proj", leaves[1])

    def experts(self, h, name, tape):
        logits = tape["router"] = self.linear(h, name + ".gate")
        route = [law.route(list(row), self.c.chosen, self.c.normalise) for row in logits]
        tape["weights"] = [dict(zip(ids, w)) for ids, w in route]
        terms, tape["rows"], tape["expert"] = [{} for _ in h], {}, {}
        for e in range(self.c.experts):
            rows = tape["rows"][e] = [t for t in range(len(h)) if e in tape["weights"][t]]
            slot = tape["expert"][e] = {}
            if not rows:
                continue
            y = self.mlp(h[rows], name + ".experts.%d" % e, slot, (1, 1))
            for t, row in zip(rows, y):
                terms[t][e] = tape["weights"][t][e] * row
        return np.stack([law.combine(t) for t in terms])

    def mlp_block(self, x, name, tape):
        tape["x_mlp"] = x
        h = tape["h_mlp"] = self.norm(x, name + ".post_attention_layernorm")
        return x + (self.experts if self.c.experts else self.mlp)(h, name + ".mlp", tape)

    def forward(self):
        self.tapes, self.last, self.logprobs = [], [], []
        for s in self.sequences:
            x, tapes = self.w["model.embed_tokens.weight"][s["ids"]], []
            for i in range(self.c.layers):
                tapes.append({})
                x = self.attention_block(x, "model.layers.%d" % i, tapes[-1])
                x = self.mlp_block(x, "model.layers.%d" % i, tapes[-1])
            self.tapes.append(tapes)
            self.last.append(x)
            self.head_forward(s, x)

    def head_name(self):
        return "model.embed_tokens" if self.c.tied else "lm_head"

    def head_forward(self, s, x):
        s["at"] = [t for t in range(1, len(s["ids"])) if s["mask"][t] != 0]
        rows = np.array([t - 1 for t in s["at"]], int)
        s["target"] = [s["ids"][t] for t in s["at"]]
        s["h"] = self.norm(x[rows], "model.norm")
        logits = self.linear(s["h"], self.head_name())
        s["x"] = logits if self.temperature == 1 else logits / self.temperature
        s["max"], s["sum"] = v.sum_exp(s["x"])
        picked = s["x"][np.arange(len(rows)), s["target"]]
        logp = np.zeros(len(s["ids"]), f32)
        logp[s["at"]] = (picked - s["max"]) - v.log(s["sum"])
        self.logprobs.append(logp)

    # ---- 15.7: row ops ----

    def norm_input(self, dy, w, x, add):
        xr = x * v.rms_factor(x, self.c.eps)[..., None]
        dw = dy * w
        c = v.lane_fma(dw, xr) / f32(x.shape[-1])
        t, r = fma(-xr, c[..., None], dw), v.rms_factor(x, self.c.eps)[..., None]
        return t * r if add is None else fma(t, r, add)

    def swiglu(self, a, tape):
        g, u = tape["gate"], tape["up"]
        d = f32(1) + v.exp(f32(0) - g)
        s, z = f32(1) / d, g / d
        return (a * u) * fma(z, f32(1) - s, s), a * z

    # ---- 15.6: the walk ----

    def each(self, function, *lists):
        return [function(*items) for items in zip(*lists)]

    def weight(self, name, dy, x):
        self.gradient[name + ".weight"] = self.chains(dy, x)

    def residual_norm(self, name, dh, key, layer):
        x = [t[layer][key] for t in self.tapes]
        w = self.w[name + ".weight"]
        dx = self.each(lambda d, rows, add: self.norm_input(d, w, rows, add), dh, x, self.dx)
        self.norm_weight(name, dh, x)
        self.dx = dx

    def head_backward(self):
        def logits(s):
            c = np.array([s["mask"][t] for t in s["at"]], f32) / self.temperature
            p = v.exp(s["x"] - s["max"][:, None]) * (f32(1) / s["sum"])[:, None]
            p[np.arange(len(c)), s["target"]] -= f32(1)
            return self.round(c[:, None] * p)

        dl = [logits(s) for s in self.sequences]
        name = self.head_name()
        self.weight(name, dl, [s["h"] for s in self.sequences])
        dh = [self.inputs_by_size([d], [name], 8) for d in dl]
        rows = [[t - 1 for t in s["at"]] for s in self.sequences]
        x = [last[np.array(r, int)] for last, r in zip(self.last, rows)]
        self.norm_weight("model.norm", dh, x)
        self.dx = []
        for last, r, d, part in zip(self.last, rows, dh, x):
            dx = np.zeros_like(last)
            dx[np.array(r, int)] = self.norm_input(d, self.w["model.norm.weight"], part, f32(0))
            self.dx.append(dx)

    def mlp_backward(self, layer, name):
        tapes = [t[layer] for t in self.tapes]
        dy = self.each(self.round, self.dx)
        down = name + ".mlp.down_proj"
        self.weight(down, dy, [t["g"] for t in tapes])
        da = [f32(0) + self.inputs_by_size([d], [down], 4) for d in dy]
        self.bias(down, self.dx)
        both = self.each(self.swiglu, da, tapes)
        pair = [name + ".mlp.gate_proj", name + ".mlp.up_proj"]
        for i in (0, 1):
            self.bias(pair[i], [b[i] for b in both])
        typed = [[self.round(b) for b in two] for two in both]
        for i in (0, 1):
            self.weight(pair[i], [t[i] for t in typed], [t["h_mlp"] for t in tapes])
        return [f32(0) + self.inputs_by_size(two, pair, 8) for two in typed]

    def experts_backward(self, layer, name):
        c, tapes = self.c, [t[layer] for t in self.tapes]
        dw = [[{} for _ in x] for x in self.dx]
        terms = [[{} for _ in x] for x in self.dx]
        for e in range(c.experts):
            base, none = name + ".mlp.experts.%d" % e, np.zeros((0, 1), f32)
            wide, hidden = self.w[base + ".gate_proj.weight"].shape
            dys, gs, dgs, dus, hs = [], [], [], [], []
            for q, tape in enumerate(tapes):
                rows, slot, dx = tape["rows"][e], tape["expert"][e], self.dx[q]
                if not rows:
                    for array, n in ((dys, hidden), (gs, wide), (dgs, wide), (dus, wide), (hs, hidden)):
                        array.append(np.zeros((0, n), f32))
                    continue
                weight = np.array([tape["weights"][t][e] for t in rows], f32)[:, None]
                da = f32(0) + self.inputs_by_size([self.round(dx[rows])], [base + ".down_proj"], 1)
                for t, d in zip(rows, v.lane_fma(da, slot["g"])):
                    dw[q][t][e] = d
                dgate, dup = (self.round(d) for d in self.swiglu(da * weight, slot))
                dys.append(self.round(dx[rows] * weight)), gs.append(slot["g"])
                dgs.append(dgate), dus.append(dup), hs.append(tape["h_mlp"][rows])
                dh = f32(0) + self.inputs_by_size([dgate, dup], [base + ".gate_proj", base + ".up_proj"], 1)
                for t, row in zip(rows, dh):
                    terms[q][t][e] = row
            self.weight(base + ".down_proj", dys, gs)
            self.weight(base + ".gate_proj", dgs, hs)
            self.weight(base + ".up_proj", dus, hs)
        return self.router_backward(name, tapes, dw, terms)

    def router_backward(self, name, tapes, dw, terms):
        out = []
        for q, tape in enumerate(tapes):
            rows = np.zeros((len(dw[q]), self.c.experts), f32)
            for t, of in enumerate(dw[q]):
                w, mean = tape["weights"][t], f32(0)
                for e in sorted(of):
                    mean = law.fma(of[e], w[e], mean)
                if not self.c.normalise:
                    m, s = law.sum_exp(list(tape["router"][t]))
                    for e in range(self.c.experts):
                        rows[t, e] = (law.exp(tape["router"][t][e] - m) / s) * (f32(0) - mean)
                for e in of:
                    rows[t, e] = w[e] * (of[e] - mean)
            out.append(self.round(rows))
        router = name + ".mlp.gate"
        self.weight(router, out, [t["h_mlp"] for t in tapes])
        dh = [f32(0) + self.inputs_by_size([d], [router], 4) for d in out]
        return [d + np.stack([law.combine(t) for t in of]) for d, of in zip(dh, terms)]

    # ---- 15.8: attention ----

    def kv_head(self, qs, k, value, outs, douts, lse2s):
        """One KV head of one sequence: dq of each head of the group, dk, dv."""
        n, dim = k.shape
        blocks = -(-n // 64)
        at, pad = np.arange(n), blocks * 64 - n
        seen = (at[None] <= at[:, None]) & ((at[None] > at[:, None] - self.c.window) | (self.c.window == 0))
        dqs, dk, dv = [], np.zeros((blocks * 64, dim), f32), np.zeros((blocks * 64, dim), f32)
        rows = lambda x: np.pad(x, [(0, pad), (0, 0)])
        kp = rows(k)
        for q, o, do, lse2 in zip(qs, outs, douts, lse2s):
            score = self.chain(np.zeros((n, n), f32), pad16(q)[:, None], pad16(k)[None])
            dp = self.chain(np.zeros((n, n), f32), pad16(do)[:, None], pad16(value)[None])
            delta = v.lane_fma(do, o)
            w = np.where(seen, self.exp2(fma(score, self.c.scale, -lse2[:, None])), f32(0))
            square = lambda x: np.pad(self.round(x), [(0, pad), (0, pad)])
            p, ds = square(w), square(np.where(seen, w * (dp - delta[:, None]), f32(0)))
            dq, qp, dop = np.zeros((blocks * 64, dim), f32), rows(q), rows(do)
            for b in range(blocks):
                first = max(0, b * 64 - self.c.window + 1) // 64 if self.c.window else 0
                bq = slice(b * 64, b * 64 + 64)
                for j in range(first, b + 1):
                    bk = slice(j * 64, j * 64 + 64)
                    dq[bq] = self.chain(dq[bq], ds[bq, bk][:, None], kp[bk].T[None])
                    dv[bk] = self.chain(dv[bk], p[bq, bk].T[:, None], dop[bq].T[None])
                    dk[bk] = self.chain(dk[bk], ds[bq, bk].T[:, None], qp[bq].T[None])
            dqs.append(dq[:n] * self.c.scale1)
        return dqs, dk[:n] * self.c.scale1, dv[:n]

    def attention_backward(self, layer, name):
        c, group = self.c, self.c.heads // self.c.kv_heads
        tapes = [t[layer] for t in self.tapes]
        dy, out = self.each(self.round, self.dx), name + ".self_attn.o_proj"
        self.weight(out, dy, [t["a"].reshape(len(t["a"]), -1) for t in tapes])
        self.bias(out, self.dx)
        gradients = []
        for d, tape in zip(dy, tapes):
            do = self.heads(self.round(f32(0) + self.inputs_by_size([d], [out], 4)), c.heads)
            dq, dk, dv = [], [], []
            for h in range(c.kv_heads):
                of = range(h * group, (h + 1) * group)
                a, b, e = self.kv_head([tape["q"][:, i] for i in of], tape["k"][:, h], tape["v"][:, h],
                                       [tape["a"][:, i] for i in of], [do[:, i] for i in of], [tape["lse2"][i] for i in of])
                dq += a
                dk.append(b), dv.append(e)
            gradients.append([np.stack(x, 1) for x in (dq, dk, dv)])
        return gradients

    def heads_backward(self, layer, name, gradients):
        """Through rope and head norms, in place."""
        tapes, terms = [t[layer] for t in self.tapes], ([], [])
        for tape, g in zip(tapes, gradients):
            cosine, sine = (t[: len(g[0])] for t in self.tables)
            for i, part in ((0, "q"), (1, "k")):
                g[i] = v.rope(g[i], cosine, -sine)
                norm = name + ".self_attn.%s_norm.weight" % part
                if norm not in self.w:
                    continue
                raw = tape[part + "_raw"]
                xr = raw * v.rms_factor(raw, self.c.eps)[..., None]
                leaves, nodes = self.qkv_leaves(), []
                each = g[i].shape[1] // leaves
                for leaf in range(leaves):
                    h = np.zeros((len(raw), self.c.dim), f32)
                    for head in range(leaf * each, (leaf + 1) * each):
                        h = fma(g[i][:, head], xr[:, head], h)
                    nodes.append(h)
                terms[i].append(v.tree(nodes, v.add_plain))
                g[i] = self.norm_input(g[i], self.w[norm], raw, None)
        for i, part in ((0, "q"), (1, "k")):
            if terms[i]:
                add = [[lambda acc, row=row: acc + row for row in rows] for rows in terms[i]]
                self.gradient[name + ".self_attn.%s_norm.weight" % part] = self.columns(add, self.c.dim)

    def qkv_backward(self, layer, name, gradients):
        names = [name + ".self_attn.%s_proj" % p for p in "qkv"]
        flat = [[x.reshape(len(x), -1) for x in g] for g in gradients]
        typed = [[self.round(x) for x in g] for g in flat]
        for i, part in enumerate(names):
            self.bias(part, [g[i] for g in flat])
            self.weight(part, [g[i] for g in typed], [t[layer]["h"] for t in self.tapes])
        return [f32(0) + self.inputs_of_qkv(g, names) for g in typed]

    def lookups(self):
        shape, nodes = self.w["model.embed_tokens.weight"].shape, []
        for of in self.of:
            s = np.zeros(shape, f32)
            for q in of:
                for t, token in enumerate(self.sequences[q]["ids"]):
                    s[token] = s[token] + self.dx[q][t]
            nodes.append(s)
        total, name = v.tree(nodes, v.add_plain), "model.embed_tokens.weight"
        self.gradient[name] = self.gradient[name] + total if self.c.tied else total

    def backward(self):
        self.head_backward()
        for i in reversed(range(self.c.layers)):
            name = "model.layers.%d" % i
            dh = (self.experts_backward if self.c.experts else self.mlp_backward)(i, name)
            self.residual_norm(name + ".post_attention_layernorm", dh, "x_mlp", i)
            gradients = self.attention_backward(i, name)
            self.heads_backward(i, name, gradients)
            self.residual_norm(name + ".input_layernorm", self.qkv_backward(i, name, gradients), "x", i)
        self.lookups()


# ---- 15.10 and 15.12: optimizer and hashes ---------------------------------------------------------------


def power(b, n):
    r = f64(1)
    while n:
        if n & 1:
            r = r * b
        b, n = b * b, n >> 1
    return r


def sum_of_squares(row):
    total = f64(0)
    for block in row.reshape(-1, BLOCK).astype(f64):
        l = np.zeros(8)
        for part in (block * block).reshape(-1, 8):
            l = l + part
        total = total + (((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7])))
    return total


def adamw(o, t, gradient, denominator, flat, w, m, u):
    """One step in place; returns the norm."""
    norm = np.sqrt(sum_of_squares(gradient)) / denominator
    clip = min(1.0, o["max_norm"] / (norm + 1e-6))
    g = gradient * f32(clip / denominator)
    b1, b2, rate = f64(o["beta1"]), f64(o["beta2"]), f64(o["learning_rate"])
    c1, c2 = f32(rate / (1 - power(b1, t))), f32(1 / np.sqrt(1 - power(b2, t)))
    m[:] = fma(f32(b1), m, f32(1 - b1) * g)
    u[:] = fma(f32(b2), u, (f32(1 - b2) * g) * g)
    d = np.sqrt(u) * c2 + f32(o["eps"])
    k = f32(-(rate * o["weight_decay"]))
    decayed = fma(k, w, w)
    for name, at in flat.at.items():
        if len(flat.shape[name]) > 1:
            end = at + int(np.prod(flat.shape[name]))
            w[at:end] = decayed[at:end]
    w[:] = w - c1 * (m / d)
    return norm


def sha(data):
    return hashlib.sha256(data).digest()


GROUP_BLOCKS = 16  # whose digests are hashed


def weight_hash(row):
    data = row.astype("<f4").tobytes()
    blocks = [sha(data[at : at + 4 * BLOCK]) for at in range(0, len(data), 4 * BLOCK)]
    groups = [sha(b"".join(blocks[at : at + GROUP_BLOCKS])) for at in range(0, len(blocks), GROUP_BLOCKS)]
    return sha(b"".join(groups)).hex()


# ---- runs ------------------------------------------------------------------------------------------------

OPTIONS = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "max_norm": 1.0}
RUNS = [
    {"model": "qwen3", "arithmetic": "tc16", "dtype": "bfloat16", "virtual_ranks": 4, "temperature": 1.0},
    {"model": "qwen3", "arithmetic": "fma32", "dtype": "float32", "virtual_ranks": 2, "temperature": 0.75},
    {"model": "qwen2", "arithmetic": "fma32", "dtype": "bfloat16", "virtual_ranks": 8, "temperature": 1.0},
    {"model": "llama31", "arithmetic": "tc16", "dtype": "float16", "virtual_ranks": 1, "temperature": 1.5},
    {"model": "mistral_v03", "arithmetic": "tc16", "dtype": "bfloat16", "virtual_ranks": 4, "temperature": 1.0,
     "config": {"sliding_window": 21}},
    {"model": "qwen3_moe", "arithmetic": "tc16", "dtype": "bfloat16", "virtual_ranks": 4, "temperature": 1.0},
    {"model": "qwen3_moe", "arithmetic": "fma32", "dtype": "float32", "virtual_ranks": 2, "temperature": 1.0,
     "config": {"norm_topk_prob": False}},
]
LENGTHS = [[5, 37, 2, 16, 81, 18], [7, 33, 70, 3]]


def batch(seed, lengths, vocab):
    out = []
    for i, n in enumerate(lengths):
        r = [law.u(x) for x in law.inputs(100 * seed + i, 2 * n)]
        out.append({"ids": [(x >> 3) * 7 % vocab for x in r[:n]],
                    "mask": [0.0] + [[1.0, 1.0, 0.5, 0.0][x >> 9 & 3] for x in r[n + 1 :]]})
        out[-1]["mask"][1] = 1.0
        if i == 3 and seed == 1:
            out[-1]["mask"] = [0.0] * n  # a sequence without a prediction
    return out


def run(r):
    directory = os.path.join(HF, r["model"])
    config, tensors = Config(directory, r.get("config", {})), read_tensors(directory)
    if config.tied:
        tensors.pop("lm_head.weight", None)
    tensors = {name: ROUND[r["dtype"]](t) if t.ndim == 2 else t for name, t in tensors.items()}
    flat = Flat(tensors)
    w = flat.join(tensors)
    m, u = np.zeros_like(w), np.zeros_like(w)
    steps = []
    for t in (1, 2):
        sequences = batch(t, LENGTHS[t - 1], config.vocab)
        data = [{"ids": s["ids"], "mask": s["mask"]} for s in sequences]
        step = Step(r, config, flat.part(w), sequences)
        step.forward()
        step.backward()
        gradient = flat.join(step.gradient)
        assert np.isfinite(gradient).all()
        denominator = f64(0)
        for s in sequences:
            for x in s["mask"]:
                denominator = denominator + x
        norm = adamw(OPTIONS, t, gradient, denominator, flat, w, m, u)
        steps.append({"sequences": data, "denominator": float(denominator), "norm": float(norm).hex(),
                      "logprobs": sha(np.concatenate(step.logprobs).tobytes()).hex(),
                      "tensors": {name: sha(step.gradient[name].astype("<f4").tobytes()).hex()[:16] for name in flat.at},
                      "gradient": sha(gradient.tobytes()).hex(), "weights": weight_hash(w)})
    return {**r, "steps": steps}


def main():
    v.check()
    chosen = [r for r in RUNS if not os.environ.get("LAW_RUNS") or r["model"] in os.environ["LAW_RUNS"].split(",")]
    made = {"made_by": "python/law_train.py", "training_version": 3, "optimizer": OPTIONS, "runs": [run(r) for r in chosen]}
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        with open(sys.argv[2]) as file:
            recorded = json.load(file)
            recorded["runs"] = [r for r in recorded["runs"] if r["model"] in {c["model"] for c in chosen}]
            if recorded != json.loads(json.dumps(made)):
                raise SystemExit("law_train.py: %s differs from what the text gives" % sys.argv[2])
        print("law_train.py: %d runs, the same bits" % len(chosen))
        return
    json.dump(made, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
