#!/usr/bin/env python3
"""int8.py: linear layers of Qwen3-8B in int8 next to torch's 8-bit products, by turns.

    python3 bench/gpu/int8.py build/bench/gpu/bench_int8 [--rows 1024,8192] [--rounds 3]

torch has the product alone, its inputs quantized before: scaled_mm of float8_e4m3 with a scale a row and an output and
fast accumulation, and _int_mm without scales. Medians of all rounds.
"""

import argparse
import re
import statistics
import subprocess

import torch

SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (24576, 4096), "down": (4096, 12288)}


def timed(call, copies):
    """Microseconds of a call; arguments change from call to call."""
    launches = max(8, copies)
    call(0)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    taken = []
    for _ in range(7):
        begin.record()
        for i in range(launches):
            call(i % copies)
        end.record()
        end.synchronize()
        taken.append(1e3 * begin.elapsed_time(end) / launches)
    return statistics.median(taken)


def torch_us(n, k, rows):
    copies = (256 << 20) // (n * k) + 1
    x8 = torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn)
    xi = torch.randint(-127, 128, (rows, k), device="cuda", dtype=torch.int8)
    w8 = [torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn) for _ in range(copies)]
    wi = [torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8) for _ in range(copies)]
    a, b = torch.rand(rows, 1, device="cuda"), torch.rand(1, n, device="cuda")
    fp8 = timed(lambda i: torch._scaled_mm(x8, w8[i].t(), a, b, out_dtype=torch.bfloat16, use_fast_accum=True), copies)
    whole = timed(lambda i: torch._int_mm(xi, wi[i].t()), copies) if rows > 16 else float("nan")
    return fp8, whole


def ours(program, rows):
    text = subprocess.run([program, "--rows", str(rows)], capture_output=True, text=True, check=True).stdout
    found = {}
    for name, terms, us, codes in re.findall(r"^(\w+) +rows +\d+ terms (\d) +([\d.]+) us +codes +([\d.]+)", text, re.M):
        found[name, int(terms)] = (float(us), float(codes))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rows", default="1024,8192")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("layer     rows     i8 us  i8x2 us   fp8 us  int_mm us  i8/fp8 rate  i8/int_mm rate  i8 TOP/s")
    for rows in map(int, options.rows.split(",")):
        taken = {name: [[], [], [], []] for name in SHAPES}
        for _ in range(options.rounds):
            mine = ours(options.program, rows)
            for name, (n, k) in SHAPES.items():
                values = (mine[name, 1][0], mine[name, 2][0], *torch_us(n, k, rows))
                for series, value in zip(taken[name], values):
                    series.append(value)
        for name, (n, k) in SHAPES.items():
            one, two, fp8, whole = map(statistics.median, taken[name])
            print(f"{name:8} {rows:5} {one:9.1f} {two:8.1f} {fp8:8.1f} {whole:10.1f} {fp8 / one:12.3f} "
                  f"{whole / one:15.3f} {2e-6 * rows * n * k / one:9.0f}")


if __name__ == "__main__":
    main()
