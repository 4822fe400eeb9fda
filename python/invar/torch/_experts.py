"""A mixture of experts: its sums, and the block of a layer as one autograd function (docs/NUMERICS.md 9, 15.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Items
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from . import _native as native
from ._blocks import Batch, Shape, linear_backward, needed, norm_backward, vector
from ._native import Axis, Context, Linear, Sums


class Experts:
    """router [E, H]; gate over up [E, 2 I, H]; down [E, H, I]; k of them serve a token."""

    def __init__(self, ops: Context, router: Tensor, up: Tensor, down: Tensor, k: int, normalize: bool) -> None:
        self.ops, self.k, self.normalize, self.width = ops, k, normalize, down.shape[2]
        self.router, self.up, self.down = Linear(ops, [router], router=True), up.detach(), down.detach()

    def layers(self, e: int) -> tuple[Linear, Linear]:
        pair, n = self.up[e], self.width
        return Linear(self.ops, [pair[:n], pair[n:]], one_chain=True), Linear(self.ops, [self.down[e]], one_chain=True)

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """x + the experts of h; and router logits, ids, weights, gate, up, act for the backward pass."""
        ops, logits = self.ops, self.router.forward(h)
        ids, weights = native.route(ops, logits, self.k, self.normalize)
        kept = [ops.empty(len(x), self.k, self.width) for _ in range(3)]
        terms = ops.new(len(x), self.k, x.shape[1])
        for e in range(len(self.up)):
            token, slot = (ids == e).nonzero(as_tuple=True)
            if len(token) == 0:
                continue
            layer, last = self.layers(e)
            act, gate, up = native.swiglu(ops, layer.forward(h[token]), keep=True)
            for whole, part in zip(kept, (gate, up, act)):
                assert part is not None
                whole[token, slot] = part
            terms[token, slot] = native.scale_rows(ops, last.forward(act), weights[token, slot])
        return native.expert_sum(ops, ids, terms, x.clone()), [logits, ids, weights, *kept]

    def backward(
        self, h: Tensor, dx: Tensor, kept: Items[Tensor], lengths: Items[int], axis_of: Callable[[list[int]], Axis],
        sums: Items[Sums],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """dh; the gradient of the router's logits, and that rounded. sums: of gate over up, and of down, or none."""
        ops, (logits, ids, weights, gate, up, act) = self.ops, kept
        sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
        terms, dweights = ops.new(len(h), self.k, dx.shape[1]), ops.new(len(h), self.k)
        for e in range(len(self.up)):
            token, slot = (ids == e).nonzero(as_tuple=True)
            layer, last = self.layers(e)
            grads, acts, w = dx[token], act[token, slot], weights[token, slot]
            da = last.input_gradient(native.rounded(ops, grads))
            dweights[token, slot] = native.expert_weight_gradient(ops, da, acts)
            da = native.scale_rows(ops, da, w)
            dy = native.rounded(ops, native.scale_rows(ops, grads.clone(), w))
            dgu = native.swiglu_backward(ops, gate[token, slot], up[token, slot], da)
            if sums:
                axis = axis_of(torch.bincount(sequence[token.cpu()], minlength=len(lengths)).tolist())
                halves = [sums[0].at(e, slice(0, self.width)), sums[0].at(e, slice(self.width, 2 * self.width))]
                last.weight_gradient(axis, dy, acts, [sums[1].at(e)])
                layer.weight_gradient(axis, dgu, h[token], halves)
            terms[token, slot] = layer.input_gradient(dgu)
        dl = native.route_backward(ops, logits, self.k, self.normalize, ids, weights, dweights)
        dy = native.rounded(ops, dl)
        return native.expert_sum(ops, ids, terms, self.router.input_gradient(dy)), dl, dy


class ExpertsBlock(Function):
    """x + experts(norm(x)). Parameters: norm; router; gate over up; down."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, batch: Batch, prefix: str, k: int, normalize: bool, *p: Any) -> Tensor:
        h = native.rms_norm(shape.ops, x, vector(p[0]), shape.eps)
        out, kept = Experts(shape.ops, p[1], p[2], p[3], k, normalize).forward(h, x)
        ctx.save_for_backward(x, *p, *kept)
        ctx.args = shape, batch, prefix, k, normalize
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> Any:
        shape, batch, prefix, k, normalize = ctx.args
        x, norm, router, up, down, *kept = ctx.saved_tensors
        ops, part, need, axis = shape.ops, batch.part, ctx.needs_input_grad[6:], batch.part.axis()
        dx, h = dx.contiguous(), native.rms_norm(ops, x, vector(norm), shape.eps)
        names = [f"{prefix}mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")]
        learns = need[2] or need[3]
        sums = [part.sums(name, needed(w)) for name, w in zip(names, (up, down))] if learns else []
        experts = Experts(ops, router, up, down, k, normalize)
        dh, dl, dy = experts.backward(h, dx, kept, part.lengths, part.axis, sums)
        names_of_router = [prefix + "mlp.gate.weight"]
        drouter, _ = linear_backward(part, experts.router, names_of_router, [router], [None], dy, dl, h, axis, need[1])
        name = prefix + "post_attention_layernorm.weight"
        dx, dnorm = norm_backward(part, ops, name, x, vector(norm), shape.eps, dh, dx, axis, need[0])
        return dx, *[None] * 5, dnorm, drouter, *([part.gradient(name) for name in names] if learns else [None, None])
