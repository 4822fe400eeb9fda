#!/usr/bin/env python3
r"""fit_linear.py: fits the constants of src/kernels/cuda/linear_cost.c to what was measured.

    python3 bench/gpu/linear.py --ops LIB --sweep --json sweep.jsonl --tokens 1,8,16,32,48,64,96,128,192,256,384,512 \
        --shape 5120,10240,store ... (many shapes; with --leaves 4 and 2 those of ranks, into other files)
    python3 bench/gpu/fit_linear.py sweep.jsonl ...

Those of few_rows (to 64) are fitted to sweeps with --alone, by --model few_rows. Prints the constants, and what a choice
by them costs: the time of what is chosen over that of the fastest, on average and at worst. The search begins at the constants that stand in linear_cost.c; the formula is the one there, and so are
the names. Needs numpy and scipy, no GPU.
"""

import argparse
import json
import math
import pathlib
import random
import re

import numpy as np
from scipy.optimize import differential_evolution

KINDS = [(64, 16, 0), (64, 32, 0), (64, 64, 0), (128, 64, 0), (128, 80, 0), (128, 96, 0), (128, 112, 0), (128, 128, 0),
         (96, 128, 1), (128, 128, 1)]
GUESS = [0.10, 0.12, 0.15, 0.22, 0.25, 0.27, 0.30, 0.33, 0.27, 0.33]  # us of a block of 64 k
COMMON = {  # name: from, to
    "launch": (0.5, 3), "round": (0, 3), "output": (0, 60), "join": (0, 2), "join_output": (0, 60),
    "split_round": (0, 8), "ring": (0, 4), "ring_memory": (0, 3), "again": (0, 1), "swiglu": (0, 60),
    "bytes": (3.3, 4.6), "bytes_launch": (0.5, 6), "clusters4": (96, 132), "clusters8": (88, 124)}
SMS, SHARED = 132, 228 * 1024
COST = pathlib.Path(__file__).parents[2] / "src/kernels/cuda/linear_cost.c"
FEW_ROWS = 64
NEAR = 1.6  # times the fastest: what is slower need not be predicted well


def shape_of(tile_n, tile_m, variant, leaves):
    """Bytes of shared memory and CTAs of an SM, as iv_wgmma_shape has them."""
    wide = variant == 1
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


def rows_of(paths, model):
    """One row a problem that the model chooses for, and configuration; the problem's number is the last."""
    rows, texts, problems = [], [], []
    for record in (json.loads(line) for path in paths for line in open(path, encoding="utf-8")):
        if record.get("bench") != "sweep" or (record["m"] <= FEW_ROWS) != (model == "few_rows"):
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
                         len(problems)])
            texts.append(text)
        if len(rows) > before:  # in an order that does not know the times
            order = random.Random(1).sample(range(before, len(rows)), len(rows) - before)
            rows[before:], texts[before:] = [rows[i] for i in order], [texts[i] for i in order]
            problems.append(f"{record['k']} x {record['n']}, {record['m']} rows, {leaves} leaves")
    return np.array(rows, float), texts, problems


def predict(rows, block, shared, c):
    """Microseconds of each row."""
    _, kind, n, m, split, stages, resident, blocks, tiles, tiles_m, weights, swiglu, _ = rows.T
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
    wide = np.array(KINDS)[kind, 2] == 1
    output = c["output"] + np.where(wide & (swiglu > 0), c["swiglu"], 0)
    of_a_thread = n * m / (np.where(wide, m, n) * 2) / 1e3
    us += c["launch"] + rounds * c["round"]
    us += of_a_thread / split * output * np.where(full > 0, resident, np.maximum(beside, 1))
    joined = c["join"] * np.log2(split) + of_a_thread * c["join_output"] + c["split_round"] * (rounds - 1)
    us += np.where(split > 1, joined, 0)
    least = c["bytes_launch"] + weights / (c["bytes"] * 1e6)
    return us * (1 + (least / us) ** 4) ** 0.25  # no two are equal because both wait for memory


def standing(model):
    """The constants of linear_cost.c, in the order of unpack; of a tile that this model does not have, a guess."""
    text = open(COST, encoding="utf-8").read().split(f"cost_model {model} =")[1].split("};")[0]
    number = r"([\d.]+)"
    of_tile = [re.search(rf"{{{n}, {m}, {('IV_WGMMA_SWAPPED', 'IV_WGMMA_WIDE')[v]}, {number}, {number}}}", text)
               for n, m, v in KINDS]
    common = [re.search(rf"\b(?:a_)?{name} = {number}", text) for name in COMMON]
    found = [t[i] if t else g for i in (1, 2) for t, g in zip(of_tile, GUESS)] + [c[1] for c in common]
    return [float(value) for value in found]


def unpack(x):
    kinds = len(KINDS)
    return x[:kinds], x[kinds:2 * kinds], dict(zip(COMMON, x[2 * kinds:]))


def losses(rows, us, spans):
    """Of each problem: the logarithm of the chosen time over the best, the row chosen and the fastest."""
    found = []
    for first, end in spans:
        chosen, fastest = first + np.argmin(us[first:end]), first + np.argmin(rows[first:end, 0])
        found.append((math.log(rows[chosen, 0] / rows[fastest, 0]), chosen, fastest))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", help="records of linear.py --sweep --json")
    parser.add_argument("--model", choices=("many_rows", "few_rows"), default="many_rows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=250)
    options = parser.parse_args()
    rows, texts, problems = rows_of(options.sweeps, options.model)
    edges = np.searchsorted(rows[:, -1], np.arange(len(problems) + 1))
    spans = list(zip(edges, edges[1:]))
    best = np.array([rows[first:end, 0].min() for first, end in spans])
    near = rows[:, 0] < NEAR * best[rows[:, -1].astype(int)]

    def score(x):
        us = predict(rows, *unpack(x))
        loss = np.array([l for l, _, _ in losses(rows, us, spans)])
        error = np.log(us / rows[:, 0])[near]
        return loss.mean() + 0.3 * np.maximum(loss - 0.08, 0).mean() + 0.03 * math.sqrt((error ** 2).mean())

    bounds = [(0.3 * g, 3 * g) for g in GUESS] + [(0.3 * g, 2.5 * g) for g in GUESS] + list(COMMON.values())
    start = np.clip(standing(options.model), *np.array(bounds).T)
    x = differential_evolution(score, bounds, maxiter=options.rounds, popsize=8, seed=options.seed, polish=False,
                               x0=start).x
    x = np.array([float(f"{v:.3g}") for v in x])
    us, (block, shared, common) = predict(rows, *unpack(x)), unpack(x)
    found = losses(rows, us, spans)
    for kind, alone, beside in zip(KINDS, block, shared):
        print(f"    {{{kind[0]}, {kind[1]}, {kind[2]}, {alone:.3g}, {beside:.3g}}},")
    print(", ".join(f"{name} {value:.3g}" for name, value in common.items()))
    mean, worst = (math.exp(f([l for l, _, _ in found])) for f in (np.mean, max))
    error = np.log(us / rows[:, 0])[near]
    print(f"{len(problems)} problems: chosen over best {mean:.4f}, at worst {worst:.2f}; error {error.std():.3f}")
    for loss, chosen, fastest in sorted(found, key=lambda t: -t[0])[:12]:
        print(f"{math.exp(loss):.2f} {problems[int(rows[chosen, -1])]}: {texts[chosen]} {rows[chosen, 0]:.1f} us,"
              f" fastest {texts[fastest]} {rows[fastest, 0]:.1f}")


if __name__ == "__main__":
    main()
