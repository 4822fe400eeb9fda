"""The ops of the law as torch.library operators, `torch.ops.invar.*`, with autograd and fake kernels.

GEMM inputs have the GEMM type, all other tensors float32. `sequences` is an int64 tensor [n, 2] of the tokens and the
virtual rank of each sequence, ranks ascending; a gradient is the sum over all of them, so a call holds a whole step.
All tensors of a call are on one device, a CPU or a
GPU; `sequences` and token ids may be on the CPU, where they are read (ids on a GPU are copied, which waits for it).
torch rounds the gradient of a 16-bit tensor to its type. Where the law keeps float32 (norms, SwiGLU) a chain of these
ops is the law in float32 alone; the blocks of patch() have no such boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _native as native
from .._errors import Status
from .._library import ffi
from ._experts import Experts
from ._native import Attention, Axis, Context, Linear, Sums, refuse

Backward = tuple[Callable[..., Any], Callable[..., Any]]


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any], backward: Backward | None = None) -> Any:
    op = torch.library.custom_op(f"invar::{name}", run, mutates_args=(), schema=schema, device_types=("cpu", "cuda"))
    op.register_fake(fake)
    if backward:
        op.register_autograd(backward[1], setup_context=backward[0])
    return op


def ops_of(dtype: torch.dtype, arithmetic: str, like: Tensor) -> Context:
    """On a tensor's device."""
    return native.context(dtype, arithmetic, like.device)


def axis_of(sequences: Tensor, virtual_ranks: int) -> Axis:
    rows = sequences.tolist()
    return Axis([r for _, r in rows], virtual_ranks, 0, len(rows), [n for n, _ in rows])


def lengths_of(sequences: Tensor) -> list[int]:
    return [n for n, _ in sequences.tolist()]


def save(*tensors: int) -> Callable[..., None]:
    """A setup_context that keeps all inputs, and outputs[i] for the given i."""

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        outputs = output if isinstance(output, (tuple, list)) else [output]
        ctx.mark_non_differentiable(*(outputs[i] for i in tensors if i))
        flat = [t for t in inputs if isinstance(t, Tensor)]
        lists = [t for t in inputs if isinstance(t, (tuple, list)) and t and isinstance(t[0], Tensor)]
        ctx.save_for_backward(*flat, *(t for items in lists for t in items), *(outputs[i] for i in tensors))
        ctx.plain = [None if isinstance(t, Tensor) else len(t) if isinstance(t, (tuple, list)) else t for t in inputs]

    return setup


# ---- linear

# Which sums tensor-parallel ranks divide decides their leaves (NUMERICS.md 3.3).
KINDS: dict[str, dict[str, bool]] = {
    "column_parallel": {}, "row_parallel": {"row_parallel": True}, "router": {"router": True},
    "expert": {"one_chain": True}, "head": {"head": True},
}  # fmt: skip


def kind_of(layer: str) -> dict[str, bool]:
    if layer not in KINDS:
        raise refuse(f"linear: layer: wanted one of {', '.join(KINDS)}, found {layer!r}", Status.INVALID)
    return KINDS[layer]


def _linear(
    x: Tensor, weights: list[Tensor], biases: list[Tensor], sequences: Tensor, virtual_ranks: int, kv_heads: int,
    layer: str, arithmetic: str,
) -> Tensor:  # fmt: skip
    ops = ops_of(x.dtype, arithmetic, x)
    return Linear(ops, weights, biases, kv_heads=kv_heads, **kind_of(layer)).forward(x)


def _linear_backward(
    dy: Tensor, x: Tensor, weights: list[Tensor], biases: list[Tensor], sequences: Tensor, virtual_ranks: int,
    kv_heads: int, layer: str, arithmetic: str,
) -> list[Tensor]:  # fmt: skip
    ops, axis = ops_of(x.dtype, arithmetic, x), axis_of(sequences, virtual_ranks)
    linear = Linear(ops, weights, biases, kv_heads=kv_heads, **kind_of(layer))
    typed, sums = native.rounded(ops, dy), [Sums(w.shape, 0, x.device) for w in weights]
    linear.weight_gradient(axis, typed, x, sums)
    out, first = [native.rounded(ops, linear.input_gradient(typed)), *(s.sum for s in sums)], 0
    for w, bias in zip(weights, biases):
        total = Sums(bias.shape, 0, x.device)
        native.column_sums(ops, axis, dy, first, w.shape[0], total)
        out.append(total.sum)
        first += w.shape[0]
    return out


