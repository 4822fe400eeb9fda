"""The engine's answers against transformers in float64: random small checkpoints that transformers itself writes, over the fields
of config.json, and the distribution that tokens are drawn from against its logits processors.

INVAR_TEST_SEED=N: other checkpoints; INVAR_TEST_ANSWERS=N: so many (a hundred take a minute)."""
import contextlib
import json
import os
import random

import numpy
import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from invar import LLM, InvarError, SamplingParams
from support import MODEL

SEED = int(os.environ.get("INVAR_TEST_SEED", "1"))
COUNT = int(os.environ.get("INVAR_TEST_ANSWERS", "24"))
FAMILIES = ("qwen3", "qwen3_moe", "qwen2", "llama", "mistral")


def rope(rng):
    theta, kind = rng.choice((10000.0, 1e6, 100, 1234.5)), rng.choice(("default", "linear", "llama3", "yarn", "yarn"))
    settings = {"rope_type": kind}
    if kind != "default":
        settings["factor"] = rng.choice((1.0, 2, 4.0, 1.5, 32.0))
    if kind in ("llama3", "yarn"):
        settings["original_max_position_embeddings"] = rng.choice((16, 33, 64, 1024))
    if kind == "llama3":
        settings |= {"low_freq_factor": rng.choice((0.5, 1.0)), "high_freq_factor": rng.choice((3.5, 4))}
    options = {"beta_fast": (16, 64.5), "beta_slow": (0.5, 2), "attention_factor": (0.7, 1.3), "truncate": (False,)}
    options |= {"mscale": (0.7, 1.0), "mscale_all_dim": (0.7, 0.0)}
    if kind == "yarn":
        settings |= {key: rng.choice(values) for key, values in options.items() if rng.random() < 0.3}
    if rng.random() < 0.5:
        return {"rope_parameters": {**settings, "rope_theta": theta}}
    return {"rope_theta": theta, "rope_scaling": None if kind == "default" else settings}


def config_of(rng, family):
    heads, dim, layers = rng.choice((1, 2, 3, 4, 6)), rng.choice((8, 10, 16, 64, 96)), rng.choice((1, 2, 3))
    fields = {"num_attention_heads": heads, "num_key_value_heads": rng.choice([k for k in range(1, heads + 1) if heads % k == 0])}
    fields |= {"hidden_size": heads * dim, "vocab_size": rng.choice((31, 97, 257)), "intermediate_size": rng.choice((1, 33, 100))}
    fields |= {"num_hidden_layers": layers, "max_position_embeddings": 512, "rms_norm_eps": rng.choice((1e-8, 1e-6, 1e-3))}
    fields |= {"tie_word_embeddings": rng.random() < 0.4, **rope(rng)}
    if family == "qwen3" or rng.random() < 0.5:
        fields["head_dim"] = dim
    if family == "qwen3":
        fields["hidden_size"] = rng.choice((17, 40, 100))
    if family in ("qwen3", "qwen3_moe", "llama"):
        fields["attention_bias"] = rng.random() < 0.5
    if family == "llama":
        fields["mlp_bias"] = rng.random() < 0.5
    elif family == "mistral":
        fields["sliding_window"] = rng.choice((None, 1, 16, 63))
    else:
        fields |= {"use_sliding_window": rng.random() < 0.6, "sliding_window": rng.choice((2, 16, 65))}
        fields["max_window_layers"] = rng.choice((0, 1))
    if family == "qwen3_moe":
        experts = rng.choice((1, 3, 8))
        fields |= {"num_experts": experts, "num_experts_per_tok": rng.randint(1, experts), "norm_topk_prob": rng.random() < 0.5}
        fields |= {"moe_intermediate_size": rng.choice((5, 33)), "decoder_sparse_step": rng.choice((1, 2))}
        fields["mlp_only_layers"] = rng.choice(([], [0]))
    return fields


def written(folder, rng, family):
    """A checkpoint whose logits are far from flat, in the types and forms of configurations in use."""
    dtype = rng.choice((torch.float32, torch.float16, torch.bfloat16))
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**config_of(rng, family)))
    torch.manual_seed(rng.randrange(2**31))
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.5 if name.endswith("bias") else 1.0 if "embed" in name else 1.5 / p.shape[-1] ** 0.5
            p.copy_(1 + 0.4 * torch.randn(p.shape) if "norm" in name else scale * torch.randn(p.shape))
    model.to(dtype).save_pretrained(folder, max_shard_size=rng.choice(("5GB", "100KB")))
    config = json.loads((folder / "config.json").read_text())
    if rng.random() < 0.5:  # as transformers 4 wrote it
        settings = config.pop("rope_parameters")
        config |= {"rope_theta": settings.pop("rope_theta"), "torch_dtype": config.pop("dtype")}
        config["rope_scaling"] = None if settings["rope_type"] == "default" else settings
        (folder / "config.json").write_text(json.dumps(config))


