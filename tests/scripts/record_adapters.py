#!/usr/bin/env python3
"""record_adapters.py OUT: adapters of checkpoints in tests/data as PEFT saves them, each with reference.safetensors: the logits of
some tokens in float64, by PEFT on transformers (eager attention); rounded to float32.

qwen3_moe has modules of single experts, as PEFT saves them with a transformers whose experts are modules (before 5). There the
reference is transformers with weights W + scale B A, which is the same function. A and B are random, in float32 or bfloat16.
Tested with peft 0.21.2, transformers 5.24.0, torch 2.13.0. tests/engine/test_adapters.c compares.
"""
import json
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

DATA = pathlib.Path(__file__).parent.parent / "data"
IDS = [3, 17, 29, 5, 40, 11, 90, 2, 7, 8, 8, 61]
CASES = {
    "qwen3": ("hf/qwen3", torch.float32, dict(
        r=6, lora_alpha=12, target_modules="all-linear", rank_pattern={"down_proj": 3, r"layers\.0\.self_attn\.[qk]_proj": 17},
        alpha_pattern={"q_proj": 5})),
    "qwen3_ends": ("hf/qwen3", torch.bfloat16, dict(
        r=4, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "o_proj", "lm_head", "embed_tokens"],
        layers_to_transform=[1], layers_pattern="layers")),
    "qwen2_tied": ("hf/qwen2", torch.float32, dict(r=3, lora_alpha=7, target_modules=r"model\.layers\.\d+\.self_attn\.(q|k|v|o)_proj")),
    "phi3": ("families/phi3_a", torch.float32, dict(r=4, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj", "down_proj"])),
    "lfm2": ("families/lfm2_a", torch.float32, dict(r=2, lora_alpha=4, target_modules="all-linear")),
    "gemma4": ("families/gemma4_text_a", torch.float32, dict(r=2, lora_alpha=4, target_modules="all-linear")),
}


def model_of(name):
    return AutoModelForCausalLM.from_pretrained(DATA / name, dtype=torch.float64, attn_implementation="eager",
                                                experts_implementation="eager")


def values(shape, dtype, g):
    return (torch.randn(shape, generator=g) * 0.1).to(dtype)


def save(out, tensors, config, logits):
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "adapter_model.safetensors")
    if config is not None:
        (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({"input_ids": torch.tensor(IDS, dtype=torch.int32), "logits": logits.to(torch.float32)}, out / "reference.safetensors")


@torch.no_grad()
def by_peft(out, base, dtype, options):
    g = torch.Generator().manual_seed(43)
    p = get_peft_model(model_of(base), LoraConfig(task_type="CAUSAL_LM", **options))
    for name, w in sorted(p.named_parameters()):
        if "lora_" in name:
            w.data = values(w.shape, dtype, g).to(torch.float64)
    p.save_pretrained(out)
    tensors = load_file(out / "adapter_model.safetensors")
    tensors = {k: v.to(dtype) for k, v in tensors.items() if "lora_" in k or base != "hf/qwen3"}
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    (out / "README.md").unlink(missing_ok=True)
    save(out, tensors, config, p(torch.tensor([IDS])).logits[0])


@torch.no_grad()
def by_experts(out):
    g = torch.Generator().manual_seed(44)
    m = model_of("hf/qwen3_moe")
    tensors, rank, scale = {}, 2, 4 / 2
    for l, layer in enumerate(m.model.layers):
        experts = layer.mlp.experts
        width = experts.gate_up_proj.shape[1] // 2
        for e in range(experts.gate_up_proj.shape[0]):
            for part, w in (("gate_proj", experts.gate_up_proj[e, :width]), ("up_proj", experts.gate_up_proj[e, width:]),
                            ("down_proj", experts.down_proj[e])):
                if (e + l) % 3 == 0 and part == "up_proj":
                    continue  # experts need not have all
                a, b = values((rank, w.shape[1]), torch.float32, g), values((w.shape[0], rank), torch.float32, g)
                w += scale * b.double() @ a.double()
                name = f"base_model.model.model.layers.{l}.mlp.experts.{e}.{part}"
                tensors[name + ".lora_A.weight"], tensors[name + ".lora_B.weight"] = a, b
        w = layer.mlp.gate.weight
        a, b = values((rank, w.shape[1]), torch.float32, g), values((w.shape[0], rank), torch.float32, g)
        w += scale * b.double() @ a.double()
        name = f"base_model.model.model.layers.{l}.mlp.gate"
        tensors[name + ".lora_A.weight"], tensors[name + ".lora_B.weight"] = a, b
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 4, "bias": "none",
              "target_modules": ["gate", "gate_proj", "up_proj", "down_proj"], "base_model_name_or_path": "hf/qwen3_moe"}
    save(out, tensors, config, m(torch.tensor([IDS])).logits[0])


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    for name, (base, dtype, options) in CASES.items():
        by_peft(root / name, base, dtype, options)
    by_experts(root / "qwen3_moe")
