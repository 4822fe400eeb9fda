#!/usr/bin/env python3
"""learner_torch.py MODEL_DIRECTORY: one training step of a Qwen3 in PyTorch on the CPU, the peer of bench/learner.c.

transformers' own model with SDPA, random tokens in the same shape, the mean of the cross-entropy of all predictions and
torch.optim.AdamW(fused=True), everything in --dtype. --micro splits a step's sequences into batches whose gradients add
up. Prints one line of JSON: medians of --repeat steps after two that are not counted, and peak memory. Needs torch and
transformers from PyPI.
"""

import argparse
import json
import resource
import statistics
import time


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--sequences", type=int, default=4)
    p.add_argument("--micro", type=int, default=0, help="sequences of a batch; 0: all")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    p.add_argument("--checkpointing", action="store_true", help="recompute activations layer by layer")
    return p.parse_args()


def main():
    a = parse()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    dtype = torch.bfloat16 if a.dtype == "bf16" else torch.float32
    config = AutoConfig.from_pretrained(a.model)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    model.train()
    if a.checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, config.vocab_size, (a.sequences, a.tokens))
    micro = a.micro or a.sequences
    parts = {"forward": [], "backward": [], "optimizer": [], "step": [], "cpu": []}
    for i in range(a.repeat + 2):
        seconds = dict.fromkeys(parts, 0.0)
        processor = time.process_time()
        for first in range(0, a.sequences, micro):
            batch = ids[first:first + micro]
            begin = time.perf_counter()
            logits = model(input_ids=batch, use_cache=False).logits
            targets = batch[:, 1:].reshape(-1)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(targets.numel(), -1), targets, reduction="sum")
            loss = loss / (a.sequences * (a.tokens - 1))
            del logits
            middle = time.perf_counter()
            loss.backward()
            end = time.perf_counter()
            seconds["forward"] += middle - begin
            seconds["backward"] += end - middle
        begin = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds["optimizer"] = time.perf_counter() - begin
        seconds["step"] = sum(seconds.values())
        seconds["cpu"] = time.process_time() - processor
        if i >= 2:
            for name, value in seconds.items():
                parts[name].append(value)
    medians = {name: statistics.median(values) for name, values in parts.items()}
    print(json.dumps({"torch": torch.__version__, "dtype": a.dtype, "threads": a.threads,
                      "tokens_per_second": a.sequences * a.tokens / medians["step"],
                      "seconds": medians, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


if __name__ == "__main__":
    main()
