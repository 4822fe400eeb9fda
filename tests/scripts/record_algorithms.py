"""Records losses, gradients by token and advantages of TRL and verl: tests/data/train/algorithms.json.

The functions called are TRL's GRPOTrainer._compute_loss and RLOOTrainer._compute_loss and its overlong punishment, and
verl's core_algos (compute_policy_loss_vanilla, _gspo, _reinforce, compute_*_outcome_advantage, compute_rewards,
kl_penalty, agg_loss) and compute_rollout_correction_weights. The trainers' models are replaced by log-probabilities that
require a gradient. Numbers of the batches are exact in f32; everything is computed in f64. Run by record_training.sh.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import pathlib
import sys
import types
from collections import defaultdict
from unittest import mock

import numpy as np
import torch

torch.set_default_dtype(torch.float64)


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that verl imports and these functions never call."""

    ROOTS = ("ray", "codetiming", "orjson")

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in self.ROOTS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def attribute(key):
            if key.startswith("__"):
                raise AttributeError(key)
            return mock.MagicMock()

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(Missing())

import trl  # noqa: E402
from trl.rewards import get_soft_overlong_punishment  # noqa: E402
from trl.trainer.utils import nanstd  # noqa: E402
from verl.trainer.ppo import core_algos as verl  # noqa: E402
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402

GROUP = 4


def f32(x):
    return torch.tensor(np.asarray(x, dtype=np.float32).astype(np.float64))


def make_batch(seed, tokens, drift, mismatch, holes):
    """drift: of the learner from `old`; mismatch: of `old` from the sampler; holes: tokens of a tool, masked."""
    r = np.random.default_rng(seed)
    rows = 2 * GROUP
    lengths = r.integers(1, tokens + 1, rows)
    lengths[0], lengths[-1] = tokens, 1
    mask = (np.arange(tokens)[None, :] < lengths[:, None]).astype(float)
    if holes:
        mask *= r.random((rows, tokens)) > 0.25
        mask[:, 0] = 1.0
    behavior = np.float32(-r.exponential(1.0, (rows, tokens)))
    old = np.float32(behavior + mismatch * r.normal(size=(rows, tokens)))
    logp = np.float32(old + drift * r.normal(size=(rows, tokens)))
    reference = np.float32(old + 0.3 * r.normal(size=(rows, tokens)))
    reward = np.where(r.random(rows) < 0.5, 1.0, 0.0) + (r.integers(0, 3, rows) / 4.0 if holes else 0.0)
    reward[0], reward[1], reward[GROUP], reward[GROUP + 1] = 1.0, 0.0, 0.0, 1.0
    group = [i // GROUP for i in range(rows)]
    return dict(seed=seed, mask=f32(mask), behavior=f32(behavior), old=f32(old), logp=f32(logp), reference=f32(reference),
                reward=torch.tensor(reward), group=np.array(group))


BATCHES = [
    make_batch(11, 12, 0.0, 0.0, False),  # the first inner step of an exact sampler: every ratio is 1
    make_batch(12, 10, 0.35, 0.0, False),
    make_batch(13, 9, 0.8, 0.4, True),
]


def scores(b):
    """The reward at each sequence's last token, as verl has it."""
    out = torch.zeros_like(b["mask"])
    out[:, 0] = b["reward"]
    return out


def advantages(b, kind, kl_beta=0.0):
    rewards = scores(b)
    if kl_beta:
        rewards = verl.compute_rewards(rewards, b["old"], b["reference"], kl_beta) * b["mask"]
    f = {
        "mean": lambda: verl.compute_grpo_outcome_advantage(rewards, b["mask"], b["group"], norm_adv_by_std_in_grpo=False),
        "mean_std": lambda: verl.compute_grpo_outcome_advantage(rewards, b["mask"], b["group"], epsilon=1e-4),
        "leave_one_out": lambda: verl.compute_rloo_outcome_advantage(rewards, b["mask"], b["group"]),
    }[kind]
    out = (f()[0] * b["mask"]).sum(-1) / b["mask"].sum(-1)
    if kind == "mean_std":  # TRL's line, with its deviation
        grouped = b["reward"].view(-1, GROUP)
        deviation = nanstd(grouped, dim=1).repeat_interleave(GROUP)
        want = (b["reward"] - grouped.mean(1).repeat_interleave(GROUP)) / (deviation + 1e-4)
        assert torch.allclose(want, out, atol=1e-12)
    return out


class Accelerator:
    num_processes = 1
    sync_gradients = True

    def reduce(self, x, reduction):
        return x

    def gather(self, x):
        return x

    gather_for_metrics = gather


def trainer(logp, **fields):
    me = types.SimpleNamespace(
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level="token",
        beta=0.0, loss_type="grpo", epsilon_low=0.2, epsilon_high=0.2, use_vllm=False,
        vllm_importance_sampling_correction=False, model=types.SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1, max_completion_length=None, accelerator=Accelerator(),
        _entropy_bonus_enabled=False, _metrics=defaultdict(lambda: defaultdict(list)),
        args=types.SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1))
    for key, value in fields.items():
        setattr(me.args if key == "delta" else me, key, value)
    me._get_per_token_logps_and_entropies = lambda *a, **k: (logp, torch.zeros_like(logp), None)
    return me


