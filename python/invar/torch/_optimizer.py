"""AdamW of the law (docs/NUMERICS.md 15.10), and the hash of the weights (15.12)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _check
from .._errors import Status
from .._library import check, ffi, lib, new_error
from . import _native as native
from ._blocks import lookups_of
from ._distributed import is_ddp, is_fsdp, sum_over, world_of
from ._native import refuse
from ._step import Step

BLOCK, GROUP = 4096, 16  # elements of a block, blocks of a group


@dataclass(frozen=True)
class Part:
    """A tensor of the checkpoint: a parameter, or an expert's rows of one."""

    name: str
    parameter: Any
    index: tuple[Any, ...] = ()


def parts_of(model: Any) -> list[Part]:
    """The trained tensors of a patched model, in byte order of their names in the checkpoint; a tied head is none of
    its own."""
    inner = model.module if is_ddp(model) else model
    if getattr(inner, "_invar", None) is None:
        raise refuse(f"wanted a patched model, found {type(inner).__name__}", Status.INVALID)
    parts = [part for name, p in inner.named_parameters() for part in expert_parts(name, p)]
    return sorted(parts, key=lambda part: part.name.encode())


def expert_parts(name: str, p: Any) -> list[Part]:
    at, _, kind = name.rpartition(".")
    if not at.endswith(".experts"):
        return [Part(name, p)]
    if kind == "down_proj":
        return [Part(f"{at}.{e}.down_proj.weight", p, (e,)) for e in range(p.shape[0])]
    width = p.shape[1] // 2
    halves = {"gate_proj": slice(0, width), "up_proj": slice(width, 2 * width)}
    return [Part(f"{at}.{e}.{half}.weight", p, (e, rows)) for e in range(p.shape[0]) for half, rows in halves.items()]


class Gathered:
    """Tensors of parts, whole; the last sharded one is kept for the other parts of its parameter."""

    def __init__(self) -> None:
        self._of: Any = None
        self._whole = torch.empty(0)

    def __call__(self, tensor: Any, part: Part) -> Tensor:
        if tensor is not self._of:
            self._of, self._whole = tensor, whole(tensor)
        return self._whole[part.index].contiguous()


