"""torch_train.py MODEL DTYPE STEPS LAYOUTS FOLDER: four processes train a patched model in the first layouts of processes and passes.
Prints a JSON object: layout -> weight hashes."""
import json
import os
import random
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import AutoModelForCausalLM

import invar.torch

WORLD, VOCAB = 4, 512
# processes, wrapper, sequences of a pass. A single process runs next to the others' groups.
LAYOUTS = [(4, "fsdp", 2), (4, "ddp", 1), (2, "ddp", 4), (2, "fsdp", None), (1, "", 1), (1, "", 2), (1, "", 4)]


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

        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        return invar.torch.prepare(fully_shard(model, mesh=mesh))
    return model


def fit(path, dtype, steps, kind, size, group):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
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
                (-(coefficients * logprobs).sum()).backward()
        optimizer.step(step=step, denominator=sum(map(sum, masks)), max_norm=1.0)
        hashes.append(invar.torch.weights_hash(model))
    return hashes


def process(rank, path, dtype, steps, layouts, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, init_method=f"file://{folder}/store")
    out, alone = {}, 0
    for n, kind, size in LAYOUTS[:layouts]:
        groups = [dist.new_group(list(range(first, first + n))) for first in range(0, WORLD, n)] if kind else []
        if not kind:
            alone += 1
            if rank == alone:
                out[f"{n} {kind} {size}"] = fit(path, dtype, steps, kind, size, None)
        else:
            hashes = fit(path, dtype, steps, kind, size, groups[rank // n])
            if rank == 0:
                out[f"{n} {kind} {size}"] = hashes
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(out, file)
    dist.barrier()
    dist.destroy_process_group()


def main():
    path, dtype, steps, layouts, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    fork = mp.get_context("fork")  # the imports are shared; nothing has started a thread
    all_processes = [fork.Process(target=process, args=(rank, path, dtype, steps, layouts, folder)) for rank in range(WORLD)]
    for one in all_processes:
        one.start()
    for one in all_processes:
        one.join()
    if any(one.exitcode for one in all_processes):
        sys.exit(1)
    out = {}
    for rank in range(WORLD):
        with open(f"{folder}/{rank}.json") as file:
            out |= json.load(file)
    print(json.dumps(out))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
