"""torch_train.py MODEL DTYPE STEPS LAYOUTS FOLDER [GPUS]: four processes train a patched model in the first layouts of processes and
passes; with GPUS that many processes, each with a GPU, in tc16. Prints a JSON object: layout -> weight hashes."""
import json
import os
import random
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import AutoModelForCausalLM

import invar.torch

VOCAB = 512
# processes, wrapper, sequences of a pass. A single process runs next to the others' groups.
LAYOUTS = [(4, "fsdp", 2), (4, "ddp", 1), (2, "ddp", 4), (2, "fsdp", None), (1, "", 1), (1, "", 2), (1, "", 4), (1, "fsdp", 2)]


def data(vocab, steps):
    """Per step: sequences and masks. Some steps have fewer sequences than virtual ranks."""
    rng = random.Random(20)
    for _ in range(steps):
        sequences = [[rng.randrange(vocab) for _ in range(rng.randint(2, 30))] for _ in range(rng.randint(1, 12))]
        masks = [[0, *(rng.choice([0, 1, 1]) for _ in s[1:])] for s in sequences]
        masks[0][-1] = 1
        yield sequences, masks


def wrapped(model, kind, group):
    if kind == "ddp":
        return invar.torch.prepare(torch.nn.parallel.DistributedDataParallel(model, process_group=group))
    if kind == "fsdp":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, next(model.parameters()).device.type)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        return invar.torch.prepare(fully_shard(model, mesh=mesh))
    return model


def fit(path, dtype, steps, kind, size, group, device="cpu"):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device)
    model = wrapped(invar.torch.patch(model, dtype=dtype), kind, group)
    optimizer = invar.torch.AdamW(model, lr=1e-3, weight_decay=0.1)
    hashes = []
    for sequences, masks in data(VOCAB, steps):
        optimizer.zero_grad()
        step = invar.torch.Step([len(s) for s in sequences], group=group, alone=group is None)
        for part in step.passes(size, model):
            with part:
                logprobs = invar.torch.logprobs(model, [sequences[i] for i in part.indices], [masks[i] for i in part.indices])
                coefficients = torch.tensor([c for i in part.indices for c in masks[i]], dtype=torch.float32)
                (-(coefficients.to(device) * logprobs).sum()).backward()
        optimizer.step(step=step, denominator=sum(map(sum, masks)), max_norm=1.0)
        hashes.append(invar.torch.weights_hash(model))
    return hashes


def process(rank, path, dtype, steps, layouts, folder, gpus):
    torch.set_num_threads(1)
    world, device = gpus or 4, f"cuda:{rank}" if gpus else "cpu"
    if gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpus else "gloo", rank=rank, world_size=world, init_method=f"file://{folder}/store")
    out, alone = {}, 0
    for n, kind, size in layouts:
        groups = [dist.new_group(list(range(first, first + n))) for first in range(0, world, n)] if kind else []
        if not kind:
            alone += 1
            if rank == alone % world:
                out[f"{n} {kind} {size}"] = fit(path, dtype, steps, kind, size, None, device)
        else:
            hashes = fit(path, dtype, steps, kind, size, groups[rank // n], device)
            if rank == 0:
                out[f"{n} {kind} {size}"] = hashes
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(out, file)
    dist.barrier()
    dist.destroy_process_group()


def main():
    path, dtype, steps, layouts, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    gpus = int(sys.argv[6]) if len(sys.argv) > 6 else 0
    chosen = [layout for layout in LAYOUTS if layout[0] <= (gpus or 4)][:layouts]
    fork = mp.get_context("fork")  # the imports are shared; nothing has started a thread
    all_processes = [fork.Process(target=process, args=(rank, path, dtype, steps, chosen, folder, gpus)) for rank in range(gpus or 4)]
    for one in all_processes:
        one.start()
    for one in all_processes:
        one.join()
    if any(one.exitcode for one in all_processes):
        sys.exit(1)
    out = {}
    for rank in range(gpus or 4):
        with open(f"{folder}/{rank}.json") as file:
            out |= json.load(file)
    print(json.dumps(out))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
