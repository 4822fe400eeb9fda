#!/usr/bin/env python3
r"""fit_linear.py: fits the constants of src/kernels/cuda/linear_cost.c to what was measured.

    python3 bench/gpu/linear.py --ops LIB --sweep --in-turn --json turn.jsonl --tokens 8,16,32,48,64,96,128,256,512,1000
    python3 bench/gpu/linear.py --ops LIB --sweep --alone --shapes head --json head.jsonl --tokens 8,16,32,64,128,256
    python3 bench/gpu/fit_linear.py --model to_32 turn.jsonl head.jsonl

    python3 bench/gpu/fit_linear.py --check costs.jsonl     whether the C says the same (tests/cuda/test_linear_choose.c)

Prints the constants, and what a choice by them costs: the time of what is chosen over that of the fastest, where layers
were measured in turn with the others of their decoder's layer in both; on average and at worst. A random walk that is
annealed, from the constants that stand in linear_cost.c or, with --seed, from elsewhere; the formula is the one there,
and so are the names. Those of to_64 and to_600 stand as they were fitted before, to sweeps with --alone and to plain
ones, where those in turn made slower steps; but for swiglu of to_600. Needs numpy, no GPU.
"""

import argparse
import json
import lzma
import math
import pathlib
import random
import re
import sys
import time

try:
    import numpy as np
except ImportError:
    print("fit_linear.py: needs the Python package numpy")
    sys.exit(77)

KINDS = [(64, 16, 0), (64, 32, 0), (64, 64, 0), (128, 64, 0), (128, 80, 0), (128, 96, 0), (128, 112, 0), (128, 128, 0),
         (96, 128, 1), (128, 128, 1), (128, 128, 2)]
VARIANTS = ("IV_WGMMA_SWAPPED", "IV_WGMMA_WIDE", "IV_WGMMA_PAIR")
GUESS = [0.10, 0.12, 0.15, 0.22, 0.25, 0.27, 0.30, 0.33, 0.27, 0.33, 0.33]  # us of a block of 64 k
COMMON = {  # name: from, to
    "launch": (0.5, 3), "round": (0, 3), "output": (0, 60), "join": (0, 2), "join_output": (0, 60),
    "split_round": (0, 8), "ring": (0, 4), "ring_memory": (0, 3), "again": (0, 1), "swiglu": (0, 60),
    "bytes": (3.3, 4.6), "bytes_launch": (0.5, 6), "clusters4": (96, 132), "clusters8": (88, 124), "early": (0, 2)}
SMS, SHARED = 132, 228 * 1024
COST = pathlib.Path(__file__).parents[2] / "src/kernels/cuda/linear_cost.c"
MODELS = {"to_32": (1, 32), "to_64": (33, 64), "to_600": (65, 600), "many_rows": (65, math.inf)}  # rows
NEAR = 1.6  # times the fastest: what is slower need not be predicted well


def shape_of(tile_n, tile_m, variant, leaves):
    """Bytes of shared memory and CTAs of an SM, as iv_wgmma_shape has them."""
    wide = variant > 0
    p, q = (tile_m, tile_n) if wide else (tile_n, tile_m)
    count, keep = q // 2, q <= 96
    nodes = 3 if leaves == 4 or (leaves == 8 and not keep) else min(leaves, 4)
    need, groups = nodes * count + 40, p // 64
    moved = wide or (groups == 2 and need > 168)
    if moved or need > 168:
        ctas = 1
    elif groups == 2:
        ctas = 1 if need > 96 else 2
    else:
        ctas = 4 if need <= 96 else 3 if need <= 128 else 2
    park = p * q * 4 if leaves == 8 and not keep else 128 * groups * 64 if wide else 0
    return (p + q) * 128 + 16, park + 16 + tile_m * (8 if wide and leaves == 1 else 4) + 32 * 28, ctas


