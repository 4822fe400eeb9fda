#!/usr/bin/env python3
"""A patched transformers model compared with the same model under torch eager with SDPA: log-probabilities of every token,
forward and backward, in turn in one process.

    python_torch.py [--model tiny|0.6b|1.7b]... [--tokens 4096] [--sequences 1 4] [--rounds 7] [--device cuda]

Qwen3 with random weights. The forward pass has bfloat16 parameters on both sides; for the backward pass the patched model
has float32 parameters, which it rounds in each pass as training does, and torch's has bfloat16 ones. Prints medians of
milliseconds and torch's time over invar's: above 1 invar is faster."""
import argparse
import random
import statistics
import time

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import invar.torch

SHAPES = {  # hidden, intermediate, layers, heads, KV heads, head_dim, vocabulary
    "tiny": (64, 192, 2, 4, 2, 16, 512),
    "0.6b": (1024, 3072, 28, 16, 8, 128, 151936),
    "1.7b": (2048, 6144, 28, 16, 8, 128, 151936),
}


def model_of(name, dtype, device):
    hidden, intermediate, layers, heads, kv_heads, head_dim, vocab = SHAPES[name]
    config = Qwen3Config(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, vocab_size=vocab, max_position_embeddings=8192,
        tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(1)
    with torch.device(device):
        return Qwen3ForCausalLM(config).to(dtype)


def plain_logprobs(model, ids):
    logits = model(ids, use_cache=False).logits[:, :-1].float()
    return torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])


def patched_logprobs(model, ids):
    return invar.torch.logprobs(model, ids.cpu())


class Side:
    def __init__(self, logprobs, scores, learns):
        self.logprobs, self.scores, self.learns, self.times = logprobs, scores, learns, {"forward": [], "backward": []}

    def clock(self, what, call, wait):
        wait()
        begin = time.perf_counter()
        out = call()
        wait()
        self.times[what].append(time.perf_counter() - begin)
        return out

    def round(self, ids, wait):
        with torch.no_grad():
            self.clock("forward", lambda: self.logprobs(self.scores, ids), wait)
        loss = -self.logprobs(self.learns, ids).sum()
        self.clock("backward", loss.backward, wait)
        self.learns.zero_grad(set_to_none=True)


def compare(name, args):
    wait = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None
    patch = invar.torch.patch
    scores = patch(model_of(name, torch.bfloat16, args.device))
    learns = patch(model_of(name, torch.float32, args.device), dtype="bfloat16")
    plain = model_of(name, torch.bfloat16, args.device)
    rng = random.Random(2)
    for count in args.sequences:
        ids = torch.tensor([[rng.randrange(SHAPES[name][-1]) for _ in range(args.tokens // count)] for _ in range(count)])
        ids = ids.to(args.device)
        sides = Side(plain_logprobs, plain, plain), Side(patched_logprobs, scores, learns)
        for _ in range(args.rounds + 1):
            for side in sides:
                side.round(ids, wait)
        for what in ("forward", "backward"):
            torch_s, invar_s = (side.times[what][1:] for side in sides)  # the first warms up
            ratios = sorted(a / b for a, b in zip(torch_s, invar_s))
            a, b = (1e3 * statistics.median(times) for times in (torch_s, invar_s))
            print(f"qwen3 {name} {count} x {args.tokens // count} tokens  {what:8}  torch {a:9.2f} ms  invar {b:9.2f} ms"
                  f"  ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--model", action="append", choices=SHAPES)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--tokens", type=int, default=4096 if on_gpu else 128)
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    name = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}, {args.rounds} rounds")
    for model in args.model or (["0.6b", "1.7b"] if on_gpu else ["tiny"]):
        compare(model, args)


if __name__ == "__main__":
    main()
