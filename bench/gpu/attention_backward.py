#!/usr/bin/env python3
"""attention_backward.py: the backward pass of causal attention by PyTorch's SDPA, at the shapes of
bench_attention_backward: one sequence, heads of 128 over 8 KV heads, bfloat16, normal random data.

    python3 bench/gpu/attention_backward.py [--rows 8192] [--json FILE]

Backends: cuDNN and flash, each free and with torch.use_deterministic_algorithms. Where a backend does not take grouped
heads, keys and values are repeated before the measurement, and its gradients are those of the repeated ones. Times are
medians of runs of backward passes in a row; TFLOP/s count five products of the visible half.
"""

import argparse
import json
import statistics

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

KV_HEADS, DIM, TURNS = 8, 128, 7
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def tensors(rows, heads, repeated):
    """q, k, v as views [1][heads][rows][DIM] of rows of all heads, and the gradient of the output."""
    def normal(n):
        return torch.randn(1, rows, n, DIM, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

    k, v = normal(KV_HEADS), normal(KV_HEADS)
    if repeated:
        k, v = (x.repeat_interleave(heads // KV_HEADS, dim=1) for x in (k, v))
    return [x.detach().requires_grad_() for x in (normal(heads), k, v)], normal(heads)


def milliseconds(run, launches):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(launches):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / launches


def measure(backend, rows, heads, repeated):
    inputs, gradient = tensors(rows, heads, repeated)
    with sdpa_kernel([BACKENDS[backend]]):
        out = functional.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=not repeated)

    def run():
        torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    launches = max(3, int(2e13 / (5 * rows * rows * DIM * heads)))
    milliseconds(run, 2)
    return statistics.median(milliseconds(run, launches) for _ in range(TURNS))


def report(backend, deterministic, rows, heads, json_file):
    torch.use_deterministic_algorithms(deterministic, warn_only=False)
    for repeated in (False, True):
        try:
            ms = measure(backend, rows, heads, repeated)
            break
        except RuntimeError as error:
            why = str(error).strip().splitlines()[0][:110]
        finally:
            torch.cuda.empty_cache()
    else:
        print(f"{rows:6} rows {heads:2} heads: {backend}: {why}", flush=True)
        return
    tflops = 5 * rows * rows * DIM * heads / ms * 1e-9
    how = ("deterministic" if deterministic else "free") + (", repeated keys" if repeated else "")
    print(f"{rows:6} rows {heads:2} heads: {ms:8.3f} ms {tflops:6.1f} TFLOP/s {backend}, {how}", flush=True)
    if json_file:
        record = {"bench": "attention_backward", "peer": backend, "deterministic": deterministic, "rows": rows,
                  "heads": heads, "repeated": repeated, "ms": ms, "tflops": tflops}
        json_file.write(json.dumps(record) + "\n")


def main():
    parser = argparse.ArgumentParser(description="The backward pass of causal attention by PyTorch.")
    parser.add_argument("--rows", type=int, help="only this length")
    parser.add_argument("--json", type=argparse.FileType("w"))
    options = parser.parse_args()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(0), torch.__version__, "cuDNN", torch.backends.cudnn.version())
    for rows in [options.rows] if options.rows else [2048, 8192, 32768]:
        for heads in (32, 16):
            for backend in BACKENDS:
                for deterministic in (False, True):
                    report(backend, deterministic, rows, heads, options.json)


if __name__ == "__main__":
    main()
