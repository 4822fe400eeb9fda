#!/usr/bin/env python3
"""record_adapter_gradients.py OUT: for the adapters of tests/data/adapters, gradients.safetensors: those of all A and B in float64
by PEFT on transformers, of the mean of -log p over the tokens of record_adapters.py but the first; rounded to float32, under the
names of the adapter's file. Adds qwen3_head and qwen2_head, adapters of the head (qwen2's is tied) that have no other reference.

qwen3_moe's reference is transformers with weights W + scale B A, as a function of A and B. Tested with peft 0.21.2, transformers
5.24.0, torch 2.15.0. tests/train/test_adapter_gradients.c compares.
"""
import json
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from record_adapters import DATA, IDS, model_of, values
from safetensors.torch import load_file, save_file

BASES = {"qwen3": "hf/qwen3", "qwen2_tied": "hf/qwen2", "phi3": "families/phi3_a", "lfm2": "families/lfm2_a",
         "gemma4": "families/gemma4_text_a", "qwen3_head": "hf/qwen3", "qwen2_head": "hf/qwen2"}
HEADS = {"qwen3_head": dict(r=5, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "o_proj", "lm_head"]),
         "qwen2_head": dict(r=3, lora_alpha=4, target_modules=["down_proj", "lm_head"])}


def loss_of(logits):
    logp = torch.log_softmax(logits[0, :-1], -1)
    return -logp.gather(1, torch.tensor(IDS[1:])[:, None]).mean()


def save(out, gradients):
    out.mkdir(parents=True, exist_ok=True)
    save_file({k: v.to(torch.float32).contiguous() for k, v in gradients.items()}, out / "gradients.safetensors")


def make_head(out, base, options):
    g = torch.Generator().manual_seed(45)
    p = get_peft_model(model_of(base), LoraConfig(task_type="CAUSAL_LM", **options))
    for name, w in sorted(p.named_parameters()):
        if "lora_" in name:
            w.data = values(w.shape, torch.float32, g).to(torch.float64)
    p.save_pretrained(out, save_embedding_layers=False)
    tensors = {k: v.to(torch.float32) for k, v in load_file(out / "adapter_model.safetensors").items() if "lora_" in k}
    save_file(tensors, out / "adapter_model.safetensors")
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"], config["target_modules"] = base, sorted(config["target_modules"])
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "README.md").unlink(missing_ok=True)


def by_peft(out, adapter, base):
    p = PeftModel.from_pretrained(model_of(base), adapter, is_trainable=True, autocast_adapter_dtype=False).double()
    loss_of(p(torch.tensor([IDS])).logits).backward()
    save(out, {n.replace(".default", ""): w.grad for n, w in p.named_parameters() if "lora_" in n})


def by_experts(out, adapter):
    m, prefix = model_of("hf/qwen3_moe"), "base_model.model."
    leaves = {k: v.double().requires_grad_() for k, v in load_file(adapter / "adapter_model.safetensors").items()}
    config = json.loads((adapter / "adapter_config.json").read_text())
    changed = {k: v.detach().clone() for k, v in m.named_parameters()}
    for a in [k for k in leaves if "lora_A" in k]:
        module = a.removeprefix(prefix).removesuffix(".lora_A.weight")
        term = config["lora_alpha"] / config["r"] * leaves[a.replace("lora_A", "lora_B")] @ leaves[a]
        experts, part = module.rsplit(".", 2)[0], module.rsplit(".", 1)[1]
        if ".experts." not in module:
            changed[module + ".weight"] = changed[module + ".weight"] + term
            continue
        e, stacked = int(module.rsplit(".", 2)[1]), "down_proj" if part == "down_proj" else "gate_up_proj"
        whole = torch.zeros_like(changed[f"{experts}.{stacked}"])
        width = term.shape[0]
        rows = slice(width, 2 * width) if part == "up_proj" else slice(0, width)
        index = torch.zeros_like(whole, dtype=torch.bool)
        index[e, rows] = True
        changed[f"{experts}.{stacked}"] = changed[f"{experts}.{stacked}"] + whole.masked_scatter(index, term)
    out_logits = torch.func.functional_call(m, changed, (torch.tensor([IDS]),)).logits
    loss_of(out_logits).backward()
    save(out, {k: v.grad if v.grad is not None else torch.zeros_like(v) for k, v in leaves.items()})


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    for name, options in HEADS.items():
        make_head(root / name, BASES[name], options)
    for name, base in BASES.items():
        by_peft(root / name, root / name if name in HEADS else DATA / "adapters" / name, base)
    by_experts(root / "qwen3_moe", DATA / "adapters" / "qwen3_moe")
