"""A model learns sums through the tinker client, from a server `python -m invar.tinker models/tiny-sum`: tinker_rl.py [STEPS]. The
learner's log-probability of every sampled token is compared with the sampler's. $TINKER_BASE_URL names the server."""
import json
import os
import random
import sys

import tinker
from tinker import types

MODEL, STEPS, GROUP = "models/tiny-sum", int(sys.argv[1]) if len(sys.argv) > 1 else 40, 8
os.environ.setdefault("TINKER_API_KEY", "tml-any")
os.environ.setdefault("TINKER_BASE_URL", "http://127.0.0.1:8000")
problems = [json.loads(line) for line in open(f"{MODEL}/problems.jsonl")]
trainer = tinker.ServiceClient().create_lora_training_client(MODEL, rank=16, seed=1).result()
tokenizer, rng = trainer.get_tokenizer(), random.Random(1)


def datum(prompt, sequence, advantage):
    """Position i predicts token i + 1; those of the prompt have advantage 0."""
    pad = [0.0] * (len(prompt) - 1)
    inputs = {"target_tokens": [*prompt[1:], *sequence.tokens], "logprobs": [*pad, *sequence.logprobs],
              "advantages": [*pad, *[advantage] * len(sequence.tokens)]}
    return types.Datum(model_input=types.ModelInput.from_ints([*prompt, *sequence.tokens[:-1]]), loss_fn_inputs=inputs)


for step in range(1, STEPS + 1):
    sampler = trainer.save_weights_and_get_sampling_client().result()
    batch = [(tokenizer.encode(p["prompt"], add_special_tokens=False), p["answer"]) for p in rng.sample(problems, 32)]
    params = types.SamplingParams(max_tokens=4, temperature=1.0, seed=1000 * step)
    futures = [sampler.sample(types.ModelInput.from_ints(ids), GROUP, params) for ids, _ in batch]
    data, answers, total = [], [], 0.0
    for (ids, right), future in zip(batch, futures):
        group = future.result().sequences
        rewards = [float(tokenizer.decode(s.tokens, skip_special_tokens=True).strip() == right) for s in group]
        mean = sum(rewards) / GROUP
        total += mean
        if 0 < mean < 1:
            data += [datum(ids, s, (reward - mean) / len(batch)) for s, reward in zip(group, rewards)]
            answers += group
    forward = trainer.forward_backward(data, "importance_sampling")
    update = trainer.optim_step(types.AdamParams(learning_rate=2e-3 * (1 - (step - 1) / STEPS), grad_clip_norm=1.0))
    pairs = [pair for out, s in zip(forward.result().loss_fn_outputs, answers) for pair in zip(out["logprobs"].data[-len(s.tokens):], s.logprobs)]
    equal = sum(learner == behavior for learner, behavior in pairs)
    update.result()
    if step % 10 == 0 or step == STEPS:
        print(f"step {step}: mean reward {total / len(batch):.2f}, {equal} of {len(pairs)} tokens equal in every bit", flush=True)