def up(a, b):
    return -(-a // b)


def lines_of(path):
    with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as file:
        yield from file


def rows_of(paths, model):
    """One row a problem that the model chooses for, and configuration; the problem's number is the last."""
    rows, texts, problems = [], [], []
    for record in (json.loads(line) for path in paths for line in lines_of(path)):
        if record.get("bench") != "sweep" or not MODELS[model][0] <= record["m"] <= MODELS[model][1]:
            continue
        leaves, before = record["leaves"] or 8, len(rows)
        for us, text in record["configs"]:
            found = re.match(r"wgmma n(\d+) m(\d+) split (\d+) stages (\d+) variant (\d+)", text)
            if not us or not found:
                continue
            n, m, split, stages, variant = map(int, found.groups())
            if (n, m, variant) not in KINDS:
                continue
            stage, fixed, most = shape_of(n, m, variant, leaves // split)
            resident = max(1, min(most, SHARED // (stages * stage + fixed + 1024)))
            tiles_m = up(record["m"], m)
            rows.append([us, KINDS.index((n, m, variant)), n, m, split, stages, resident,
                         up(record["k"] // leaves, 64) * (leaves // split), up(record["n"], n) * tiles_m, tiles_m,
                         record["k"] * record["n"] * 2, "swiglu" in record["shape"] or "gate_up" in record["shape"],
                         record.get("rest_us", 0), len(problems)])
            texts.append(text)
        if len(rows) > before:  # in an order that does not know the times
            order = random.Random(1).sample(range(before, len(rows)), len(rows) - before)
            rows[before:], texts[before:] = [rows[i] for i in order], [texts[i] for i in order]
            problems.append(f"{record['k']} x {record['n']}, {record['m']} rows, {leaves} leaves")
    return np.array(rows, float), texts, problems


def predict(rows, block, shared, c):
    """Microseconds of each row."""
    _, kind, n, m, split, stages, resident, blocks, tiles, tiles_m, weights, swiglu, _, _ = rows.T
    kind = kind.astype(int)
    sms = np.where(split <= 2, SMS, np.where(split <= 4, c["clusters4"], c["clusters8"]))
    slots, ctas = sms * resident, tiles * split
    full = np.floor(ctas / slots)
    rest = ctas - full * slots
    beside = np.ceil(rest / sms)

    def block_us(ctas_beside, active):
        us = np.maximum(block[kind] * (1 + c["ring"] / (stages - 1)), ctas_beside * shared[kind])
        same = np.minimum(tiles_m, active)  # token tiles that read the same weights, some of them again
        memory = active / same * (1 + c["again"] * (same - 1)) * n * 128 / (c["bytes"] * 1e6)
        asked = np.where(split == 1, stages * ctas_beside, stages)  # clusters of many CTAs are slower, measured
        return np.maximum(us, memory * (1 + c["ring_memory"] / (asked - 1)))

    us = full * blocks * block_us(resident, slots)
    us += np.where(rest > 0, blocks * block_us(np.maximum(beside, 1), np.maximum(rest, 1)), 0)
    rounds = full + (rest > 0)
    wide = np.array(KINDS)[kind, 2] > 0
    output = c["output"] + np.where(wide & (swiglu > 0), c["swiglu"], 0)
    of_a_thread = n * m / (np.where(wide, m, n) * 2) / 1e3
    us += c["launch"] + rounds * c["round"]
    us += of_a_thread / split * output * np.where(full > 0, resident, np.maximum(beside, 1))
    joined = c["join"] * np.log2(split) + of_a_thread * c["join_output"] + c["split_round"] * (rounds - 1)
    us += np.where(split > 1, joined, 0)
    least = c["bytes_launch"] + weights / (c["bytes"] * 1e6)
    us *= (1 + (least / us) ** 4) ** 0.25  # no two are equal because both wait for memory
    active = np.minimum(ctas, slots)  # what rings hold of weights may come while the layer before ends
    held = np.minimum(weights, active / np.minimum(tiles_m, active) * np.minimum(stages, blocks) * n * 128)
    return np.maximum(us - c["early"] * held / (c["bytes"] * 1e6), 0.5)


def standing(model):
    """The constants of linear_cost.c, in the order of unpack; of a tile that this model does not have, a guess."""
    text = open(COST, encoding="utf-8").read().split(f"cost_model {model} =")[1].split("};")[0]
    number = r"([\d.]+)"
    of_tile = [re.search(rf"{{{n}, {m}, {VARIANTS[v]}, {number}, {number}}}", text)
               for n, m, v in KINDS]
    common = [re.search(rf"\b(?:a_)?{name} = {number}", text) for name in COMMON]
    found = [t[i] if t else g for i in (1, 2) for t, g in zip(of_tile, GUESS)] + [c[1] if c else 0 for c in common]
    return [float(value) for value in found]


def unpack(x):
    kinds = len(KINDS)
    return x[:kinds], x[kinds:2 * kinds], dict(zip(COMMON, x[2 * kinds:]))


def model_of(m):
    """Whose constants stand for this many rows, as linear_cost.c has it."""
    text = open(COST, encoding="utf-8").read().split("models[] = {")[1].split("};")[0]
    found = re.findall(r"{(\w+), &(\w+)}", text)
    return next(name for rows, name in found if rows == "SIZE_MAX" or m <= int(rows))


def check(path):
    """The largest relative difference between what the C wrote down and this file's formula."""
    worst, count = 0, 0
    for r in (json.loads(line) for line in open(path, encoding="utf-8")):
        kind, tiles_m = KINDS.index((r["tile_n"], r["tile_m"], r["variant"])), up(r["rows"], r["tile_m"])
        row = [1, kind, r["tile_n"], r["tile_m"], r["split_k"], r["stages"], r["resident"],
               up(r["k"] // r["leaves"], 64) * r["leaves"] / r["split_k"], up(r["n"], r["tile_n"]) * tiles_m, tiles_m,
               r["k"] * r["n"] * 2, r["swiglu"], 0, 0]
        ours = predict(np.array([row], float), *unpack(np.array(standing(model_of(r["rows"])))))[0]
        worst, count = max(worst, abs(ours / r["us"] - 1)), count + 1
    print(f"{count} costs, the largest relative difference {worst:.2e}")
    return 0 if count and worst < 1e-12 else 1


class Fit:
    """What constants are judged by."""

    def __init__(self, rows, starts):
        self.rows, self.starts, self.problem = rows, starts, rows[:, -1].astype(int)
        best, rest = np.minimum.reduceat(rows[:, 0], starts)[self.problem], rows[:, -2]
        self.near = rows[:, 0] < NEAR * best
        self.loss = np.log((rest + rows[:, 0]) / (rest + best))  # if this row is chosen

    def chosen(self, us):
        """Of each problem the first of the cheapest."""
        least = np.minimum.reduceat(us, self.starts)[self.problem]
        return np.array([np.flatnonzero(part)[0] for part in np.split(us == least, self.starts[1:])]) + self.starts

    def error(self, us):
        return np.log(us / self.rows[:, 0])[self.near]

    def score(self, x):
        """The average loss, of what is chosen and a little of what nearly is; large losses count more."""
        us = predict(self.rows, *unpack(x))
        share = np.exp(-60 * np.minimum(us / np.minimum.reduceat(us, self.starts)[self.problem] - 1, 1))
        loss = np.add.reduceat(share * self.loss, self.starts) / np.add.reduceat(share, self.starts)
        return loss.mean() + 0.5 * np.maximum(loss - 0.03, 0).mean() + 0.02 * math.sqrt((self.error(us) ** 2).mean())


def anneal(fit, start, low, high, seconds, rng):
    """The best of a walk that takes one to three steps at a time, and ever shorter ones."""
    x, step, began = start, np.full(len(start), 0.25), time.monotonic()
    least = score = fit.score(x)
    best, done = x, 0.0 if seconds > 0 else 1.0
    while done < 1:
        some = rng.choice(len(x), rng.integers(1, 4), replace=False)
        y = x.copy()
        y[some] += rng.normal(size=len(some)) * (high - low)[some] * step[some] * (1 - 0.9 * done)
        y = np.clip(y, low, high)
        found = fit.score(y)
        taken = found < score or rng.random() < math.exp(-(found - score) / (0.002 * (1 - done) + 1e-9))
        step[some] = np.clip(step[some] * (1.1 if taken else 0.97), 0.01, 0.4)
        if taken:
            x, score = y, found
        if score < least:
            best, least = x, score
        done = (time.monotonic() - began) / seconds
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="*", help="records of linear.py --sweep --json")
    parser.add_argument("--check", metavar="FILE", help="costs as the C has them")
    parser.add_argument("--model", choices=MODELS, default="many_rows")
    parser.add_argument("--seed", type=int, default=0, help="0 starts at what stands in linear_cost.c")
    parser.add_argument("--seconds", type=float, default=120, help="of the walk; 0: what stands, and what it costs")
    options = parser.parse_args()
    if options.check:
        sys.exit(check(options.check))
    if not options.sweeps:
        parser.error("wanted sweeps, found none")
    rows, texts, problems = rows_of(options.sweeps, options.model)
    fit = Fit(rows, np.searchsorted(rows[:, -1], np.arange(len(problems))))
    low, high = np.array([(0.3 * g, 3 * g) for g in GUESS] + [(0.3 * g, 2.5 * g) for g in GUESS] +
                         list(COMMON.values())).T
    rng = np.random.default_rng(options.seed)
    start = standing(options.model) if options.seed == 0 else low + (high - low) * rng.random(len(low)) / 2
    x = anneal(fit, np.clip(start, low, high), low, high, options.seconds, rng)
    x = np.array([float(f"{v:.3g}") for v in x])
    us, (block, shared, common) = predict(rows, *unpack(x)), unpack(x)
    print("\n".join(f"    .{'a_' if name == 'round' else ''}{name} = {value:.3g}," for name, value in common.items()))
    for kind, alone, beside in zip(KINDS, block, shared):
        print(f"    {{{kind[0]}, {kind[1]}, {VARIANTS[kind[2]]}, {alone:.3g}, {beside:.3g}}},")
    chosen, fastest = fit.chosen(us), fit.chosen(rows[:, 0])
    loss = fit.loss[chosen]
    mean, worst = math.exp(loss.mean()), math.exp(loss.max())
    print(f"{len(problems)} problems: chosen over best {mean:.4f}, at worst {worst:.2f}; "
          f"error {fit.error(us).std():.3f}")
    for i in np.argsort(-loss)[:12]:
        print(f"{math.exp(loss[i]):.2f} {problems[i]}: {texts[chosen[i]]} {rows[chosen[i], 0]:.1f} us,"
              f" fastest {texts[fastest[i]]} {rows[fastest[i], 0]:.1f}")


if __name__ == "__main__":
    main()
