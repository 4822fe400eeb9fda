"""Adapters for tests: what PEFT would have saved, with values from a seed."""

import array
import json
import pathlib
import random

TARGETS = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]


def shapes(config):
    """[outputs, inputs] of the modules of a layer, and their names."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    heads, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    attention = {"q_proj": (heads, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, heads)}
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {f"self_attn.{n}": s for n, s in attention.items()} | {f"mlp.{n}": s for n, s in mlp.items()}


def write_safetensors(path, tensors):
    """{name: (shape, floats)}, as float32."""
    header, at, data = {}, 0, []
    for name, (shape, values) in tensors.items():
        raw = array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def make_adapter(folder, model, seed, rank=4, alpha=16, targets=TARGETS, size=0.05):
    """An adapter of a dense model; returns the folder's name."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    draw, tensors = random.Random(seed), {}
    for layer in range(config["num_hidden_layers"]):
        for module, (outputs, inputs) in shapes(config).items():
            if module.rpartition(".")[2] not in targets:
                continue
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = [rank, inputs], [draw.gauss(0, size) for _ in range(rank * inputs)]
            tensors[f"{name}.lora_B.weight"] = [outputs, rank], [draw.gauss(0, size) for _ in range(outputs * rank)]
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "target_modules": targets,
                "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return str(folder)
