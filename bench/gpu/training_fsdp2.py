#!/usr/bin/env python3
"""training_fsdp2.py CONFIG_FOLDER: the training step of training_torch.py under PyTorch's FSDP2, the peer of training_ranks.py.

    torchrun --nproc-per-node 4 bench/gpu/training_fsdp2.py bench/gpu/configs/qwen3-0.6b [--reshard no]

Each layer is compiled and sharded (fully_shard): float32 weights, bfloat16 products, gradients reduced in float32; fused
AdamW, the norm of the gradient clipped to 1. A process has sequences / processes of the batch. Rank 0 prints one line of JSON:
medians of the steps after warm-up, and the peak memory of all GPUs.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.attention import sdpa_kernel
from training_torch import BACKENDS, HeadLoss, Shape, loss_of, make_layer


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--sequences", type=int, default=8, help="of all processes")
    p.add_argument("--micro", type=int, default=8, help="sequences of a pass of one process")
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--warm-up", type=int, default=3)
    p.add_argument("--reshard", default="no", choices=("no", "yes"), help="weights of layers are gathered again for the backward pass")
    p.add_argument("--attention", default="cudnn", choices=BACKENDS)
    p.add_argument("--device", default="cuda")
    p.add_argument("--no-compile", action="store_true")
    return p.parse_args()


def weight(*size):
    w = torch.empty(size)
    return nn.Parameter(w.fill_(1) if len(size) == 1 else w.normal_(0, 0.02))


class Layer(nn.Module):
    def __init__(self, s, function):
        super().__init__()
        heads = (s.heads + 2 * s.kv_heads) * s.dim
        sizes = [(s.hidden,), (heads, s.hidden), (s.dim,), (s.dim,), (s.hidden, s.heads * s.dim), (s.hidden,),
                 (2 * s.inner, s.hidden), (s.hidden, s.inner)]
        self.weights, self.function = nn.ParameterList([weight(*size) for size in sizes]), function

    def forward(self, x, cosine, sine):
        return self.function(x, *self.weights, cosine, sine)


class Model(nn.Module):
    def __init__(self, s, compiled):
        super().__init__()
        layer = make_layer(s)
        self.loss = loss_of
        if compiled:
            layer, self.loss = torch.compile(layer, dynamic=False), torch.compile(loss_of, dynamic=False)
        self.shape, self.layers = s, nn.ModuleList([Layer(s, layer) for _ in range(s.layers)])
        self.embedding, self.final_norm = weight(s.vocab, s.hidden), weight(s.hidden)
        self.head = self.embedding if s.tied else weight(s.vocab, s.hidden)

    def forward(self, ids, cosine, sine, scale):
        x = functional.embedding(ids, self.embedding).to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        x = functional.rms_norm(x, (self.shape.hidden,), self.final_norm.to(x.dtype), self.shape.eps)
        targets = functional.pad(ids[:, 1:], (0, 1), value=-1).reshape(-1)
        return HeadLoss.apply(x.reshape(-1, self.shape.hidden), self.head, targets, scale, self.loss)


def sharded(a, shape, world):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    more = {"mesh": init_device_mesh(a.device, (world,)), "mp_policy": policy, "reshard_after_forward": a.reshard == "yes"}
    with torch.device(a.device):
        model = Model(shape, not a.no_compile)
    for layer in model.layers:
        fully_shard(layer, **more)
    model = fully_shard(model, **more)
    if a.device == "cuda":  # the loss is scaled by all tokens; gloo has no such sum
        model.set_gradient_divide_factor(1.0)
    return model


def measure(a, rank, world):
    shape, cuda = Shape(a.config), a.device == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    torch.manual_seed(1)
    model = sharded(a, shape, world)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    frequencies = shape.theta ** (-torch.arange(0, shape.dim, 2, device=a.device) / shape.dim)
    angles = torch.outer(torch.arange(a.tokens, device=a.device, dtype=torch.float32), frequencies)
    cosine, sine = angles.cos(), angles.sin()
    torch.manual_seed(2 + rank)
    mine = a.sequences // world
    micro = min(a.micro, mine)
    ids = torch.randint(shape.vocab, (mine, a.tokens), device=a.device)
    scale, seconds = 1.0 / (a.sequences * (a.tokens - 1)), []
    for i in range(a.warm_up + a.steps):
        dist.barrier()
        wait()
        start = time.perf_counter()
        for at in range(0, mine, micro):
            model.set_requires_gradient_sync(at + micro >= mine)
            model(ids[at:at + micro], cosine, sine, scale).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        wait()
        seconds.append(time.perf_counter() - start)
    peak = torch.tensor(float(torch.cuda.max_memory_allocated() if cuda else 0), device=a.device)
    dist.all_reduce(peak)
    step = statistics.median(seconds[a.warm_up:])
    return {"tokens_per_second": a.sequences * a.tokens / step, "seconds": step, "peak_bytes": float(peak)}


def main():
    a = parse()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if a.sequences % world:
        raise SystemExit(f"--sequences: wanted a multiple of {world} processes, found {a.sequences}")
    if a.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl" if a.device == "cuda" else "gloo")
    with sdpa_kernel(BACKENDS[a.attention]):
        record = measure(a, rank, world)
    if rank == 0:
        print(json.dumps({"bench": "training", "who": "fsdp2", "gpus": world, "reshard": a.reshard, "micro": a.micro,
                          "torch": torch.__version__, **record}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