LINEAR = "Tensor x, Tensor[] weights, Tensor[] biases, Tensor sequences, int virtual_ranks, int kv_heads, str layer, str arithmetic"


def _linear_grads(ctx: Any, dy: Tensor) -> Any:
    x, sequences, *rest = ctx.saved_tensors
    count, biased, plain = ctx.plain[1], ctx.plain[2], ctx.plain[4:]
    weights, biases = rest[:count], rest[count : count + biased]
    dx, *grads = linear_backward(dy.contiguous(), x, weights, biases, sequences, *plain)
    return dx, grads[:count], grads[count:], *[None] * 5


linear_backward = define(
    "linear_backward", f"(Tensor dy, {LINEAR}) -> Tensor[]", _linear_backward,
    lambda dy, x, weights, biases, *_: [torch.empty_like(x), *(torch.empty_like(w) for w in [*weights, *biases])],
)  # fmt: skip
linear = define(
    "linear", f"({LINEAR}) -> Tensor", _linear,
    lambda x, weights, *_: x.new_empty(x.shape[0], sum(w.shape[0] for w in weights), dtype=torch.float32),
    (save(), _linear_grads),
)  # fmt: skip


# ---- norm, SwiGLU


def _rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, sequences: Tensor, virtual_ranks: int, eps: float) -> list[Tensor]:
    sums = Sums(weight.shape, 0, x.device)
    ops, axis = ops_of(torch.float32, "fma32", x), axis_of(sequences, virtual_ranks)
    dx = native.rms_norm_backward(ops, x, weight, eps, dy, None, axis, sums)
    return [dx, sums.sum]


def _rms_norm_grads(ctx: Any, dy: Tensor) -> Any:
    x, weight, sequences = ctx.saved_tensors
    return *rms_norm_backward(dy.float().contiguous(), x, weight, sequences, ctx.plain[3], ctx.plain[4]), *[None] * 4


def _dtype(name: str) -> torch.dtype:
    return native.dtype_of(name)


rms_norm_backward = define(
    "rms_norm_backward", "(Tensor dy, Tensor x, Tensor weight, Tensor sequences, int virtual_ranks, float eps) -> Tensor[]",
    _rms_norm_backward, lambda dy, x, weight, *_: [torch.empty_like(x), torch.empty_like(weight)],
)  # fmt: skip
rms_norm = define(
    "rms_norm", "(Tensor x, Tensor weight, Tensor sequences, int virtual_ranks, float eps, str dtype) -> Tensor",
    lambda x, weight, sequences, virtual_ranks, eps, dtype: native.rms_norm(ops_of(_dtype(dtype), "fma32", x), x, weight, eps),
    lambda x, weight, sequences, virtual_ranks, eps, dtype: torch.empty_like(x, dtype=_dtype(dtype)),
    (save(), _rms_norm_grads),
)  # fmt: skip


