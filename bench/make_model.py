#!/usr/bin/env python3
"""make_model.py NAME FOLDER: a random-weight checkpoint in Hugging Face form, for measuring speed.

NAME is a shape below. Weights are bf16, normal(0, 0.02), norms near 1, from a fixed seed, so two runs write the
same bytes. They are streamed to disk, one block in memory at a time. Benchmarks use token ids, without a tokenizer.
Needs numpy.
"""

import json
import os
import sys

import numpy as np

SEED = 20240607
BLOCK = 1 << 22  # elements drawn at a time

SHAPES = {
    # The shape of Qwen3-0.6B.
    "qwen3-0.6b": dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                       num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960),
    # Small enough to try the scripts on.
    "tiny": dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=4096),
}


def config_of(shape):
    return dict(shape, architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_act="silu", dtype="bfloat16",
                attention_bias=False, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
                tie_word_embeddings=True, use_sliding_window=False, sliding_window=None,
                bos_token_id=None, eos_token_id=None)


def tensors_of(shape):
    """(name, dimensions), in the order of the file."""
    hidden, inter, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    q_rows, kv_rows = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (shape["vocab_size"], hidden)
    for i in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "self_attn.q_proj.weight", (q_rows, hidden)
        yield layer + "self_attn.k_proj.weight", (kv_rows, hidden)
        yield layer + "self_attn.v_proj.weight", (kv_rows, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, q_rows)
        yield layer + "self_attn.q_norm.weight", (head,)
        yield layer + "self_attn.k_norm.weight", (head,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "mlp.gate_proj.weight", (inter, hidden)
        yield layer + "mlp.up_proj.weight", (inter, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, inter)
    yield "model.norm.weight", (hidden,)


def to_bf16(values):
    """float32 -> the bits of bf16, to nearest, ties to even; values are finite."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_weights(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dims in tensors:
        size = 2 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(SEED)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dims in tensors:
            left, mean = int(np.prod(dims)), 1.0 if name.endswith("norm.weight") else 0.0
            while left:
                n = min(left, BLOCK)
                values = random.standard_normal(n, dtype=np.float32) * np.float32(0.02) + np.float32(mean)
                file.write(to_bf16(values).tobytes())
                left -= n


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(f"usage: make_model.py NAME FOLDER; NAME is one of: {', '.join(SHAPES)}")
    shape, folder = SHAPES[sys.argv[1]], sys.argv[2]
    os.makedirs(folder, exist_ok=True)
    write_weights(os.path.join(folder, "model.safetensors"), list(tensors_of(shape)))
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config_of(shape), file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main()
