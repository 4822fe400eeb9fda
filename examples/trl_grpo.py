"""TRL's GRPOTrainer with the engine as sampler and learner: trl_grpo.py [MODEL] [STEPS] [LEARNER]; needs torch and trl"""
import random
import re
import sys
import tempfile

import invar.trl
from datasets import Dataset
from invar import LLM
from trl import GRPOConfig, GRPOTrainer

model = sys.argv[1] if len(sys.argv) > 1 else "models/tiny-math"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 30
learner = sys.argv[3] if len(sys.argv) > 3 else "invar"  # or torch: its own forward pass
rng = random.Random(1)
sums = [(rng.randrange(1, 50), rng.randrange(1, 50)) for _ in range(1000)]
data = Dataset.from_list([{"prompt": f"{a} + {b} =", "answer": a + b} for a, b in sums])


def closeness(completions, answer, **_):
    """1 for the right number first, less the further it is away, 0 for none."""
    found = [re.match(r"\s*(\d+)", completion) for completion in completions]
    return [1 / (1 + abs(int(number[1][:6]) - wanted)) if number else 0.0 for number, wanted in zip(found, answer)]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=steps, per_device_train_batch_size=32, num_generations=8, max_completion_length=8,
    learning_rate=1e-4, logging_steps=1, report_to="none", save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True,
    gradient_checkpointing=False, model_init_kwargs={"dtype": "float32"},
)  # fmt: skip
trainer = GRPOTrainer(model, reward_funcs=closeness, args=args, train_dataset=data)
invar.trl.attach(trainer, LLM(model), learner=learner == "invar")  # the one line
trainer.train()

for row in trainer.state.log_history:
    if "reward" in row:
        mean, most = (row[f"sampling/sampling_logp_difference/{name}"] for name in ("mean", "max"))
        print(f"step {row['step']}: reward {row['reward']:.3f}, sampler and learner differ by {mean:.3g}, at most {most:.3g}")
