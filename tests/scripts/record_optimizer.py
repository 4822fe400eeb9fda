"""Records what torch.optim.AdamW makes of a stream of gradients: tests/data/train/adamw.json.

Weights and gradients come from splitmix64, which tests/numerics/test_optimizer.c has too. Run by record_training.sh.
"""

import json
import pathlib
import sys

import torch

ELEMENTS, STEPS = 24, 100
RUNS = [
    {"seed": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    {"seed": 2, "lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    {"seed": 3, "lr": 1e-3, "beta1": 0.8, "beta2": 0.99, "eps": 1e-5, "weight_decay": 0.0},
]


def splitmix64(state):
    mask = (1 << 64) - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def unit(stream):
    """A multiple of 2^-24 in [0, 1): exact in f32."""
    return (next(stream) >> 40) * 2.0**-24


def run(options, dtype):
    stream = splitmix64(options["seed"])
    w = torch.tensor([0.5 + unit(stream) for _ in range(ELEMENTS)], dtype=dtype, requires_grad=True)
    optimizer = torch.optim.AdamW([w], lr=options["lr"], betas=(options["beta1"], options["beta2"]),
                                  eps=options["eps"], weight_decay=options["weight_decay"], foreach=False, fused=False)
    out = dict(options, weights=[], first=[], second=[])
    for _ in range(STEPS):
        w.grad = torch.tensor([2.0 ** (i % 12 - 9) * (unit(stream) - 0.25) for i in range(ELEMENTS)], dtype=dtype)
        optimizer.step()
        out["weights"].append([float(x) for x in w.detach()])
    state = optimizer.state[w]
    out["first"] = [float(x) for x in state["exp_avg"]]
    out["second"] = [float(x) for x in state["exp_avg_sq"]]
    out["weights"] = [out["weights"][i] for i in (0, 9, STEPS - 1)]
    return out


def both(options):
    """In f32, and the weights of the same run in f64: an f32 AdamW may be as far from PyTorch's as that is from exact."""
    return dict(run(options, torch.float32), exact=run(options, torch.float64)["weights"])


def clip(seed):
    stream = splitmix64(seed)
    g = torch.tensor([8 * unit(stream) - 4 for _ in range(1000)], dtype=torch.float64)
    w = torch.zeros_like(g, requires_grad=True)
    w.grad = g.clone()
    norm = torch.nn.utils.clip_grad_norm_([w], 1.0)
    return {"seed": seed, "max_norm": 1.0, "norm": float(norm), "first": [float(x) for x in w.grad[:8]]}


def main():
    out = {"torch": torch.__version__, "elements": ELEMENTS, "steps": STEPS, "recorded": [1, 10, STEPS],
           "runs": [both(o) for o in RUNS], "clip": clip(9)}
    path = pathlib.Path(sys.argv[1]) / "adamw.json"
    path.write_text(json.dumps(out, indent=1) + "\n")
    print(path)


main()
