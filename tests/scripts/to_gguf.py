#!/usr/bin/env python3
"""to_gguf.py DIR OUT.gguf: a Hugging Face directory of llama, mixtral, qwen2, qwen3, qwen3_moe or gemma3_text as GGUF with the same weights, by the rules of
llama.cpp's converter: its names, its order of rows of llama's q and k, experts in one tensor, Llama 3's scaling as rope_freqs, 1 +
Gemma's norms. Matrices keep
their type, vectors become float32. No tokenizer. Plain Python. tests/apps/test_packed.c compares logits."""
import array
import glob
import json
import math
import re
import struct
import sys

ARCH = {"llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
INNER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp"}
GEMMA = INNER | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                 "post_feedforward_layernorm": "post_ffw_norm"}
TYPE = {"F32": 0, "F16": 1, "BF16": 30}


def load(path):
    raw = open(path, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in header.items()}


def widened(dtype, shape, data):
    """float32 of a vector."""
    if dtype == "F32":
        return "F32", shape, data
    code = "<%de" % shape[0] if dtype == "F16" else "<%dH" % shape[0]
    values = struct.unpack(code, data)
    if dtype == "F16":
        return "F32", shape, struct.pack("<%df" % shape[0], *values)
    return "F32", shape, struct.pack("<%dI" % shape[0], *(v << 16 for v in values))


def plus_one(dtype, shape, data):
    n = shape[0]
    return dtype, shape, struct.pack("<%df" % n, *(1 + w for w in struct.unpack("<%df" % n, data)))


def interleaved(tensor, heads):
    """Row i of a head's first half and of its second become neighbours."""
    dtype, shape, data = tensor
    size, dim = len(data) // shape[0], shape[0] // heads
    rows = [data[r * size:(r + 1) * size] for r in range(shape[0])]
    order = [h * dim + i * (dim // 2) + j for h in range(heads) for j in range(dim // 2) for i in range(2)]
    return dtype, shape, b"".join(rows[r] for r in order)


def renamed(config, tensors):
    out, experts = {}, {}
    for name, tensor in tensors.items():
        name = name.replace("block_sparse_moe", "mlp").replace(".w1.", ".gate_proj.").replace(".w2.", ".down_proj.").replace(".w3.", ".up_proj.")
        middle, end = name.rsplit(".", 1)
        if len(tensor[1]) == 1:
            tensor = widened(*tensor)
        if middle.endswith("norm") and config["model_type"] == "gemma3_text":
            tensor = plus_one(*tensor)
        if middle in OUTER:
            out[OUTER[middle] + "." + end] = tensor
            continue
        layer, middle = re.match(r"model\.layers\.(\d+)\.(.*)", middle).groups()
        expert = re.match(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj", middle)
        if expert:
            experts.setdefault(f"blk.{layer}.ffn_{expert[2]}_exps.weight", {})[int(expert[1])] = tensor
            continue
        if config["model_type"] in ("llama", "mixtral") and middle in ("self_attn.q_proj", "self_attn.k_proj"):
            tensor = interleaved(tensor, config["num_attention_heads" if middle[10] == "q" else "num_key_value_heads"])
        out[f"blk.{layer}.{(GEMMA if config['model_type'] == 'gemma3_text' else INNER)[middle]}.{end}"] = tensor
    for name, of in experts.items():
        out[name] = of[0][0], [len(of)] + of[0][1], b"".join(of[i][2] for i in range(len(of)))
    return out


def divisors(rope, theta, dim):
    for i in range(dim // 2):
        wave, original = 2 * math.pi * theta ** (2 * i / dim), rope["original_max_position_embeddings"]
        low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
        smooth = (original / wave - low) / (high - low)
        yield 1 if wave < original / high else factor if wave > original / low else 1 / ((1 - smooth) / factor + smooth)


def string(s):
    return struct.pack("<Q", len(s)) + s.encode()


def main(folder, out):
    c = json.load(open(folder + "/config.json"))
    arch, dim = ARCH[c["model_type"]], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    theta = c.get("rope_theta") or rope.get("rope_theta") or 0
    weights = {}
    for path in sorted(glob.glob(folder + "/model*.safetensors")):
        weights |= load(path)
    tensors = renamed(c, weights)
    if "llama3" in (rope.get("rope_type"), rope.get("type")):
        f = array.array("f", divisors(rope, theta, dim))
        tensors["rope_freqs.weight"] = "F32", [len(f)], f.tobytes()
    keys = {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"], "block_count": c["num_hidden_layers"],
            "feed_forward_length": c["intermediate_size"], "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": dim, "rope.dimension_count": dim,
            "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]), "rope.freq_base": float(theta)}
    if c["model_type"] == "mixtral":
        keys |= {"expert_count": c["num_local_experts"], "expert_used_count": c["num_experts_per_tok"]}
    if arch == "qwen3moe":
        keys |= {"expert_count": c.get("num_experts") or c["num_local_experts"], "expert_used_count": c["num_experts_per_tok"],
                 "expert_feed_forward_length": c["moe_intermediate_size"]}
    if arch == "gemma3":  # every sixth layer sees all positions; the others turn by 10,000
        rope, theta = rope["full_attention"], rope["full_attention"]["rope_theta"]
        keys |= {"attention.sliding_window": c["sliding_window"], "rope.freq_base": float(theta), "rope.scaling.factor": float(rope["factor"]),
                 "rope.scaling.type": rope["rope_type"]}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys) + 1) + string("general.architecture") + struct.pack("<I", 8) + string(arch)
    for key, value in keys.items():
        head += string(f"{arch}.{key}")
        if isinstance(value, str):
            head += struct.pack("<I", 8) + string(value)
        else:
            head += struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape)) + struct.pack("<%dQ" % len(shape), *reversed(shape))
        head += struct.pack("<IQ", TYPE[dtype], len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    with open(out, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)


if __name__ == "__main__":
    main(*sys.argv[1:])
