"""Sums over processes in the law's tree, by torch's hooks: a communication hook of DDP, a reduce-scatter of FSDP2."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._native import refuse, tree_sum


def is_ddp(model: Any) -> bool:
    return isinstance(model, torch.nn.parallel.DistributedDataParallel)


def is_fsdp(model: Any) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def world_of(model: Any) -> int:
    """Processes that add up a model's gradients."""
    if is_ddp(model):
        return int(dist.get_world_size(model.process_group))
    return int(next(model.parameters()).device_mesh.size()) if is_fsdp(model) else 1


def sum_slices(flat: Tensor, group: Any) -> Tensor:
    """This process's slice, one of `world` equal ones, of the tree sum of all processes' `flat`."""
    world = dist.get_world_size(group)
    if flat.dtype != torch.float32 or flat.numel() % world:
        raise refuse(f"sum over processes: wanted float32, a multiple of {world}, found {flat.numel()} of {flat.dtype}")
    received = torch.empty_like(flat)
    dist.all_to_all_single(received, flat, group=group)
    parts = list(received.view(world, -1))
    return tree_sum(parts, torch.empty_like(parts[0]))


def sum_over(tensor: Tensor, group: Any = None) -> Tensor:
    """The tree sum of all processes' tensors, on every process."""
    world = dist.get_world_size(group)
    flat = torch.zeros(-(-tensor.numel() // world) * world, device=tensor.device)
    flat[: tensor.numel()] = tensor.flatten()
    dist.all_gather_into_tensor(flat, sum_slices(flat, group), group=group)
    return flat[: tensor.numel()].view_as(tensor)


def ddp_hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """For DistributedDataParallel.register_comm_hook(process_group, ddp_hook)."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(sum_over(bucket.buffer(), group))
    return future


class ReduceScatter:
    """For FSDPModule.set_custom_reduce_scatter: the sum, whatever the operation asked for: the law divides once, in
    the optimizer."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        output_tensor.copy_(sum_slices(input_tensor, group).view_as(output_tensor))


def prepare(model: Any) -> Any:
    """Installs the law's sums in a DDP model, or in a model to whose layers and itself fully_shard was applied."""
    if is_ddp(model):
        model.register_comm_hook(model.process_group, ddp_hook)
    elif is_fsdp(model):
        mesh = next(model.parameters()).device_mesh
        if mesh.ndim != 1:
            raise refuse(f"prepare: wanted a mesh of one dimension, found {mesh}: hybrid sharding adds with torch's own all-reduce")
        for module in model.modules():
            if is_fsdp(module):
                module.set_custom_reduce_scatter(ReduceScatter())
    else:
        raise refuse(f"prepare: wanted a DistributedDataParallel or fully_shard model, found {type(model).__name__}")
    model._invar_prepared = True
    return model


@contextmanager
def last_only(model: Any, is_last: bool) -> Iterator[None]:
    """Gradients exist in the last pass alone, so only that one communicates them."""
    if model is not None and is_fsdp(model):
        model.set_requires_gradient_sync(is_last)
    with model.no_sync() if model is not None and is_ddp(model) and not is_last else nullcontext():
        yield
