#!/usr/bin/env python3
"""training_torch.py CONFIG_FOLDER: training steps of a Qwen3 in PyTorch, the peer of invar's learner (training.py).

The model in plain torch code, every layer through torch.compile, attention by SDPA (causal, per sequence), a fused AdamW
with float32 master weights, the norm of the gradient clipped to 1. The head's cross-entropy computes its gradients chunk by
chunk in the forward pass, so that no logits are kept. Random weights, random tokens.

A variant is MASTERS:MICRO:CHECKPOINT:ATTENTION. MASTERS: copies (bfloat16 weights and gradients, float32 copies in the
optimizer) or autocast (float32 weights and gradients); MICRO: sequences of a batch whose gradients add up; CHECKPOINT: none
or layer; ATTENTION: cudnn, flash or math. Prints one line of JSON for each variant as it ends: medians of the steps after
warm-up, peak memory. A variant that fails, by lack of memory for example, says so in its line. After --limit seconds no
further variant starts.
"""

import argparse
import gc
import json
import os
import statistics
import time

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
CHUNK = 8192  # rows of logits at once


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--sequences", type=int, default=8)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--warm-up", type=int, default=3)
    p.add_argument("--variants", default="copies:8:none:cudnn,copies:8:layer:cudnn,copies:4:none:cudnn")
    p.add_argument("--limit", type=float, default=1e9, help="seconds")
    p.add_argument("--device", default="cuda")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--lora", type=int, default=0, help="rank of an adapter that learns on every linear layer but the head")
    p.add_argument("--lora-alpha", type=float, default=64)
    return p.parse_args()


class Shape:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            c = json.load(file)
        self.hidden, self.inner, self.vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.layers, self.eps, self.tied = c["num_hidden_layers"], c["rms_norm_eps"], c["tie_word_embeddings"]
        self.theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]


def rotate(x, cosine, sine):
    """x [batch, heads, rows, dim]; tables [rows, dim / 2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1).to(x.dtype)


def make_layer(s):
    def norm(x, weight):
        return functional.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), s.eps)

    def layer(x, norm1, qkv, q_norm, k_norm, out, norm2, gate_up, down, cosine, sine):
        batch, rows, _ = x.shape
        wide = functional.linear(norm(x, norm1), qkv.to(x.dtype)).view(batch, rows, -1, s.dim).transpose(1, 2)
        q, k, v = wide.split((s.heads, s.kv_heads, s.kv_heads), 1)
        q, k = rotate(norm(q, q_norm), cosine, sine), rotate(norm(k, k_norm), cosine, sine)
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.heads != s.kv_heads)
        x = x + functional.linear(a.transpose(1, 2).reshape(batch, rows, -1), out.to(x.dtype))
        gate, up = functional.linear(norm(x, norm2), gate_up.to(x.dtype)).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, down.to(x.dtype))

    return layer


def make_lora_layer(s, scale):
    """The same with frozen weights and PEFT's terms: y + B (A x) * scale of each module."""
    def norm(x, weight):
        return functional.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), s.eps)

    def term(x, a, b):
        return functional.linear(functional.linear(x, a.to(x.dtype)), b.to(x.dtype)) * scale

    def layer(x, norm1, qkv, q_norm, k_norm, out, norm2, gate_up, down, cosine, sine, *ab):
        qa, qb, ka, kb, va, vb, oa, ob, ga, gb, ua, ub, da, db = ab
        batch, rows, _ = x.shape
        h = norm(x, norm1)
        wide = functional.linear(h, qkv) + torch.cat((term(h, qa, qb), term(h, ka, kb), term(h, va, vb)), -1)
        wide = wide.view(batch, rows, -1, s.dim).transpose(1, 2)
        q, k, v = wide.split((s.heads, s.kv_heads, s.kv_heads), 1)
        q, k = rotate(norm(q, q_norm), cosine, sine), rotate(norm(k, k_norm), cosine, sine)
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.heads != s.kv_heads)
        a = a.transpose(1, 2).reshape(batch, rows, -1)
        x = x + functional.linear(a, out) + term(a, oa, ob)
        h = norm(x, norm2)
        gate, up = functional.linear(h, gate_up).chunk(2, -1)
        act = functional.silu(gate + term(h, ga, gb)) * (up + term(h, ua, ub))
        return x + functional.linear(act, down) + term(act, da, db)

    return layer


