#!/usr/bin/env python3
"""The share of a reinforcement learning step through the tinker client that is neither rollout nor learner: tinker_share.py [--hidden N]
[--layers N] [--rank R] [--steps N]. A model of random weights, GRPO on 8 prompts with 8 answers each; the server is in this process,
the client in another. Needs invar[tinker] and the tinker client's tokenizer (tests/clients/requirements-tinker.txt)."""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TINY = ROOT / "models/tiny-math"


def model_of(folder, hidden, layers):
    from invar import Trainer

    shape = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 128,
             "head_dim": 64, "intermediate_size": 3 * hidden}
    source, made = folder / "source", folder / "model"
    source.mkdir()
    config = json.loads((TINY / "config.json").read_text()) | shape
    config.pop("layer_types", None)
    (source / "config.json").write_text(json.dumps(config))
    names = [path for path in TINY.iterdir() if path.name.startswith(("tokenizer", "generation_config"))]
    for path in names:
        shutil.copy(path, source)
    with Trainer(source, load_format="dummy", dummy_seed=1) as trainer:
        trainer.export(made)
        elements = trainer.info.elements
    for path in names:
        shutil.copy(path, made)
    return made, elements


def client(url, model, rank, steps):
    """Prints a line before and after the steps."""
    import tinker
    from tinker import types

    trainer = tinker.ServiceClient(base_url=url, api_key="tml-bench").create_lora_training_client(model, rank=rank, seed=1).result()

    def step(number):
        sampler = trainer.save_weights_and_get_sampling_client().result()
        prompts = [[(31 * i + 7 * t) % 600 for t in range(100)] for i in range(8)]
        params = types.SamplingParams(max_tokens=100, seed=number, stop=[])
        futures = [sampler.sample(types.ModelInput.from_ints(p), 8, params) for p in prompts]
        data = []
        for p, future in zip(prompts, futures):
            for i, s in enumerate(future.result().sequences):
                pad = [0.0] * (len(p) - 1)
                data.append(types.Datum(model_input=types.ModelInput.from_ints([*p, *s.tokens[:-1]]), loss_fn_inputs={
                    "target_tokens": [*p[1:], *s.tokens], "logprobs": [*pad, *s.logprobs], "advantages": [*pad, *[i % 3 - 1.0] * len(s.tokens)]}))
        forward = trainer.forward_backward(data, "importance_sampling")
        trainer.optim_step(types.AdamParams(learning_rate=1e-4)).result()
        forward.result()

    step(0)
    print("begin", flush=True)
    for number in range(1, steps + 1):
        step(number)
    print("end", flush=True)


def main():
    words = argparse.ArgumentParser()
    for name, default in (("hidden", 512), ("layers", 8), ("rank", 32), ("steps", 3), ("threads", 0)):
        words.add_argument(f"--{name}", type=int, default=default)
    words.add_argument("--client", nargs=2)
    given = words.parse_args()
    if given.client:
        return client(*given.client, given.rank, given.steps)
    import uvicorn

    from invar.tinker.app import application
    from invar.tinker.options import Options
    from invar.tinker.service import Service

    with tempfile.TemporaryDirectory() as folder:
        model, elements = model_of(pathlib.Path(folder), given.hidden, given.layers)
        service = Service(Options(model=str(model), threads=given.threads, device="cpu"))
        server = uvicorn.Server(uvicorn.Config(application(service), port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        command = [sys.executable, __file__, "--client", url, str(model), "--rank", str(given.rank), "--steps", str(given.steps)]
        marks = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ran:
            for line in ran.stdout:
                if line.strip() in ("begin", "end"):
                    marks.append((time.monotonic(), service.models.seconds, service.sampling.seconds))
        server.should_exit = True
        thread.join()
    wall, learner, engine = (after - before for before, after in zip(*marks))
    print(f"{elements / 1e6:.0f} million weights, rank {given.rank}: {wall / given.steps:.2f} s a step, {engine / given.steps:.2f} rollout, "
          f"{learner / given.steps:.2f} learner, {100 * (1 - (learner + engine) / wall):.1f} % else")


if __name__ == "__main__":
    main()
