#!/usr/bin/env python3
"""Writes an adapter of pseudo-random values for a model's config.json, in PEFT's form, for bench_steps --lora:

    make_adapter.py MODEL OUTPUT [--rank 32]

All linear layers of a dense model have a module. Only the standard library is used."""
import argparse
import json
import os
import random
import struct


def modules(c):
    """(name, inputs, outputs) of every linear layer."""
    hidden, heads, wide = c["hidden_size"], c["num_attention_heads"], c["intermediate_size"]
    dim = c.get("head_dim") or hidden // heads
    q, kv = heads * dim, c.get("num_key_value_heads", heads) * dim
    shapes = [("self_attn.q_proj", hidden, q), ("self_attn.k_proj", hidden, kv), ("self_attn.v_proj", hidden, kv),
              ("self_attn.o_proj", q, hidden), ("mlp.gate_proj", hidden, wide), ("mlp.up_proj", hidden, wide),
              ("mlp.down_proj", wide, hidden)]
    for layer in range(c["num_hidden_layers"]):
        for name, inputs, outputs in shapes:
            yield f"base_model.model.model.layers.{layer}.{name}", inputs, outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("--rank", type=int, default=32)
    a = parser.parse_args()
    with open(os.path.join(a.model, "config.json")) as f:
        config = json.load(f)
    os.makedirs(a.output, exist_ok=True)
    with open(os.path.join(a.output, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": a.rank, "lora_alpha": a.rank, "target_modules": "all-linear"}, f)
    header, at = {}, 0
    for name, inputs, outputs in modules(config):
        for factor, shape in (("lora_A", [a.rank, inputs]), ("lora_B", [outputs, a.rank])):
            size = 2 * shape[0] * shape[1]
            header[f"{name}.{factor}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = random.Random(1)  # bfloat16 of either sign from 2^-9 to 2^-6
    block = b"".join(struct.pack("<H", draw.choice((0x3B00, 0xBB00)) + draw.randrange(0x180)) for _ in range(1 << 18))
    with open(os.path.join(a.output, "adapter_model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for left in range(at, 0, -len(block)):
            f.write(block[:left])


if __name__ == "__main__":
    main()