def loss_of(logits, targets, scale):
    """The sum of -log p, and its gradient * scale. Rows whose target is negative count nothing."""
    x = logits.float()
    highest = x.amax(-1, keepdim=True)
    total = (x - highest).exp().sum(-1, keepdim=True)
    counts = (targets >= 0).float()[:, None]
    hit = torch.arange(x.shape[1], device=x.device)[None, :] == targets[:, None]
    picked = torch.where(hit, x - highest, 0.0).sum(-1, keepdim=True)
    gradient = ((x - highest).exp() / total - hit.float()) * (counts * scale)
    return ((total.log() - picked) * counts).sum(), gradient.to(logits.dtype)


class HeadLoss(torch.autograd.Function):
    """Cross-entropy of x [rows, hidden] through the head; gradients come with it."""

    @staticmethod
    def forward(ctx, x, head, targets, scale, compiled_loss):
        weight = head.to(x.dtype)
        dx, dhead, loss = torch.empty_like(x), None, 0.0
        for at in range(0, x.shape[0], CHUNK):
            rows = x[at:at + CHUNK]
            part, dl = compiled_loss(rows @ weight.t(), targets[at:at + CHUNK], scale)
            loss = loss + part
            dx[at:at + CHUNK] = dl @ weight
            if not head.requires_grad:
                continue
            if x.is_cuda:
                product = torch.mm(dl.t(), rows, out_dtype=torch.float32)
            else:
                product = (dl.t() @ rows).float()
            dhead = product if dhead is None else dhead.add_(product)
        ctx.save_for_backward(dx, dhead.to(head.dtype) if dhead is not None else None)
        return loss * scale

    @staticmethod
    def backward(ctx, _):
        dx, dhead = ctx.saved_tensors
        return dx, dhead, None, None, None


class Model:
    def __init__(self, shape, device, masters, compiled, lora=0, lora_alpha=0.0):
        self.shape, self.device, self.lora = shape, device, lora
        self.type = torch.float32 if masters == "autocast" else torch.bfloat16
        s, heads = shape, (shape.heads + 2 * shape.kv_heads) * shape.dim
        sizes = [(s.hidden,), (heads, s.hidden), (s.dim,), (s.dim,), (s.hidden, s.heads * s.dim), (s.hidden,),
                 (2 * s.inner, s.hidden), (s.hidden, s.inner)]
        self.layers = [[self.weight(*size) for size in sizes] for _ in range(s.layers)]
        self.embedding, self.final_norm = self.weight(s.vocab, s.hidden), self.weight(s.hidden)
        self.head = self.embedding if s.tied else self.weight(s.vocab, s.hidden)
        self.layer, self.loss = make_lora_layer(s, lora_alpha / lora) if lora else make_layer(s), loss_of
        if lora:
            self.freeze(lora)
        if compiled:
            self.layer = torch.compile(self.layer, dynamic=False)
            self.loss = torch.compile(self.loss, dynamic=False)

    def freeze(self, rank):
        """Float32 A and B of q, k, v, o, gate, up, down."""
        s = self.shape
        for w in self.weights():
            w.requires_grad_(False)
        q, kv = s.heads * s.dim, s.kv_heads * s.dim
        pairs = [(s.hidden, q), (s.hidden, kv), (s.hidden, kv), (q, s.hidden), (s.hidden, s.inner), (s.hidden, s.inner),
                 (s.inner, s.hidden)]
        self.adapters = []
        for _ in range(s.layers):
            ab = []
            for inputs, outputs in pairs:
                ab.append(torch.empty(rank, inputs, device=self.device).uniform_(-1, 1).mul_(inputs**-0.5).requires_grad_())
                ab.append(torch.zeros(outputs, rank, device=self.device).requires_grad_())
            self.adapters.append(ab)

    def trained(self):
        return [w for ab in self.adapters for w in ab] if self.lora else self.weights()

    def weight(self, *size):
        w = torch.empty(size, device=self.device, dtype=self.type)
        return (w.fill_(1) if len(size) == 1 else w.normal_(0, 0.02)).requires_grad_()

    def weights(self):
        all_of = [w for layer in self.layers for w in layer] + [self.embedding, self.final_norm]
        return all_of if self.shape.tied else all_of + [self.head]

    def tables(self, tokens):
        frequencies = self.shape.theta ** (-torch.arange(0, self.shape.dim, 2, device=self.device) / self.shape.dim)
        angles = torch.outer(torch.arange(tokens, device=self.device, dtype=torch.float32), frequencies)
        return angles.cos(), angles.sin()

    def run(self, ids, cosine, sine, scale, recompute):
        """Loss * scale, with gradients added; ids [sequences, tokens]."""
        x = functional.embedding(ids, self.embedding).to(torch.bfloat16)
        if self.lora:
            x.requires_grad_()  # as PEFT's enable_input_require_grads
        for i, layer in enumerate(self.layers):
            ab = self.adapters[i] if self.lora else []
            if recompute:
                x = checkpoint(self.layer, x, *layer, cosine, sine, *ab, use_reentrant=False)
            else:
                x = self.layer(x, *layer, cosine, sine, *ab)
        x = functional.rms_norm(x, (self.shape.hidden,), self.final_norm.to(x.dtype), self.shape.eps)
        targets = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-1).reshape(-1)
        loss = HeadLoss.apply(x.reshape(-1, self.shape.hidden), self.head, targets, scale, self.loss)
        loss.backward()
        return loss.detach()