def _swiglu(gate_up: Tensor, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    out, gate, up = native.swiglu(ops_of(_dtype(dtype), "fma32", gate_up), gate_up, keep=True)
    assert gate is not None and up is not None
    return out, gate, up


def _swiglu_fake(gate_up: Tensor, dtype: str) -> tuple[Tensor, ...]:
    half = [gate_up.shape[0], gate_up.shape[1] // 2]
    return tuple(gate_up.new_empty(half, dtype=_dtype(dtype)) for _ in range(3))


def _swiglu_grads(ctx: Any, da: Tensor, *_: Any) -> Any:
    _gate_up, gate, up = ctx.saved_tensors
    return swiglu_backward(da.float().contiguous(), gate, up), None


swiglu_backward = define(
    "swiglu_backward", "(Tensor da, Tensor gate, Tensor up) -> Tensor",
    lambda da, gate, up: native.swiglu_backward(ops_of(gate.dtype, "fma32", gate), gate, up, da, typed=False),
    lambda da, gate, up: da.new_empty(da.shape[0], 2 * da.shape[1]),
)  # fmt: skip
swiglu = define(
    "swiglu", "(Tensor gate_up, str dtype) -> (Tensor out, Tensor gate, Tensor up)", _swiglu, _swiglu_fake,
    (save(1, 2), _swiglu_grads),
)  # fmt: skip


# ---- rotation and attention


def _attention_of(ops: Context, sequences: Tensor, heads: int, kv_heads: int, head_dim: int, window: int = 0, **more: Any) -> Attention:
    return Attention(ops, lengths_of(sequences), heads, kv_heads, head_dim, window=window, **more)


def _rope(qkv: Tensor, cosine: Tensor, sine: Tensor, sequences: Tensor, heads: int, kv_heads: int, dtype: str) -> list[Tensor]:
    attention = _attention_of(ops_of(_dtype(dtype), "fma32", qkv), sequences, heads, kv_heads, 2 * cosine.shape[1], tables=(cosine, sine))
    return attention.rope(qkv.clone())


def _rope_fake(qkv: Tensor, cosine: Tensor, sine: Tensor, sequences: Tensor, heads: int, kv_heads: int, dtype: str) -> list[Tensor]:
    widths = [n * 2 * cosine.shape[1] for n in (heads, kv_heads, kv_heads)]
    return [qkv.new_empty(qkv.shape[0], n, dtype=_dtype(dtype)) for n in widths]


def _rope_backward(dqkv: Tensor, cosine: Tensor, sine: Tensor, sequences: Tensor, heads: int, kv_heads: int) -> Tensor:
    out = dqkv.clone()
    ops = ops_of(torch.float32, "fma32", out)
    _attention_of(ops, sequences, heads, kv_heads, 2 * cosine.shape[1], tables=(cosine, sine)).rope_backward([], None, out, None)
    return out


def _rope_grads(ctx: Any, grads: Any) -> Any:
    _qkv, cosine, sine, sequences = ctx.saved_tensors
    dqkv = torch.cat([g.float() for g in grads], dim=1)
    return rope_backward(dqkv, cosine, sine, sequences, ctx.plain[4], ctx.plain[5]), *[None] * 6


rope_backward = define(
    "rope_backward", "(Tensor dqkv, Tensor cosine, Tensor sine, Tensor sequences, int heads, int kv_heads) -> Tensor",
    _rope_backward, lambda dqkv, *_: torch.empty_like(dqkv),
)  # fmt: skip
rope = define(
    "rope", "(Tensor qkv, Tensor cosine, Tensor sine, Tensor sequences, int heads, int kv_heads, str dtype) -> Tensor[]",
    _rope, _rope_fake, (save(), _rope_grads),
)  # fmt: skip


def _attention(q: Tensor, k: Tensor, v: Tensor, sequences: Tensor, heads: int, kv_heads: int, window: int, arithmetic: str) -> tuple[Tensor, Tensor]:
    ops = ops_of(q.dtype, arithmetic, q)
    return _attention_of(ops, sequences, heads, kv_heads, q.shape[1] // heads, window).forward(q, k, v)


def _attention_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse2: Tensor, sequences: Tensor, heads: int,
    kv_heads: int, window: int, arithmetic: str,
) -> list[Tensor]:  # fmt: skip
    ops = ops_of(q.dtype, arithmetic, q)
    attention = _attention_of(ops, sequences, heads, kv_heads, q.shape[1] // heads, window)
    dqkv = attention.backward(q, k, v, out, dout, lse2)
    parts = torch.split(dqkv, [q.shape[1], k.shape[1], v.shape[1]], dim=1)
    return [native.rounded(ops, part.contiguous()).clone() for part in parts]


def _attention_grads(ctx: Any, dout: Tensor, _lse2: Any) -> Any:
    q, k, v, sequences, out, lse2 = ctx.saved_tensors
    return *attention_backward(dout.contiguous(), q, k, v, out, lse2, sequences, *ctx.plain[4:]), *[None] * 5


attention_backward = define(
    "attention_backward",
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse2, Tensor sequences, int heads, int kv_heads, int window, str arithmetic) -> Tensor[]",
    _attention_backward, lambda dout, q, k, v, *_: [torch.empty_like(t) for t in (q, k, v)],
)  # fmt: skip
attention = define(
    "attention",
    "(Tensor q, Tensor k, Tensor v, Tensor sequences, int heads, int kv_heads, int window, str arithmetic) -> (Tensor out, Tensor lse2)",
    _attention,
    lambda q, k, v, sequences, heads, *_: (torch.empty_like(q), q.new_empty(q.shape[0], heads, dtype=torch.float32)),
    (save(0, 1), _attention_grads),
)  # fmt: skip


# ---- embedding, log-probabilities


def _embedding_backward(dx: Tensor, ids: Tensor, sequences: Tensor, virtual_ranks: int, vocab: int) -> Tensor:
    counts, ranks = sequences.cpu()[:, 0], sequences.cpu()[:, 1].to(torch.int32)
    of_tokens = torch.repeat_interleave(ranks, counts)
    return native.embedding_backward(ops_of(torch.float32, "fma32", dx), vocab, ids, of_tokens, virtual_ranks, dx)


def _embedding_grads(ctx: Any, dx: Tensor) -> Any:
    weight, ids, sequences = ctx.saved_tensors
    return embedding_backward(dx.contiguous(), ids, sequences, ctx.plain[3], weight.shape[0]), *[None] * 4


embedding_backward = define(
    "embedding_backward", "(Tensor dx, Tensor ids, Tensor sequences, int virtual_ranks, int vocab) -> Tensor",
    _embedding_backward, lambda dx, ids, sequences, virtual_ranks, vocab: dx.new_empty(vocab, dx.shape[1]),
)  # fmt: skip
embedding = define(
    "embedding", "(Tensor weight, Tensor ids, Tensor sequences, int virtual_ranks, str dtype) -> Tensor",
    lambda weight, ids, sequences, virtual_ranks, dtype: native.embedding(ops_of(_dtype(dtype), "fma32", weight), weight, ids),
    lambda weight, ids, *_: weight.new_empty(ids.shape[0], weight.shape[1], dtype=torch.float32),
    (save(), _embedding_grads),
)  # fmt: skip


def _selected_logprobs_backward(grads: Tensor, logits: Tensor, ids: Tensor, maximum: Tensor, total: Tensor, temperature: float) -> Tensor:
    out = torch.empty_like(logits)
    native.logprobs_backward(ops_of(torch.float32, "fma32", logits), logits, ids, temperature, maximum, total, grads, out)
    return out


def _selected_logprobs_grads(ctx: Any, grads: Tensor, *_: Any) -> Any:
    logits, ids, maximum, total = ctx.saved_tensors
    return selected_logprobs_backward(grads.contiguous(), logits, ids, maximum, total, ctx.plain[2]), None, None


selected_logprobs_backward = define(
    "selected_logprobs_backward", "(Tensor grads, Tensor logits, Tensor ids, Tensor maximum, Tensor total, float temperature) -> Tensor",
    _selected_logprobs_backward, lambda grads, logits, *_: torch.empty_like(logits),
)  # fmt: skip
selected_logprobs = define(
    "selected_logprobs", "(Tensor logits, Tensor ids, float temperature) -> (Tensor logprobs, Tensor maximum, Tensor total)",
    lambda logits, ids, temperature: native.logprobs(ops_of(torch.float32, "fma32", logits), logits, ids, temperature),
    lambda logits, ids, temperature: tuple(logits.new_empty(logits.shape[0]) for _ in range(3)),
    (save(1, 2), _selected_logprobs_grads),
)  # fmt: skip


# ---- experts: x + the experts of h


def _experts(
    x: Tensor, h: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, sequences: Tensor, virtual_ranks: int, k: int,
    normalize: bool, arithmetic: str,
) -> list[Tensor]:  # fmt: skip
    out, kept = Experts(ops_of(h.dtype, arithmetic, h), router, gate_up, down, k, normalize).forward(h, x)
    return [out, *kept]


def _experts_fake(x: Tensor, h: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, *rest: Any) -> list[Tensor]:
    rows, k = x.shape[0], rest[2]
    wide = [h.new_empty(rows, k, down.shape[2]) for _ in range(3)]
    ids, weights = x.new_empty(rows, k, dtype=torch.int32), x.new_empty(rows, k)
    return [torch.empty_like(x), x.new_empty(rows, router.shape[0]), ids, weights, *wide]


def _experts_backward(
    dx: Tensor, h: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, kept: list[Tensor], sequences: Tensor,
    virtual_ranks: int, k: int, normalize: bool, arithmetic: str,
) -> list[Tensor]:  # fmt: skip
    ops, ranks = ops_of(h.dtype, arithmetic, h), [rank for _, rank in sequences.tolist()]
    experts, sums = Experts(ops, router, gate_up, down, k, normalize), [Sums(w.shape, 0, h.device) for w in (router, gate_up, down)]

    def axis(tokens: list[int]) -> Axis:
        return Axis(ranks, virtual_ranks, 0, len(ranks), tokens)

    lengths = lengths_of(sequences)
    dh, _, dy = experts.backward(h, dx, kept, lengths, axis, sums[1:])
    experts.router.weight_gradient(axis(lengths), dy, h, sums[:1])
    return [native.rounded(ops, dh).clone(), *(s.sum for s in sums)]


def _experts_grads(ctx: Any, grads: Any) -> Any:
    _x, h, router, gate_up, down, sequences, *kept = ctx.saved_tensors
    dx = grads[0].contiguous()
    found = experts_backward(dx, h, router, gate_up, down, kept, sequences, *ctx.plain[6:])
    return dx.clone(), *found, *[None] * 5


EXPERTS = "Tensor h, Tensor router, Tensor gate_up, Tensor down, "
LAYOUT = "Tensor sequences, int virtual_ranks, int k, bool normalize, str arithmetic"
experts_backward = define(
    "experts_backward", f"(Tensor dx, {EXPERTS}Tensor[] kept, {LAYOUT}) -> Tensor[]", _experts_backward,
    lambda dx, h, router, gate_up, down, *_: [torch.empty_like(t) for t in (h, router, gate_up, down)],
)  # fmt: skip
experts = define(
    "experts", f"(Tensor x, {EXPERTS}{LAYOUT}) -> Tensor[]", _experts, _experts_fake,
    (save(1, 2, 3, 4, 5, 6), _experts_grads),
)  # fmt: skip


# ---- AdamW


@torch.library.custom_op(
    "invar::adamw_", mutates_args=("w", "m", "v"), device_types=("cpu", "cuda"),
    schema="(Tensor gradient, Tensor(a!) w, Tensor(b!) m, Tensor(c!) v, float scale, float lr, float beta1, float beta2, "
    "float eps, float weight_decay, bool decay, int step) -> ()",
)  # fmt: skip
def adamw_(
    gradient: Tensor, w: Tensor, m: Tensor, v: Tensor, scale: float, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float, decay: bool, step: int,
) -> None:  # fmt: skip
    """One step of a tensor; step counts from 1."""
    o, n = ffi.new("iv_ops_adamw *"), gradient.numel()
    o.learning_rate, o.beta1, o.beta2, o.eps, o.weight_decay = lr, beta1, beta2, eps, weight_decay
    o.step, o.scale, o.decay = step, scale, decay
    ops = ops_of(torch.float32, "fma32", w)
    at = [ops.floats(t, "adamw_", n) for t in (gradient, w, m, v)]
    ops.call("iv_ops_adamw_step", o, at[0], n, *at[1:])


@adamw_.register_fake
def _adamw_fake(*_: Any) -> None:
    return None
