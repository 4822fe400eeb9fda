"""The blocks of a decoder as autograd functions: a layer's two halves, embedding, head. Between blocks there is only the
residual stream, in float32; gradients of weights are sums over the tokens of a step (docs/NUMERICS.md 15.6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from . import _native as native
from ._native import Attention, Context, Linear, Sums, refuse
from ._step import Pass

LOGITS_FLOATS = {"cpu": 1 << 24, "cuda": 1 << 28}  # logits of the head that exist at once; each slice reads the whole head


@dataclass
class Shape:
    """Facts of a model, from its configuration."""

    ops: Context
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    config: str
    max_positions: int
    tied: bool
    dtypes: dict[str, torch.dtype]  # of the parameters when the model was patched
    tables: tuple[Tensor, Tensor] | None = None

    def tables_of(self, positions: int) -> tuple[Tensor, Tensor]:
        if positions > self.max_positions:
            raise refuse(f"positions: wanted at most {self.max_positions}, found a sequence of {positions}")
        if self.tables is None or self.tables[0].shape[0] < positions:
            count = min(self.max_positions, max(512, 1 << (positions - 1).bit_length()))
            self.tables = native.rope_tables(self.ops, self.config, count, self.head_dim)
        return self.tables


@dataclass
class Batch:
    """Whole sequences, packed, and the pass to which their gradients belong."""

    ids: Tensor  # int32 [tokens]
    lengths: list[int]
    part: Pass
    tables: tuple[Tensor, Tensor]
    attentions: dict[Any, Attention] = field(default_factory=dict)

    def attention(self, shape: Shape, window: int, norms: tuple[Tensor, Tensor] | None) -> Attention:
        return Attention(
            shape.ops, self.lengths, shape.heads, shape.kv_heads, shape.head_dim,
            window=window, tables=self.tables, norms=norms, eps=shape.eps,
        )  # fmt: skip


def vector(tensor: Tensor | None) -> Any:
    """Norm weights and biases are float32 in the law; widening is exact."""
    return None if tensor is None else tensor.detach().float().contiguous()


def needed(tensor: Tensor) -> Tensor:
    """A parameter that learns holds float32."""
    if tensor.dtype != torch.float32:
        raise refuse(f"a parameter that learns: wanted float32 (model.float(), and dtype= of patch), found {tensor.dtype}")
    return tensor


def linear_backward(
    part: Pass,
    layer: Linear,
    names: list[str],
    weights: list[Tensor],
    biases: list[Tensor | None],
    dy: Tensor,
    wide: Tensor,
    x: Tensor,
    axis: Any,
    learns: bool,
) -> list[Tensor | None]:
    """Gradients of weights, then of biases. dy: typed; wide: the same in float32."""
    if not learns:
        return [None] * (len(weights) + len(biases))
    sums = [part.sums(name, needed(w)) for name, w in zip(names, weights)]
    layer.weight_gradient(axis, dy, x, sums)
    grads, first = [part.gradient(name) for name in names], 0
    for name, w, bias in zip(names, weights, biases):
        if bias is None:
            grads.append(None)
        else:
            key = name.removesuffix("weight") + "bias"
            native.column_sums(layer.ops, axis, wide, first, w.shape[0], part.sums(key, needed(bias)))
            grads.append(part.gradient(key))
        first += w.shape[0]
    return grads


def norm_backward(
    part: Pass, ops: Context, name: str, x: Tensor, weight: Tensor, eps: float, dy: Tensor, add: Tensor, axis: Any, learns: bool
) -> tuple[Tensor, Tensor | None]:
    sums: Sums | None = part.sums(name, needed(weight)) if learns else None
    dx = native.rms_norm_backward(ops, x, weight, eps, dy, add, axis, sums)
    return dx, part.gradient(name) if learns else None


class AttentionBlock(Function):
    """x + attention(norm(x)). Parameters: norm; q, k, v; their biases; head norms; o; its bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, batch: Batch, prefix: str, window: int, *p: Tensor | None) -> Tensor:
        ops = shape.ops
        norm, qn, kn = vector(p[0]), vector(p[7]), vector(p[8])
        norms = (qn, kn) if qn is not None and kn is not None else None
        attention = batch.attention(shape, window, norms)
        layer, out = AttentionBlock.layers(shape, p)
        keep = ctx.needs_input_grad[0] or any(ctx.needs_input_grad[5:])
        h = native.rms_norm(ops, x, norm, shape.eps)
        q, k, v, *raw = attention.rope(layer.forward(h), keep and norms is not None)
        a, lse2 = attention.forward(q, k, v)
        ctx.save_for_backward(x, q, k, v, a, lse2, *raw, *(t for t in p if t is not None))
        ctx.raw, ctx.has = len(raw), [t is not None for t in p]
        ctx.args = shape, batch, prefix, window
        return out.forward(a, x.clone())

    @staticmethod
    def layers(shape: Shape, p: Any) -> tuple[Linear, Linear]:
        layer = Linear(shape.ops, p[1:4], [vector(b) for b in p[4:7]], kv_heads=shape.kv_heads)
        return layer, Linear(shape.ops, [p[9]], [vector(p[10])], row_parallel=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> Any:
        shape, batch, prefix, window = ctx.args
        x, q, k, v, a, lse2, *rest = ctx.saved_tensors
        raw, rest = rest[: ctx.raw], iter(rest[ctx.raw :])
        p: list[Any] = [next(rest) if has else None for has in ctx.has]
        part, ops, need, axis = batch.part, shape.ops, ctx.needs_input_grad[5:], batch.part.axis()
        layer, out = AttentionBlock.layers(shape, p)
        norms = (p[7], p[8]) if ctx.raw else None
        attention = batch.attention(shape, window, norms)
        at = prefix + "self_attn."
        dx = dx.contiguous()
        dy = native.rounded(ops, dx)
        o = linear_backward(part, out, [at + "o_proj.weight"], [p[9]], [p[10]], dy, dx, a, axis, need[9])
        dqkv = attention.backward(q, k, v, a, native.rounded(ops, out.input_gradient(dy)), lse2)
        names = [at + "q_norm.weight", at + "k_norm.weight"] if norms else []
        sums = [part.sums(name, needed(w)) for name, w in zip(names, norms or ())]
        attention.rope_backward(raw, axis if sums else None, dqkv, sums or None)
        head_norms = [part.gradient(name) for name in names] or [None, None]
        dy, h = native.rounded(ops, dqkv), native.rms_norm(ops, x, vector(p[0]), shape.eps)
        names = [f"{at}{c}_proj.weight" for c in "qkv"]
        qkv = linear_backward(part, layer, names, p[1:4], p[4:7], dy, dqkv, h, axis, any(need[1:7]))
        dh = layer.input_gradient(dy)
        name = prefix + "input_layernorm.weight"
        dx, norm = norm_backward(part, ops, name, x, vector(p[0]), shape.eps, dh, dx, axis, need[0])
        return dx, None, None, None, None, norm, *qkv, *head_norms, *o


class MlpBlock(Function):
    """x + mlp(norm(x)). Parameters: norm; gate, up; their biases; down; its bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, batch: Batch, prefix: str, *p: Tensor | None) -> Tensor:
        ops, norm = shape.ops, vector(p[0])
        layer, down = MlpBlock.layers(shape, p)
        h = native.rms_norm(ops, x, norm, shape.eps)
        keep = ctx.needs_input_grad[0] or any(ctx.needs_input_grad[4:])
        act, gate, up = native.swiglu(ops, layer.forward(h), keep)
        if keep:
            ctx.save_for_backward(x, act, gate, up, *(t for t in p if t is not None))
        ctx.has, ctx.args = [t is not None for t in p], (shape, batch, prefix)
        return down.forward(act, x.clone())

    @staticmethod
    def layers(shape: Shape, p: Any) -> tuple[Linear, Linear]:
        up = Linear(shape.ops, p[1:3], [vector(b) for b in p[3:5]])
        return up, Linear(shape.ops, [p[5]], [vector(p[6])], row_parallel=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> Any:
        shape, batch, prefix = ctx.args
        x, act, gate, up, *saved = ctx.saved_tensors
        rest = iter(saved)
        p: list[Any] = [next(rest) if has else None for has in ctx.has]
        part, ops, need, axis = batch.part, shape.ops, ctx.needs_input_grad[4:], batch.part.axis()
        layer, down = MlpBlock.layers(shape, p)
        at = prefix + "mlp."
        dx = dx.contiguous()
        dy = native.rounded(ops, dx)
        d = linear_backward(part, down, [at + "down_proj.weight"], [p[5]], [p[6]], dy, dx, act, axis, need[5])
        wide = native.swiglu_backward(ops, gate, up, down.input_gradient(dy), typed=False)
        dy, h = native.rounded(ops, wide), native.rms_norm(ops, x, vector(p[0]), shape.eps)
        names = [at + "gate_proj.weight", at + "up_proj.weight"]
        gu = linear_backward(part, layer, names, p[1:3], p[3:5], dy, wide, h, axis, any(need[1:5]))
        name = prefix + "post_attention_layernorm.weight"
        dh = layer.input_gradient(dy)
        dx, norm = norm_backward(part, ops, name, x, vector(p[0]), shape.eps, dh, dx, axis, need[0])
        return dx, None, None, None, norm, *gu, *d


class Embed(Function):
    """Rows of the embedding. The gradient of a tied one is that of the head; look-ups wait in the step (finish_lookups)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, shape: Shape, batch: Batch) -> Tensor:
        ctx.args = shape, batch, weight.shape[0], weight.dtype
        return native.embedding(shape.ops, weight, batch.ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> Any:
        shape, batch, vocab, dtype = ctx.args
        if dtype != torch.float32:
            needed(torch.empty(0, dtype=dtype))
        step = batch.part.step
        step.lookups.append((batch.ids, batch.part.token_ranks(), dx.contiguous()))
        if shape.tied or not batch.part.is_last:
            return None, None, None
        return lookups_of(step, shape.ops, vocab), None, None


def lookups_of(step: Any, ops: Context, vocab: int) -> Tensor:
    ids, ranks, dx = (torch.cat(parts) for parts in zip(*step.lookups))
    step.lookups.clear()
    return native.embedding_backward(ops, vocab, ids, ranks, step.virtual_ranks, dx)


def without(logits: Tensor, ids: Tensor) -> Tensor:
    """Ids that are never drawn have probability 0."""
    return logits.index_fill_(1, ids, float("-inf")) if len(ids) else logits


class HeadLogprobs(Function):
    """Log-probabilities of `targets` from `rows` of x: final norm, head, softmax. Parameters: norm, head."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, norm: Tensor, head: Tensor, shape: Shape, batch: Batch,
        rows: Tensor, counts: list[int], targets: Tensor, temperature: float, undrawn: Tensor,
    ) -> Tensor:  # fmt: skip
        undrawn = undrawn.to(x.device)
        rows = rows.to(x.device)
        xs, layer = x[rows], Linear(shape.ops, [head], head=True)
        out = [shape.ops.new(len(rows)) for _ in range(3)]
        weight = vector(norm)
        h = native.rms_norm(shape.ops, xs, weight, shape.eps)
        for a, b in slices(len(rows), layer.outputs, x.device):
            logits = without(layer.forward(h[a:b]), undrawn)
            parts = native.logprobs(shape.ops, logits, targets[a:b], temperature)
            for whole, part in zip(out, parts):
                whole[a:b] = part
        ctx.save_for_backward(xs, norm, head, rows, targets, out[1], out[2])
        ctx.args = shape, batch, counts, temperature, len(x), undrawn
        return out[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> Any:
        shape, batch, counts, temperature, tokens, undrawn = ctx.args
        xs, norm, head, rows, targets, maximum, total = ctx.saved_tensors
        ops, part, need, weight = shape.ops, batch.part, ctx.needs_input_grad, vector(norm)
        layer, axis, grads = Linear(ops, [head], head=True), part.axis(counts), grads.contiguous()
        h = native.rms_norm(ops, xs, weight, shape.eps)
        dy = ops.empty(len(rows), layer.outputs)
        for a, b in slices(len(rows), layer.outputs, xs.device):
            stats = maximum[a:b], total[a:b], grads[a:b]
            logits = without(layer.forward(h[a:b]), undrawn)
            native.logprobs_backward(ops, logits, targets[a:b], temperature, *stats, dy[a:b])
        [dhead, _] = linear_backward(part, layer, ["lm_head.weight"], [head], [None], dy, grads, h, axis, need[2])
        dh = layer.input_gradient(dy)
        zeros = torch.zeros_like(xs)
        dxs, dnorm = norm_backward(part, ops, "model.norm.weight", xs, weight, shape.eps, dh, zeros, axis, need[1])
        dx = torch.zeros(tokens, xs.shape[1], device=xs.device)
        dx[rows] = dxs
        return dx, dnorm, dhead, *[None] * 7


class HeadLogits(Function):
    """Logits of all rows of x. Parameters: norm, head. Its gradient's sums are over all tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, head: Tensor, shape: Shape, batch: Batch) -> Tensor:
        weight = vector(norm)
        ctx.save_for_backward(x, norm, head)
        ctx.args = shape, batch
        return Linear(shape.ops, [head], head=True).forward(native.rms_norm(shape.ops, x, weight, shape.eps))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlogits: Tensor) -> Any:
        shape, batch = ctx.args
        x, norm, head = ctx.saved_tensors
        ops, part, need, weight = shape.ops, batch.part, ctx.needs_input_grad, vector(norm)
        layer, axis, dlogits = Linear(ops, [head], head=True), batch.part.axis(), dlogits.contiguous()
        dy, h = native.rounded(ops, dlogits), native.rms_norm(ops, x, weight, shape.eps)
        [dhead, _] = linear_backward(part, layer, ["lm_head.weight"], [head], [None], dy, dlogits, h, axis, need[2])
        dh, zeros = layer.input_gradient(dy), torch.zeros_like(x)
        dx, dnorm = norm_backward(part, ops, "model.norm.weight", x, weight, shape.eps, dh, zeros, axis, need[1])
        return dx, dnorm, dhead, None, None


def slices(rows: int, width: int, device: torch.device) -> list[tuple[int, int]]:
    each = max(16, LOGITS_FLOATS[device.type] // width // 16 * 16)  # GPUs want whole vectors
    return [(a, min(rows, a + each)) for a in range(0, rows, each)]
