"""GRPO in Python: the sampler is an LLM, the learner a Trainer, and their log-probabilities are equal in every bit."""

import json

from invar import LLM, Policy, PolicySequence, SamplingParams, Trainer

MODEL, STEPS, PROMPTS, GROUP = "models/tiny-sum", 40, 64, 8
options = {"dtype": "bfloat16", "arithmetic": "fma32"}
with open(f"{MODEL}/problems.jsonl", encoding="utf-8") as file:
    problems = [json.loads(line) for line in file]

policy = Policy("grpo")
with Trainer(MODEL, betas=(0.9, 0.95), **options) as trainer, LLM(MODEL, trainable=True, **options) as llm:
    for step in range(STEPS):
        trainer.sync(llm)
        some = [problems[(step * PROMPTS + i) % len(problems)] for i in range(PROMPTS)]
        first = step * PROMPTS  # every answer has a seed of its own
        params = [
            SamplingParams(n=GROUP, temperature=1.0, seed=(first + i) * GROUP, max_tokens=4, logprobs=0)
            for i in range(PROMPTS)
        ]
        outputs = llm.generate([p["prompt"] for p in some], params, use_tqdm=False)

        groups = [i for i in range(PROMPTS) for _ in range(GROUP)]
        rewards = [float(c.text.strip() == p["answer"]) for p, o in zip(some, outputs) for c in o.outputs]
        advantages = policy.advantages(groups, rewards)
        rows = [
            PolicySequence.from_output(o, index=k, advantage=advantages[i * GROUP + k])
            for i, o in enumerate(outputs)
            for k in range(GROUP)
        ]
        rate = 1e-3 * min(1.0, (step + 1) / 5)
        report = trainer.policy_step(policy, rows, rate, max_norm=1.0)
        print(
            f"step {step + 1}: reward {sum(rewards) / len(rewards):.3f}, "
            f"tokens compared {report.tokens}, different {report.tokens - report.equal}"
        )
