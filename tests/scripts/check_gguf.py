#!/usr/bin/env python3
"""check_gguf.py MODEL FILE.gguf EXPANDED: whether the `gguf` package reads a file that invar wrote, finds in each matrix the bytes
that its own quantize makes of the model's weights, and reads the values that `invar export FILE.gguf EXPANDED` has. MODEL is a
directory with one model.safetensors of bfloat16. Exit code 77 where gguf or numpy is not installed. Tested with gguf 0.19.0.
tests/apps/test_gguf_out.c runs it."""
import json
import sys

try:
    import numpy as np
    from gguf import GGMLQuantizationType as T
    from gguf import GGUFReader, quants
except ImportError as missing:
    print(f"{missing.name} is not installed")
    sys.exit(77)

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def load(path):
    raw = open(path + "/model.safetensors", "rb").read()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        data = raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[t["dtype"]]).astype(np.float32)
        out[name] = x.reshape(t["shape"])
    return out


def bfloat16(x):
    u = x.view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def named(name):
    parts = name.split(".")
    return OUTER[parts[0]] + "." + parts[1] if parts[0] != "blk" else f"model.layers.{parts[1]}.{INNER[parts[2]]}.{parts[3]}"


def interleaved(x, heads):
    """llama.cpp's order of the rows of llama's q and k."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)


def main(model, path, expanded):
    config = json.load(open(model + "/config.json"))
    want, found, reader = load(model), load(expanded), GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == {"llama": "llama", "mistral": "llama"}.get(config["model_type"], config["model_type"])
    blocks = 0
    for t in reader.tensors:
        name = named(t.name)
        x, llama = want[name], config["model_type"] in ("llama", "mistral")
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(t.name.split(".")[2] if "blk" in t.name else "")
        if llama and heads:
            x = interleaved(x, heads)
        assert tuple(reversed(t.shape)) == x.shape, t.name
        kind = T(t.tensor_type)
        raw = np.ascontiguousarray(t.data).view(np.uint8).reshape(-1)
        made = x if kind == T.F32 else quants.quantize(np.ascontiguousarray(x), kind)
        if not np.array_equal(raw, np.ascontiguousarray(made).view(np.uint8).reshape(-1)):
            sys.exit(f"{t.name} ({kind.name}): other bytes")
        values = quants.dequantize(np.ascontiguousarray(t.data), kind).reshape(x.shape)
        if llama and heads:
            values = values.reshape(heads, x.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(x.shape)
        if not np.array_equal(bfloat16(np.ascontiguousarray(values)), bfloat16(found[name])):
            sys.exit(f"{t.name}: other values")
        blocks += kind not in (T.F32, T.F16, T.BF16)
    print(f"{len(reader.tensors)} tensors are the same, {blocks} in blocks")


if __name__ == "__main__":
    main(*sys.argv[1:])