class Optimizer:
    """AdamW over float32 weights: the model's own, or copies of bfloat16 ones."""

    def __init__(self, model):
        self.weights = model.trained()
        self.copies = self.weights[0].dtype != torch.float32
        self.masters = [w.detach().float().requires_grad_() for w in self.weights] if self.copies else self.weights
        matrices = [w for w in self.masters if w.dim() > 1]
        vectors = [w for w in self.masters if w.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=1e-6, betas=(0.9, 0.95), eps=1e-8, fused=True)
        if self.copies:
            for m in self.masters:
                m.grad = torch.zeros_like(m)

    @torch.no_grad()
    def step(self):
        if self.copies:
            torch._foreach_copy_([m.grad for m in self.masters], [w.grad for w in self.weights])
            for w in self.weights:
                w.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
        self.adamw.step()
        if self.copies:
            torch._foreach_copy_([w.detach() for w in self.weights], [m.detach() for m in self.masters])
        else:
            self.adamw.zero_grad(set_to_none=True)
        return norm


def synchronize(a):
    if a.device == "cuda":
        torch.cuda.synchronize()


def measure(a, shape, variant):
    masters, micro, recompute, attention = variant.split(":")
    micro = min(int(micro), a.sequences)
    gc.collect()
    if a.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1)
    begun = time.perf_counter()
    model = Model(shape, a.device, masters, not a.no_compile, a.lora, a.lora_alpha)
    optimizer = Optimizer(model)
    cosine, sine = model.tables(a.tokens)
    ids = torch.randint(shape.vocab, (a.sequences, a.tokens), device=a.device)
    scale = 1.0 / (a.sequences * (a.tokens - 1))
    seconds, parts, losses = [], [], []
    with sdpa_kernel(BACKENDS[attention]):
        for i in range(a.warm_up + a.steps):
            synchronize(a)
            start = time.perf_counter()
            loss = sum(model.run(ids[at:at + micro], cosine, sine, scale, recompute == "layer")
                       for at in range(0, a.sequences, micro))
            synchronize(a)
            middle = time.perf_counter()
            optimizer.step()
            synchronize(a)
            end = time.perf_counter()
            losses.append(float(loss))
            if i == 0:
                first = end - begun
            if i >= a.warm_up:
                seconds.append(end - start)
                parts.append(middle - start)
    step = statistics.median(seconds)
    record = {"tokens_per_second": a.sequences * a.tokens / step, "seconds": step, "all_seconds": seconds,
              "gradients": statistics.median(parts), "first_step": first, "loss": losses[0], "last_loss": losses[-1]}
    if a.device == "cuda":
        record["peak_bytes"] = torch.cuda.max_memory_allocated()
        record["reserved_bytes"] = torch.cuda.max_memory_reserved()
    return record


def main():
    a = parse()
    begun = time.perf_counter()
    shape = Shape(a.config)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64  # variants share the code of a layer
    for variant in a.variants.split(","):
        record = {"bench": "training", "who": "torch", "torch": torch.__version__, "variant": variant}
        if time.perf_counter() - begun > a.limit:
            print(json.dumps({**record, "failed": "no time was left"}), flush=True)
            continue
        try:
            record.update(measure(a, shape, variant))
        except Exception as problem:  # of this variant: memory, an attention that takes no such shape
            record["failed"] = f"{type(problem).__name__}: {problem}".splitlines()[0][:300]
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
