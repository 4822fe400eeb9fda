"""Records the learning rates of transformers' get_scheduler: tests/data/train/schedules.json. Run by record_training.sh."""

import json
import pathlib
import sys

import torch
import transformers

# name, steps, warm-up steps, arguments, the C fields that they are
RUNS = [
    ("constant", 20, 0, {}),
    ("constant_with_warmup", 20, 6, {}),
    ("linear", 50, 0, {}),
    ("linear", 53, 7, {}),
    ("linear", 10, 10, {}),
    ("cosine", 50, 0, {}),
    ("cosine", 97, 13, {}),
    ("cosine_with_min_lr", 50, 5, {"min_lr_rate": 0.1}),
    ("cosine_with_min_lr", 40, 0, {"min_lr_rate": 0.25}),
    ("warmup_stable_decay", 60, 10, {"num_decay_steps": 20}),
    ("warmup_stable_decay", 60, 10, {"num_decay_steps": 20, "decay_type": "linear", "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", 47, 0, {"num_decay_steps": 11, "decay_type": "1-sqrt", "min_lr_ratio": 0.05}),
    ("warmup_stable_decay", 33, 3, {"num_decay_steps": 30, "decay_type": "cosine", "min_lr_ratio": 0.2}),
]
LR = 3e-4


def rates(name, steps, warmup, arguments):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    schedule = transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps,
                                          scheduler_specific_kwargs=dict(arguments))
    out = []
    for _ in range(steps + 1):
        out.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return out


def main():
    runs = [{"name": name, "steps": steps, "warmup": warmup, "min_ratio": a.get("min_lr_rate", a.get("min_lr_ratio", 0.0)),
             "decay": a.get("num_decay_steps", 0), "shape": a.get("decay_type", "cosine"),
             "rates": rates(name, steps, warmup, a)} for name, steps, warmup, a in RUNS]
    path = pathlib.Path(sys.argv[1]) / "schedules.json"
    path.write_text(json.dumps({"transformers": transformers.__version__, "learning_rate": LR, "runs": runs}) + "\n")
    print(path)


main()
