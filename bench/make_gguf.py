#!/usr/bin/env python3
"""make_gguf.py FOLDER FILE: the weights of a Qwen3 checkpoint as a bf16 GGUF file, for llama.cpp.

Matrices keep their bf16 bytes and norms become f32, as llama.cpp's converter does. The file
declares no tokenizer, so it only serves benchmarks on token ids. Layout (GGUF 3, little-endian): magic,
version, counts; typed key-value pairs; name, dimensions (innermost first), type and offset of each tensor; the data, each
tensor at a multiple of 32 bytes. Needs numpy.
"""

import json
import os
import struct
import sys

import numpy as np

ALIGNMENT = 32
U32, F32, STRING = 4, 6, 8           # types of metadata values
TENSOR_F32, TENSOR_BF16 = 0, 30      # types of tensors
MOSTLY_BF16 = 32                     # general.file_type

TOP_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
LAYER_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
               "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
               "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
               "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def metadata_of(config):
    return {
        "general.architecture": (STRING, "qwen3"),
        "general.name": (STRING, "random weights"),
        "general.alignment": (U32, ALIGNMENT),
        "general.file_type": (U32, MOSTLY_BF16),
        "qwen3.vocab_size": (U32, config["vocab_size"]),
        "qwen3.context_length": (U32, config["max_position_embeddings"]),
        "qwen3.embedding_length": (U32, config["hidden_size"]),
        "qwen3.block_count": (U32, config["num_hidden_layers"]),
        "qwen3.feed_forward_length": (U32, config["intermediate_size"]),
        "qwen3.attention.head_count": (U32, config["num_attention_heads"]),
        "qwen3.attention.head_count_kv": (U32, config["num_key_value_heads"]),
        "qwen3.attention.key_length": (U32, config["head_dim"]),
        "qwen3.attention.value_length": (U32, config["head_dim"]),
        "qwen3.attention.layer_norm_rms_epsilon": (F32, config["rms_norm_eps"]),
        "qwen3.rope.freq_base": (F32, config["rope_theta"]),
        "tokenizer.ggml.model": (STRING, "none"),
    }


def packed_metadata(metadata):
    out = b""
    for key, (kind, value) in metadata.items():
        raw = string(value) if kind == STRING else struct.pack("<I" if kind == U32 else "<f", value)
        out += string(key) + struct.pack("<I", kind) + raw
    return out


def read_header(path):
    with open(path, "rb") as file:
        n = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(n))
    header.pop("__metadata__", None)
    return header, 8 + n


def convert(folder, out):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    if config["model_type"] != "qwen3":
        sys.exit(f"make_gguf: {folder}/config.json: model_type: wanted 'qwen3', found '{config['model_type']}'")
    weights = os.path.join(folder, "model.safetensors")
    header, start = read_header(weights)
    data = np.memmap(weights, np.uint8, "r")

    infos, offset = b"", 0
    for name, tensor in header.items():
        if tensor["dtype"] != "BF16":
            sys.exit(f"make_gguf: {weights}: {name}: wanted BF16, found {tensor['dtype']}")
        kind = TENSOR_F32 if len(tensor["shape"]) == 1 else TENSOR_BF16
        dims = tensor["shape"][::-1]
        infos += string(gguf_name(name)) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        tensor["size"] = int(np.prod(dims)) * (4 if kind == TENSOR_F32 else 2)
        offset += tensor["size"] + -tensor["size"] % ALIGNMENT

    metadata = metadata_of(config)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(header), len(metadata)) + packed_metadata(metadata) + infos
    with open(out, "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for tensor in header.values():
            begin, end = tensor["data_offsets"]
            raw = data[start + begin:start + end]
            if len(tensor["shape"]) == 1:
                raw = (raw.view("<u2").astype("<u4") << 16).view(np.uint8)
            raw.tofile(file)
            file.write(b"\0" * (-tensor["size"] % ALIGNMENT))


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: make_gguf.py FOLDER FILE")
    convert(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
