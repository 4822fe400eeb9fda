"""GRPO in one process: a model learns sums, and every sampled token is compared: rl_loop.py [STEPS]"""
import json
import random
import sys

from invar import LLM, Policy, PolicySequence, SamplingParams, Trainer

model, steps = "models/tiny-sum", int(sys.argv[1]) if len(sys.argv) > 1 else 40
problems, held_out = ([json.loads(line) for line in open(f"{model}/{name}.jsonl")] for name in ("problems", "held_out"))
llm = LLM(model, trainable=True)
trainer = Trainer(model, betas=(0.9, 0.95), run={"example": "rl_loop", "steps": steps})
policy, group, rng = Policy("grpo"), 8, random.Random(1)


def right():
    """How many of 500 other problems the most likely answer solves."""
    outputs = llm.generate([p["question"] for p in held_out], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    return sum(output.outputs[0].text == str(p["answer"]) for output, p in zip(outputs, held_out))


before = right()
for step in range(1, steps + 1):
    batch = rng.sample(problems, 32)
    params = SamplingParams(n=group, max_tokens=4, seed=1000 * step, sampling_logprobs=True)
    outputs = llm.generate([p["prompt"] for p in batch], params, use_tqdm=False)
    rewards = [float(answer.text == p["answer"]) for output, p in zip(outputs, batch) for answer in output.outputs]
    items = [PolicySequence.from_output(output, i) for output in outputs for i in range(group)]
    for item, advantage in zip(items, policy.advantages([i // group for i in range(len(items))], rewards)):
        item.advantage = advantage
    rate = 5e-4 * min(1, step / 5) * (1 - (step - 1) / steps)
    report = trainer.policy_step(policy, items, learning_rate=rate, max_norm=1.0)
    assert report.equal == report.tokens > 0  # the learner's log-probabilities are the sampler's
    trainer.sync(llm)
    if step % 10 == 0:
        mean = sum(rewards) / len(rewards)
        print(f"step {step}: mean reward {mean:.2f}, {report.equal} of {report.tokens} tokens equal in every bit", flush=True)
print(f"{before} of {len(held_out)} problems right before, {right()} after, weights {trainer.weights_hash[:16]}")
