"""A mixture of experts as one autograd function (docs/NUMERICS.md 9, 15.9)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from . import _native as native
from ._blocks import Batch, Shape, linear_backward, needed, norm_backward, vector
from ._native import Linear


class ExpertsBlock(Function):
    """x + experts(norm(x)). Parameters: norm; router [E, H]; gate over up [E, 2 I, H]; down [E, H, I]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, batch: Batch, prefix: str, k: int, normalize: bool, *p: Any) -> Tensor:
        ops, (norm, router, up, down) = shape.ops, p
        h = native.rms_norm(ops, x, vector(norm), shape.eps)
        logits = Linear(ops, [router], router=True).forward(h)
        ids, weights = native.route(ops, logits, k, normalize)
        width = down.shape[2]
        kept = [ops.empty(len(x), k, width) for _ in range(3)]  # gate, up, act
        terms = torch.empty(len(x), k, x.shape[1])
        for e in range(len(router)):
            token, slot = (ids == e).nonzero(as_tuple=True)
            if len(token) == 0:
                continue
            layer, last = layers_of(shape, up, down, e)
            act, gate, raised = native.swiglu(ops, layer.forward(h[token]), keep=True)
            for whole, part in zip(kept, (gate, raised, act)):
                assert part is not None
                whole[token, slot] = part
            terms[token, slot] = native.scale_rows(ops, last.forward(act), weights[token, slot])
        ctx.save_for_backward(x, logits, ids, weights, *kept, *p)
        ctx.args = shape, batch, prefix, k, normalize
        return native.expert_sum(ops, ids, terms, x.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> Any:
        shape, batch, prefix, k, normalize = ctx.args
        x, logits, ids, weights, gate, raised, act, norm, router, up, down = ctx.saved_tensors
        ops, part, need, axis = shape.ops, batch.part, ctx.needs_input_grad[6:], batch.part.axis()
        dx, h, width = dx.contiguous(), native.rms_norm(ops, x, vector(norm), shape.eps), down.shape[2]
        names = [f"{prefix}mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")]
        learns = need[2] or need[3]
        sums = [part.sums(name, needed(w).shape) for name, w in zip(names, (up, down))] if learns else []
        sequence = torch.repeat_interleave(torch.arange(len(part.lengths)), torch.tensor(part.lengths, dtype=torch.int64))
        terms, dweights = torch.empty(len(x), k, x.shape[1]), torch.empty(len(x), k)
        for e in range(len(router)):
            token, slot = (ids == e).nonzero(as_tuple=True)
            layer, last = layers_of(shape, up, down, e)
            of_axis = part.axis(torch.bincount(sequence[token], minlength=len(part.lengths)).tolist())
            grads, acts, w = dx[token], act[token, slot], weights[token, slot]
            da = last.input_gradient(native.rounded(ops, grads))
            dweights[token, slot] = native.expert_weight_gradient(ops, da, acts)
            da = native.scale_rows(ops, da, w)
            dy = native.rounded(ops, native.scale_rows(ops, grads.clone(), w))
            dgu = native.swiglu_backward(ops, gate[token, slot], raised[token, slot], da)
            if learns:
                last.weight_gradient(of_axis, dy, acts, [sums[1].at(e)])
                halves = [sums[0].at(e, slice(0, width)), sums[0].at(e, slice(width, 2 * width))]
                layer.weight_gradient(of_axis, dgu, h[token], halves)
            terms[token, slot] = layer.input_gradient(dgu)
        dl = native.route_backward(ops, logits, k, normalize, ids, weights, dweights)
        dy, route = native.rounded(ops, dl), Linear(ops, [router], router=True)
        [drouter, _] = linear_backward(part, route, [prefix + "mlp.gate.weight"], [router], [None], dy, dl, h, axis, need[1])
        dh = native.expert_sum(ops, ids, terms, route.input_gradient(dy))
        name = prefix + "post_attention_layernorm.weight"
        dx, dnorm = norm_backward(part, ops, name, x, vector(norm), shape.eps, dh, dx, axis, need[0])
        return dx, *[None] * 5, dnorm, drouter, *([part.gradient(name) for name in names] if learns else [None, None])


def layers_of(shape: Shape, up: Tensor, down: Tensor, e: int) -> tuple[Linear, Linear]:
    width, pair = down.shape[2], up.detach()[e]
    layer = Linear(shape.ops, [pair[:width], pair[width:]], one_chain=True)
    return layer, Linear(shape.ops, [down.detach()[e]], one_chain=True)
