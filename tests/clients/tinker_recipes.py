"""Recipes of the tinker cookbook, unmodified, against `python -m invar.tinker` with tiny-math. Their data sets, which are on a hub, are
a few rows of the same form. In reinforcement learning the KL of sampler and learner that they log is exactly 0 in every step."""

import asyncio
import contextlib
import json
import os
import pathlib
import sys
import tempfile
import unittest.mock

import tinker_server as server

server.add_torch()
import chz  # noqa: E402
import datasets  # noqa: E402
from tinker_cookbook import renderers  # noqa: E402
from tinker_cookbook.distillation import datasets as distilled  # noqa: E402
from tinker_cookbook.recipes import rl_basic, rl_loop, sl_basic, sl_loop  # noqa: E402
from tinker_cookbook.recipes.distillation import on_policy_distillation  # noqa: E402
from tinker_cookbook.recipes.math_rl import math_env  # noqa: E402
from tinker_cookbook.recipes.math_rl import train as math_rl  # noqa: E402
from tinker_cookbook.recipes.preference.dpo import train as dpo  # noqa: E402
from tinker_cookbook.recipes.rl_numerics_check import env as counting  # noqa: E402
from tinker_cookbook.recipes.rl_numerics_check import train as numerics  # noqa: E402
from tinker_cookbook.rl import train as rl_train  # noqa: E402
from upstream import TINY_MATH  # noqa: E402

