"""GRPO in one process; sampler and learner agree in every bit: rl_loop.py [MODEL] [STEPS]"""
import sys

from invar import LLM, Policy, PolicySequence, SamplingParams, Trainer

model = sys.argv[1] if len(sys.argv) > 1 else "models/tiny-sum"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3
prompts, group = ["2 + 2 =", "3 + 4 ="], 4
llm = LLM(model, trainable=True)
trainer = Trainer(model, run={"example": "rl_loop", "seed": 1}, pass_tokens=512)
policy = Policy("grpo")
for step in range(steps):
    params = SamplingParams(n=group, temperature=1.0, max_tokens=16, seed=1000 * step)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    items = [PolicySequence.from_output(output, i) for output in outputs for i in range(group)]
    rewards = [float(any(c.isdigit() for c in answer.text)) - 0.01 * len(answer.token_ids)
               for output in outputs for answer in output.outputs]  # fmt: skip
    groups = [i // group for i in range(len(items))]
    for item, advantage in zip(items, policy.advantages(groups, rewards)):
        item.advantage = float(advantage)
    report = trainer.policy_step(policy, items, learning_rate=1e-5, max_norm=1.0)
    assert report.equal == report.tokens and report.sampler_k3 == 0
    trainer.sync(llm)
    print(f"step {step}: {report.equal} of {report.tokens} tokens equal in every bit, weights {trainer.weights_hash[:16]}")
