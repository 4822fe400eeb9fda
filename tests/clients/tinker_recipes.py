"""Recipes of the tinker cookbook, unmodified, against `python -m invar.tinker` with tiny-math. Their data sets, which are on a hub, are
a few rows of the same form. In reinforcement learning the KL of sampler and learner that they log is exactly 0 in every step."""

import asyncio
import json
import os
import pathlib
import sys
import tempfile
import unittest.mock

import tinker_server as server

server.add_torch()
import datasets  # noqa: E402
from tinker_cookbook import renderers  # noqa: E402
from tinker_cookbook.recipes import rl_loop, sl_loop  # noqa: E402
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


SETS = {"HuggingFaceH4/no_robots": no_robots, "openai/gsm8k": gsm8k}


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


RECIPES = {"sl_loop": supervised, "rl_loop": reinforced, "rl_numerics_check": numerics_check}


def main(names):
    os.environ["TINKER_API_KEY"] = server.KEY
    with server.package() as path, tempfile.TemporaryDirectory() as folder:
        model = server.with_tokens(TINY_MATH, folder, QWEN)
        with server.hub(model) as env, unittest.mock.patch.object(datasets, "load_dataset", lambda name, *_, **__: SETS[name]()):
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