@contextlib.contextmanager
def float64_inside():
    """transformers computes norms, softmax and rotary tables in float32 at any type of the model."""
    kept = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept


def reference(folder, ids):
    """Log-probabilities after each token."""
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **plain)
    with torch.no_grad(), float64_inside():
        model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
        logits = model(torch.tensor([ids])).logits[0]
        return torch.log_softmax(logits, -1).numpy(), float(logits.std())


@pytest.mark.parametrize("number", range(COUNT))
def test_random_checkpoint(tmp_path, number):
    rng = random.Random(f"{SEED} {number}")
    written(tmp_path, rng, FAMILIES[number % len(FAMILIES)])
    config = json.loads((tmp_path / "config.json").read_text())
    prompt = [rng.randrange(config["vocab_size"]) for _ in range(rng.choice((1, 5, 70, 130)))]
    with LLM(str(tmp_path), dtype="float32", arithmetic="fma32") as llm:
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        answer = output.outputs[0]
        ids = prompt + list(answer.token_ids)
        rows = torch.log_softmax(torch.from_numpy(numpy.array(llm.logits(ids))).double(), -1).numpy()
    wanted, spread = reference(tmp_path, ids)
    limit = 3e-4 * max(1, spread)
    assert numpy.abs(rows - wanted).max() < limit, config
    drawn = wanted[len(prompt) - 1 : -1]
    chosen = drawn[numpy.arange(len(drawn)), answer.token_ids]
    assert numpy.abs(chosen - answer.token_logprobs).max() < limit
    assert (drawn.max(-1) - chosen).max() < limit


def test_control(tmp_path):
    """The comparison sees a norm's eps, a window and a rotation that are slightly wrong."""
    written(tmp_path, random.Random("control 5"), "mistral")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    ids = [i % 29 for i in range(80)]
    right, spread = reference(tmp_path, ids)
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 7777.0}, "rope_theta": 7777.0, "rope_scaling": None}
    for change in ({"rms_norm_eps": 0.01}, {"sliding_window": 14}, theta):
        path.write_text(json.dumps({**config, **change}))
        with LLM(str(tmp_path), dtype="float32", arithmetic="fma32") as llm:
            rows = torch.log_softmax(torch.from_numpy(numpy.array(llm.logits(ids))).double(), -1).numpy()
        assert numpy.abs(rows - right).max() > 1e-2 * max(1, spread), change


def processed(scores, params, prompt, made):
    """transformers' processors in its order; the penalties that it does not have, as vLLM defines them."""
    ids = torch.tensor([prompt + made])
    if params.logit_bias:
        for token, value in params.logit_bias.items():
            scores[0, token] += value
    if params.repetition_penalty != 1:
        scores = transformers.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    for token in set(made):
        scores[0, token] -= params.frequency_penalty * made.count(token) + params.presence_penalty
    scores = transformers.TemperatureLogitsWarper(params.temperature)(ids, scores)
    if params.top_k > 0:
        scores = transformers.TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = transformers.TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p > 0:
        scores = transformers.MinPLogitsWarper(params.min_p)(ids, scores)
    return torch.log_softmax(scores, -1)[0]


def test_distributions():
    rng = random.Random(f"{SEED} distributions")
    changes = {"top_k": (1, 2, 5, 50), "top_p": (0.1, 0.5, 0.95), "min_p": (0.05, 0.3), "repetition_penalty": (0.7, 1.3)}
    changes |= {"presence_penalty": (-1.0, 0.5), "frequency_penalty": (-0.3, 0.4), "logit_bias": ({17: 5.0, 220: -100.0},)}
    compared = 0
    with LLM(MODEL, dtype="float32") as llm:
        for seed in range(60):
            some = {key: rng.choice(values) for key, values in changes.items() if rng.random() < 0.4}
            some |= {"temperature": rng.choice((0.3, 1.0, 3.0)), "seed": seed}
            params = SamplingParams(max_tokens=12, logits=True, sampling_logprobs=True, **some)
            [output] = llm.generate(rng.choice(("2 + 2 =", "Mia has 34", "What is")), params, use_tqdm=False)
            answer, made = output.outputs[0], []
            for row, token, found in zip(answer.logits, answer.token_ids, answer.sampling_logprobs, strict=True):
                scores = torch.tensor(numpy.array(row), dtype=torch.float64)[None]
                scores[0, llm.undrawn_ids] = -torch.inf  # ids without a token
                wanted = processed(scores, params, list(output.prompt_token_ids), made)[token]
                assert abs(float(wanted) - found) < 1e-4, (some, seed, len(made))
                made.append(token)
                compared += 1
    assert compared > 300


def test_quantized_is_refused(tmp_path):
    written(tmp_path, random.Random("quantized"), "llama")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "quark"}}))
    with pytest.raises(InvarError, match="quantization_config.quant_method: wanted fp8, .* found 'quark'"):
        LLM(str(tmp_path))