def whole(tensor: Any) -> Tensor:
    """A sharded tensor, gathered."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().contiguous()


def local(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def weights_hash(model: Any) -> str:
    """SHA-256 of the float32 weights, as TrainerMetrics.weights_hash. Collective for a sharded model."""
    gathered, size = Gathered(), 4 * BLOCK
    blocks: list[bytes] = []
    for part in parts_of(model):
        array: Any = gathered(part.parameter, part).float().flatten().cpu().numpy()
        data = memoryview(array).cast("B")
        padded = (bytes(data[at : at + size]).ljust(size, b"\0") for at in range(0, len(data), size))
        blocks += [hashlib.sha256(block).digest() for block in padded]
    groups = [hashlib.sha256(b"".join(blocks[at : at + GROUP])).digest() for at in range(0, len(blocks), GROUP)]
    return hashlib.sha256(b"".join(groups)).hexdigest()


def check_group(group: dict[str, Any]) -> tuple[float, float, float, tuple[float, float]]:
    """Learning rate, eps, weight decay and betas, as the constructor or a scheduler set them."""
    rate, eps, decay = (_check.number(group[name], f"AdamW: {name}", 0) for name in ("lr", "eps", "weight_decay"))
    betas = _check.listing(group["betas"], "AdamW: betas", "two numbers")
    if len(betas) != 2:
        _check.wrong("AdamW: betas", "two numbers", group["betas"])
    first, second = (_check.number(beta, f"AdamW: betas[{i}]", 0, 1) for i, beta in enumerate(betas))
    return rate, eps, decay, (first, second)


class AdamW(torch.optim.Optimizer):
    """AdamW whose weights are those of `invar train` and invar.Trainer in every bit, for any number of processes and
    passes. Learning rates and weight decay are those of param_groups[0], as schedulers set them. Tensors of one
    dimension do not decay unless decay_all says so."""

    def __init__(
        self,
        model: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decay_all: bool = False,
    ) -> None:
        decay_all = _check.flag(decay_all, "AdamW: decay_all")
        check_group({"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._model, self._parts, self._decay_all = model, parts_of(model), decay_all
        inner = model.module if is_ddp(model) else model
        self._parameters = list(inner.named_parameters())
        for name, p in self._parameters:
            if p.dtype != torch.float32 or not p.requires_grad:
                raise refuse(f"{name}: wanted float32 and requires_grad, found {p.dtype}, {p.requires_grad}")
        if (is_ddp(model) or is_fsdp(model)) and not getattr(model, "_invar_prepared", False):
            raise refuse("AdamW: wanted a DDP or FSDP2 model after prepare(): torch's own reductions are not the law's sums")
        self._shape = inner._invar
        super().__init__([p for _, p in self._parameters], dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self.gradient_norm = 0.0  # of the mean gradient, before clipping

    def finish(self, step: Step) -> None:
        """Adds the look-ups of a tied embedding to its gradient, which so far is the head's: both are sums over all
        virtual ranks, then added (15.6). step() does so if it is given the Step."""
        if not step.lookups:
            return
        name, p = next(item for item in self._parameters if item[0].endswith("embed_tokens.weight"))
        added = lookups_of(step, self._shape.ops, p.shape[0])
        if step.world > 1:
            added = sum_over(added, step.group)
        if p.grad is None:
            raise refuse(f"{name}: wanted a gradient, found none", Status.INVALID)
        with torch.no_grad():
            if hasattr(p.grad, "full_tensor"):
                from torch.distributed.tensor import distribute_tensor

                gradient: Any = p.grad
                added = local(distribute_tensor(added, gradient.device_mesh, gradient.placements, src_data_rank=None))
            grad = local(p.grad)
            native.tree_sum([grad, added.contiguous()], grad)

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None, *, step: Step, denominator: float, max_norm: float = 0.0
    ) -> None:
        """One step from the gradients of `-(coefficients * logprobs).sum()` over the whole Step. denominator: of the
        whole batch, the sum of all masks for fine-tuning; gradients are divided by it here and nowhere else. max_norm:
        a larger norm of the mean gradient is scaled down to it; 0: none is. InvarError with NOT_FINITE: nothing
        changed. Collective for a sharded model."""
        _check.instance(step, "AdamW: step", Step)
        denominator = _check.number(denominator, "AdamW: denominator", 0)
        max_norm = _check.number(max_norm, "AdamW: max_norm", 0)
        rate, eps, decay, betas = check_group(self.param_groups[0])
        if closure is not None:
            raise refuse("AdamW: wanted no closure")
        if step.world != world_of(self._model):
            raise refuse(
                f"AdamW: wanted a Step of the model's {world_of(self._model)} processes, found {step.world}", Status.INVALID
            )
        if step.sums:
            raise refuse("AdamW: wanted a step whose last pass went backward", Status.INVALID)
        self.finish(step)
        for name, p in self._parameters:
            if p.grad is None:
                raise refuse(f"{name}: wanted a gradient, found none: is this the last pass of the step?", Status.INVALID)
        gathered = Gathered()
        self._shape.ops.finish()
        sums = torch.cat([self._block_sums(gathered(part.parameter.grad, part)) for part in self._parts]).cpu()
        norm, scale, err = ffi.new("double *"), ffi.new("float *"), new_error()
        at = ffi.cast("double *", sums.data_ptr())
        status = lib().iv_ops_gradient_scale(at, len(sums), denominator, max_norm, norm, scale, err)
        self.gradient_norm = norm[0]
        check(status, err)
        o = ffi.new("iv_ops_adamw *")
        o.learning_rate, o.eps, o.weight_decay, o.scale = rate, eps, decay, scale[0]
        o.beta1, o.beta2 = betas
        with torch.no_grad():
            for _, p in self._parameters:
                self._update(p, o)

    def _block_sums(self, g: Tensor) -> Tensor:
        ops = native.context(torch.float32, device=g.device)
        out = ops.new(-(-g.numel() // BLOCK), dtype=torch.float64)
        ops.call("iv_ops_block_sums", ops.floats(g, "gradient"), g.numel(), ffi.cast("double *", out.data_ptr()))
        return out

    def _update(self, p: Any, o: Any) -> None:
        state = self.state[p]
        if not state:
            state["step"], state["exp_avg"], state["exp_avg_sq"] = 0, torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        o.step, o.decay = state["step"], self._decay_all or p.dim() > 1
        w, g, m, v = (local(t) for t in (p, p.grad, state["exp_avg"], state["exp_avg_sq"]))
        ops = native.context(torch.float32, device=w.device)
        at = [ops.floats(t.detach(), "AdamW") for t in (w, m, v)]
        ops.call("iv_ops_adamw_step", o, ops.floats(g, "gradient"), g.numel(), *at)


