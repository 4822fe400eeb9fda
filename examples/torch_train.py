"""Fine-tunes a transformers model with PyTorch to the weights of `invar train`, on any number of processes:
torch_train.py [MODEL] [STEPS], or torchrun --nproc-per-node 2 examples/torch_train.py"""
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

import invar.torch
from invar import LLM, Sequence, Trainer

path = sys.argv[1] if len(sys.argv) > 1 else "models/tiny-math"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3
parallel = "RANK" in os.environ
if parallel:
    dist.init_process_group("gloo")
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)  # master weights
model = invar.torch.patch(model, dtype="bfloat16")
if parallel:
    for layer in model.model.layers:
        fully_shard(layer)
    model = invar.torch.prepare(fully_shard(model))
optimizer = invar.torch.AdamW(model, lr=1e-4)

with LLM(path) as llm:
    texts = [f"{a} + {b} = {a + b}" for a in range(3) for b in range(3, 6)]
    batch = [llm.encode(text) for text in texts]
for _ in range(steps):
    optimizer.zero_grad()
    step = invar.torch.Step([len(ids) for ids in batch])
    for part in step.passes(2, model):
        with part:
            logprobs = invar.torch.logprobs(model, [batch[i] for i in part.indices])
            (-logprobs.sum()).backward()
    optimizer.step(step=step, denominator=sum(len(ids) - 1 for ids in batch), max_norm=1.0)

found = invar.torch.weights_hash(model)
with Trainer(path, dtype="bfloat16", pass_tokens=512) as trainer:
    for _ in range(steps):
        wanted = trainer.step([Sequence(ids) for ids in batch], learning_rate=1e-4, max_norm=1.0).weights_hash
assert found == wanted
print(f"weights {found[:16]} after {steps} steps, those of invar.Trainer")
if parallel:
    dist.destroy_process_group()
