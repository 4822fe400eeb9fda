"""Adapters that invar's trainer writes, next to PEFT: it opens checkpoints and exports, and has the same log-probabilities; and
the trainer goes on from what PEFT saves. Skipped without peft."""
import json
import os
import pathlib
import random

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from invar import Sequence, Trainer

peft = pytest.importorskip("peft", reason="peft is not in this Python")
ROOT = pathlib.Path(os.environ["INVAR_SOURCE"])
CASES = [("hf/qwen3", "all-linear"), ("hf/qwen3", ["q_proj", "down_proj", "lm_head"]), ("hf/qwen2", r".*\.(q|v|o)_proj"),
         ("families/phi3_a", ["qkv_proj", "gate_up_proj"]), ("families/lfm2_a", "all-linear"), ("families/glm4_a", "all-linear"),
         ("families/cohere2_a", "all-linear")]


def base_of(name):
    return AutoModelForCausalLM.from_pretrained(ROOT / "tests/data" / name, dtype=torch.float64, attn_implementation="eager")


def batch_of(vocab, seed):
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(n)] for n in (9, 14, 23)]


@torch.no_grad()
def logprobs(model, ids):
    logits = model(torch.tensor([ids])).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def trained(name, **options):
    trainer = Trainer(ROOT / "tests/data" / name, dtype="float32", device="cpu", threads=1, pass_tokens=128, **options)
    vocab = json.loads((ROOT / "tests/data" / name / "config.json").read_text())["vocab_size"]
    batch = batch_of(vocab, 5)
    for _ in range(3):
        trainer.step([Sequence(ids) for ids in batch], 1e-2)
    return trainer, batch


def same(trainer, model, batch):
    ours = trainer.score([Sequence(ids) for ids in batch])
    for ids, got in zip(batch, ours):
        want = logprobs(model, ids)
        numpy.testing.assert_allclose(got[1:], want, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name, targets", CASES)
def test_peft_opens_checkpoints_and_exports(name, targets, tmp_path):
    trainer, batch = trained(name, lora_rank=4, lora_alpha=9, lora_targets=targets)
    trainer.save(tmp_path / "run")
    trainer.export(tmp_path / "exported", dtype="float32")
    plain = logprobs(base_of(name), batch[0])
    assert numpy.abs(trainer.score([Sequence(batch[0])])[0][1:] - plain).max() > 1e-2  # it has learned
    for folder in (tmp_path / "run/checkpoint-000003", tmp_path / "exported"):
        model = peft.PeftModel.from_pretrained(base_of(name), folder, autocast_adapter_dtype=False).double()
        assert sum("lora_" in n for n, _ in model.named_parameters()) > 0
        same(trainer, model, batch)


@pytest.mark.parametrize("name, targets", CASES)
def test_the_trainer_goes_on_from_peft(name, targets, tmp_path):
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=targets, use_rslora=True, task_type="CAUSAL_LM")
    model = peft.get_peft_model(base_of(name), config)
    g = torch.Generator().manual_seed(7)
    for n, w in model.named_parameters():
        if "lora_" in n:
            w.data = (torch.randn(w.shape, generator=g) * 0.1).to(torch.float32).double()
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    saved = tmp_path / "adapter_model.safetensors"
    save_file({n: w.float() for n, w in load_file(saved).items()}, saved)
    trainer = Trainer(ROOT / "tests/data" / name, dtype="float32", device="cpu", threads=1, pass_tokens=128, lora=tmp_path)
    same(trainer, model, batch_of(model.config.vocab_size, 6))


def test_the_first_values_are_distributed_as_pefts(tmp_path):
    trainer = Trainer(ROOT / "tests/data/hf/qwen3", device="cpu", threads=1, pass_tokens=64, lora_rank=64, lora_targets="down_proj")
    trainer.export(tmp_path / "a", dtype="float32")
    tensors = load_file(tmp_path / "a/adapter_model.safetensors")
    for name, w in tensors.items():
        if "lora_B" in name:
            assert not w.any()
            continue
        bound = 1 / w.shape[1] ** 0.5
        theirs = torch.nn.init.kaiming_uniform_(torch.empty_like(w), a=5**0.5)
        assert w.abs().max() <= bound and w.abs().max() > 0.99 * bound and theirs.abs().max() <= bound
        assert abs(w.std() - theirs.std()) < 0.02 * bound and abs(w.mean()) < 0.02 * bound