def trl_loss(cls, b, advantage, weights=None, **fields):
    logp = b["logp"].clone().requires_grad_(True)
    me = trainer(logp, use_vllm=weights is not None, vllm_importance_sampling_correction=weights is not None, **fields)
    ids = torch.ones_like(b["mask"], dtype=torch.long)
    inputs = dict(prompt_ids=ids[:, :1], prompt_mask=ids[:, :1], completion_ids=ids, completion_mask=b["mask"],
                  advantages=advantage, old_per_token_logps=b["old"], ref_per_token_logps=b["reference"],
                  old_logps=(b["old"] * b["mask"]).sum(1), num_items_in_batch=b["mask"].sum(),
                  importance_sampling_ratio=weights)
    loss = cls._compute_loss(me, None, inputs)
    loss.backward()
    metrics = {ours: me._metrics["train"][theirs][0] for ours, theirs in
               [("clipped_low", "clip_ratio/low_mean"), ("clipped_high", "clip_ratio/high_mean"), ("kl", "kl")]
               if me._metrics["train"][theirs]}
    return loss, logp.grad, metrics


def verl_loss(function, b, advantage, mode, weights=None, length=None, kl=None, beta=0.0, **fields):
    logp = b["logp"].clone().requires_grad_(True)
    config = ActorConfig(strategy="fsdp", ppo_mini_batch_size=8, ppo_micro_batch_size_per_gpu=8, rollout_n=1, **fields)
    if length:
        config.global_batch_info["loss_scale_factor"] = length
    loss, metrics = function(b["old"], logp, advantage[:, None] * b["mask"], b["mask"], mode, config, weights)
    if kl:
        terms = verl.kl_penalty(logp, b["reference"], kl)
        loss = loss + beta * verl.agg_loss(terms, b["mask"], mode, **config.global_batch_info)
    loss.backward()
    return loss, logp.grad, {}


MODES = {"token-mean": "token_mean", "seq-mean-token-sum": "sequence_sum", "seq-mean-token-mean": "sequence_mean",
         "seq-mean-token-sum-norm": "constant"}


def trl_cases(b):
    grpo, rloo = trl.GRPOTrainer, trl.RLOOTrainer
    a, mean = advantages(b, "mean_std"), advantages(b, "mean")
    yield "trl", {"kind": "grpo"}, a, trl_loss(grpo, b, a)
    yield "trl", {"kind": "grpo", "kl_beta": 0.04, "kl": "k3"}, a, trl_loss(grpo, b, a, beta=0.04)
    yield "trl", {"kind": "grpo", "ratio_max": 1.5}, a, trl_loss(grpo, b, a, delta=1.5)
    yield "trl", {"kind": "dr-grpo", "constant_length": 16}, mean, trl_loss(grpo, b, mean, loss_type="dr_grpo",
                                                                         max_completion_length=16)
    yield "trl", {"kind": "dapo"}, a, trl_loss(grpo, b, a, loss_type="dapo", epsilon_high=0.28)
    yield "trl", {"kind": "gspo"}, a, trl_loss(grpo, b, a, importance_sampling_level="sequence", epsilon_low=3e-4,
                                              epsilon_high=4e-4)
    yield "trl", {"kind": "gspo", "eps_low": 0.2, "eps_high": 0.3}, a, trl_loss(
        grpo, b, a, importance_sampling_level="sequence", epsilon_low=0.2, epsilon_high=0.3)
    leave = advantages(b, "leave_one_out")
    yield "trl", {"kind": "rloo"}, leave, trl_loss(rloo, b, leave)
    leave = advantages(b, "leave_one_out", 0.05)
    yield "trl", {"kind": "rloo", "eps_low": 0.5, "eps_high": 0.9, "kl_beta": 0.05, "kl_in_reward": True}, leave, trl_loss(
        rloo, b, leave, epsilon_low=0.5, epsilon_high=0.9)