RANK = int(sys.argv[1]) if len(sys.argv) > 1 else 8
ROWS = [(f"What is {a} + {b}?", str(a + b)) for a in range(3, 9) for b in range(2, 8)]
QWEN = ["<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
KL = ("optim/kl_sample_train_v1", "optim/kl_sample_train_v2")


def no_robots():
    talks = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": f"{q[8:-1]} = {a}"}]} for q, a in ROWS]
    return datasets.DatasetDict(train=datasets.Dataset.from_list(talks), test=datasets.Dataset.from_list(talks[:4]))


def gsm8k():
    rows = [{"question": q, "answer": f"It is {a}.\n#### {a}"} for q, a in ROWS]
    return datasets.DatasetDict(train=datasets.Dataset.from_list(rows), test=datasets.Dataset.from_list(rows[:4]))


def wikitext():
    line = "The time before the war was known as a time of peace , and after it came many such times over the land .\n"
    return [line] * 400


def comparisons():
    talk = "\n\nHuman: {}\n\nAssistant: {}".format
    rows = [{"chosen": talk(q, a), "rejected": talk(q, f"{a}0")} for q, a in ROWS]
    return datasets.DatasetDict(train=datasets.Dataset.from_list(rows), test=datasets.Dataset.from_list(rows[:4]))


def questions():
    rows = [{"question": q, "final_answer": a} for q, a in ROWS]
    return datasets.DatasetDict(train=datasets.Dataset.from_list(rows), test=datasets.Dataset.from_list(rows[:4]))


SETS = {"HuggingFaceH4/no_robots": no_robots, "openai/gsm8k": gsm8k, "Anthropic/hh-rlhf": comparisons, "zwhe99/DeepMath-103K": questions}


def load_dataset(path, *_, split=None, **__):
    found = SETS[path]()
    return found if split is None else found[split]


def metrics(folder):
    return [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]


def supervised(url, folder):
    config = sl_loop.Config(base_url=url, log_path=folder, model_name=server.NAME, batch_size=6, max_length=256, lora_rank=RANK, save_every=2,
                            max_steps=4, learning_rate=2e-3)
    sl_loop.main(config)
    rows = metrics(folder)
    assert len(rows) == 4 and rows[-1]["train_mean_nll"] < rows[0]["train_mean_nll"], rows
    saved = [json.loads(line) for line in (pathlib.Path(folder) / "checkpoints.jsonl").read_text().splitlines()]
    assert [row["name"] for row in saved] == ["000002", "final"] and saved[-1]["sampler_path"], saved
    return f"{len(rows)} steps, loss {rows[0]['train_mean_nll']:.3f} to {rows[-1]['train_mean_nll']:.3f}"


def reinforced(url, folder):
    """The reward is the parity of a length, so that groups differ."""
    config = rl_loop.Config(base_url=url, log_path=folder, model_name=server.NAME, batch_size=4, group_size=6, max_tokens=24, lora_rank=RANK,
                            save_every=2, max_steps=3, learning_rate=1e-3)
    with unittest.mock.patch.object(rl_loop, "get_reward", lambda response, answer: float(len(response) % 2)):
        rl_loop.main(config)
    rows = metrics(folder)
    assert len(rows) == 3 and all(row["grad_norm"] > 0 for row in rows), rows
    return f"{len(rows)} steps of {config.loss_fn}"


def numerics_check(url, folder):
    """recipes/rl_numerics_check: long contexts of many turns, short here. rewards: any, as long as they differ."""
    task = counting.CountingTaskConfig(num_pages_min=2, num_pages_max=3, page_chars=60, words=("time",))
    config = numerics.build_config(numerics.CLIConfig(
        model_name=server.NAME, renderer_name="qwen3", lora_rank=RANK, learning_rate=2e-3, group_size=3, groups_per_batch=2, max_tokens=24,
        max_trajectory_tokens=1500, task=task, save_every=0, max_steps=3, base_url=url, log_path=folder, behavior_if_log_dir_exists="delete"))

    async def reward(self, history):
        return float(sum(len(renderers.get_text_content(m)) for m in history) % 7), {}

    counting.load_wikitext_corpus.cache_clear()
    with unittest.mock.patch.object(counting, "load_wikitext_corpus", lambda: "".join(wikitext())), \
            unittest.mock.patch.object(counting.CountingReward, "__call__", reward):
        asyncio.run(rl_train.main(config))
    return kl_zero(folder, 3)


def kl_zero(folder, steps):
    rows = [row for row in metrics(folder) if KL[0] in row]
    assert len(rows) == steps, rows
    for row in rows:
        assert all(row[name] == 0.0 for name in KL), {name: row[name] for name in KL}
    moved = rows[-1]["optim/entropy"] != rows[0]["optim/entropy"]
    assert moved, "the policy did not learn"
    return f"{steps} steps, KL exactly 0 in each, entropy {rows[0]['optim/entropy']:.4f} to {rows[-1]['optim/entropy']:.4f}"


def basic_supervised(url, folder):
    config = sl_basic.build_config_blueprint(server.NAME).make()
    common = chz.replace(config.dataset_builder.common_config, batch_size=6, max_length=256)
    sl_basic.main(chz.replace(config, base_url=url, log_path=folder, lora_rank=RANK, max_steps=3, eval_every=2, save_every=2,
                              dataset_builder=chz.replace(config.dataset_builder, common_config=common)))
    rows = [row for row in metrics(folder) if "train_mean_nll" in row]
    assert rows[-1]["train_mean_nll"] < rows[0]["train_mean_nll"], rows
    return f"{len(rows)} steps, loss {rows[0]['train_mean_nll']:.3f} to {rows[-1]['train_mean_nll']:.3f}"


def basic_reinforced(url, folder):
    with unittest.mock.patch.object(math_env.MathEnv, "check_answer", lambda self, text: len(text) % 2 == 0), \
            unittest.mock.patch.object(math_env.MathEnv, "check_format", lambda self, text: True):
        config = rl_basic.build_config_blueprint(server.NAME).make()
        rl_basic.main(chz.replace(config, base_url=url, log_path=folder, lora_rank=RANK, max_steps=2, max_tokens=16, learning_rate=1e-3,
                                  dataset_builder=chz.replace(config.dataset_builder, batch_size=4, group_size=4)))
    return kl_zero(folder, 2)


def arithmetic(url, folder):
    """math_rl with the loss of PPO."""
    asyncio.run(math_rl.cli_main(math_rl.CLIConfig(
        model_name=server.NAME, base_url=url, log_path=folder, lora_rank=RANK, group_size=8, groups_per_batch=6, learning_rate=1e-3, max_steps=2,
        max_tokens=6, loss_fn="ppo", save_every=0, eval_every=0)))
    return kl_zero(folder, 2)


def preference(url, folder):
    """DPO: custom losses, and log-probabilities of the reference. Its rank is the default of 32."""
    dpo.cli_main(dpo.CLIConfig(model_name=server.NAME, base_url=url, log_path=folder, renderer_name="role_colon", dataset="hhh",
                               learning_rate=1e-3, max_length=128, batch_size=6, max_steps=3))
    rows = [row for row in metrics(folder) if "dpo_loss" in row]
    assert rows and rows[-1]["dpo_loss"] < rows[0]["dpo_loss"], rows
    return f"{len(rows)} steps, loss {rows[0]['dpo_loss']:.3f} to {rows[-1]['dpo_loss']:.3f}"


def distillation(url, folder):
    """On policy, the base as the teacher."""
    asyncio.run(on_policy_distillation.cli_main(on_policy_distillation.CLIConfig(
        model_name=server.NAME, teacher_model=server.NAME, base_url=url, log_path=folder, lora_rank=RANK, group_size=4, groups_per_batch=3,
        max_tokens=12, learning_rate=1e-3, max_steps=2, eval_every=0, save_every=0)))
    return f"{len([row for row in metrics(folder) if 'teacher_kl' in row])} steps"


RECIPES = {"sl_loop": supervised, "rl_loop": reinforced, "rl_numerics_check": numerics_check, "sl_basic": basic_supervised,
           "rl_basic": basic_reinforced, "math_rl": arithmetic, "preference": preference, "distillation": distillation}


def main(names):
    os.environ["TINKER_API_KEY"] = server.KEY
    with server.package() as path, tempfile.TemporaryDirectory() as folder:
        model = server.with_tokens(TINY_MATH, folder, QWEN)
        with server.hub(model) as env, contextlib.ExitStack() as patched:
            for module in (datasets, math_env, distilled):
                patched.enter_context(unittest.mock.patch.object(module, "load_dataset", load_dataset))
            os.environ.update(env)
            import huggingface_hub.constants

            huggingface_hub.constants.HF_HUB_CACHE, huggingface_hub.constants.HF_HUB_OFFLINE = env["HF_HUB_CACHE"], True
            with server.serving(path, model, "--served-model-name", server.NAME, "--stable-reinforce", "importance_sampling") as running:
                for name in names or RECIPES:
                    try:
                        print(f"{name}: {RECIPES[name](running.url, f'{folder}/{name}')}", flush=True)
                    except BaseException:
                        print(running.text()[-6000:])
                        raise
                running.stop()
    print(f"{len(names or RECIPES)} recipes of the cookbook, {f'rank {RANK}' if RANK else 'all weights'}")


if __name__ == "__main__":
    main(sys.argv[2:])