def verl_cases(b):
    a, mean = advantages(b, "mean_std"), advantages(b, "mean")
    vanilla, gspo = verl.compute_policy_loss_vanilla, verl.compute_policy_loss_gspo
    for theirs, ours in MODES.items():
        yield "verl", {"kind": "grpo", "aggregation": ours, "ratio_max": 3.0, "constant_length": 20}, a, verl_loss(
            vanilla, b, a, theirs, length=20 if ours == "constant" else None, clip_ratio_low=0.2, clip_ratio_high=0.2)
    yield "verl", {"kind": "gspo", "eps_low": 0.1, "eps_high": 0.15}, a, verl_loss(
        gspo, b, a, "seq-mean-token-mean", clip_ratio_low=0.1, clip_ratio_high=0.15)
    yield "verl", {"kind": "gspo", "eps_low": 0.1, "eps_high": 0.15, "aggregation": "token_mean"}, a, verl_loss(
        gspo, b, a, "token-mean", clip_ratio_low=0.1, clip_ratio_high=0.15)
    yield "verl", {"kind": "reinforce"}, mean, verl_loss(verl.compute_policy_loss_reinforce, b, mean, "seq-mean-token-sum")
    for kl in ("k1", "k2", "k3", "k1+", "k3+"):
        yield "verl", {"kind": "dapo", "ratio_max": 3.0, "kl_beta": 0.1, "kl": kl}, a, verl_loss(
            vanilla, b, a, "token-mean", kl=kl, beta=0.1, clip_ratio_low=0.2, clip_ratio_high=0.28)
    for level, of_sequence in (("token", False), ("sequence", True)):
        for spec, kind, floor in (("1.25", "truncate", 0.0), ("0.6_1.5", "mask", 0.6)):
            weights, _ = compute_rollout_correction_weights(b["old"] - b["behavior"], b["mask"], level, spec)
            options = {"kind": "grpo", "ratio_max": 3.0, "aggregation": "token_mean", "correction": kind,
                       "correction_of_sequence": of_sequence, "correction_cap": float(spec.split("_")[-1]),
                       "correction_floor": floor}
            yield "verl", options, a, verl_loss(vanilla, b, a, "token-mean", weights=weights, clip_ratio_low=0.2,
                                                clip_ratio_high=0.2)
            if level == "token":
                options = {key: value for key, value in options.items() if key not in ("ratio_max", "aggregation")}
                yield "trl", options, a, trl_loss(trl.GRPOTrainer, b, a, weights=weights)


def sft(b):
    logp = b["logp"].clone().requires_grad_(True)
    loss = verl.agg_loss(-logp, b["mask"], "token-mean")
    loss.backward()
    return "verl", {"kind": "sft"}, torch.ones(len(logp)), (loss, logp.grad, {})


def record(number, library, options, advantage, result):
    loss, gradient, metrics = result
    return {"batch": number, "library": library, "options": options, "advantages": advantage.tolist(), "loss": loss.item(),
            "metrics": metrics, "gradient": gradient.tolist()}


def rounded(x):
    """Nine digits suffice for 1e-6."""
    if isinstance(x, float):
        return float(f"{x:.9g}")
    if isinstance(x, list):
        return [rounded(y) for y in x]
    return {key: rounded(y) for key, y in x.items()} if isinstance(x, dict) else x


def main():
    cases = [record(i, *case) for i, b in enumerate(BATCHES) for case in [sft(b), *trl_cases(b), *verl_cases(b)]]
    punishment = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    overlong = [[n, punishment([[1] * n])[0]] for n in (1, 79, 80, 81, 90, 99, 100, 101, 500)]
    out = {"versions": {name: importlib.metadata.version(name) for name in ("torch", "trl", "verl")},
           "batches": [{key: value.tolist() if hasattr(value, "tolist") else value for key, value in b.items()} for b in BATCHES],
           "overlong": {"max": 100, "buffer": 20, "values": overlong}, "cases": rounded(cases)}
    path = pathlib.Path(sys.argv[1]) / "algorithms.json"
    path.write_text(json.dumps(out) + "\n")
    print(path, len(cases), "cases")


main()
