#!/usr/bin/env python3
r"""fit_linear.py: fits the constants of src/kernels/cuda/linear_cost.c to measurements.

    python3 bench/gpu/linear.py --ops LIB --sweep --in-turn --json turn.jsonl --tokens 8,16,32,48,64,96,128,256,512,1000
    python3 bench/gpu/linear.py --ops LIB --sweep --alone --shapes head --json head.jsonl --tokens 8,16,32,64,128,256
    python3 bench/gpu/fit_linear.py --set SEQUENCE_32 turn.jsonl head.jsonl

    python3 bench/gpu/fit_linear.py --check costs.jsonl     compare with costs from C (tests/cuda/test_linear_choose.c)
    python3 bench/gpu/fit_linear.py --against-table bench/gpu/sweeps/h200_in_turn_?.jsonl.xz

Prints a column of the table in linear_cost.c and the regret of its choices: chosen time over fastest time, including the
decoder layer's other layers where these were measured; mean and worst. The fit is simulated annealing, from the
constants in linear_cost.c or, with --seed, from random ones. The formula and the names are those of the C file. The
constants of ISOLATED_64 and ISOLATED_600 are older fits to sweeps of isolated layers, kept because a fit to sequences
made steps of a model slower; only swiglu_us of ISOLATED_600 is from sequences.

--against-table compares the model with a table of each sweep's fastest configurations, applied to the other sweep.

Needs numpy, no GPU.
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
COMMON = {  # name in linear_cost.c: lowest, highest
    "launch_us": (0.5, 3), "wave_us": (0, 3), "output_us": (0, 60), "swiglu_us": (0, 60), "reduce_output_us": (0, 60),
    "reduce_us": (0, 2), "reduce_wave_us": (0, 8), "halves_us": (0, 8), "ring_latency": (0, 4), "ring_memory": (0, 3), "reread": (0, 1),
    "terabytes": (3.3, 4.6), "memory_us": (0.5, 6), "prefetch": (0, 2), "sms_cluster4": (96, 132),
    "sms_cluster8": (88, 124)}
SMS, SHARED = 132, 228 * 1024
COST = pathlib.Path(__file__).parents[2] / "src/kernels/cuda/linear_cost.c"
SETS = {"SEQUENCE_32": (1, 32), "ISOLATED_64": (33, 64), "SEQUENCE_MANY": (65, math.inf),
        "ISOLATED_600": (65, 600)}  # rows; in the order of the columns
UNUSED = 1e9  # us of a block in a tile that a set does not use
NEAR = 1.6  # slower configurations, relative to the fastest, need no good prediction


def shape_of(tile_n, tile_m, variant, leaves):
    """Bytes of a stage, fixed bytes of shared memory, CTAs of an SM: as in iv_wgmma_shape."""
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
    scratch = p * q * 4 if leaves == 8 and not keep else 128 * groups * 64 if wide else 0
    return (p + q) * 128 + 16, scratch + 16 + tile_m * (8 if wide and leaves == 1 else 4) + 32 * 28, ctas


def up(a, b):
    return -(-a // b)


def lines_of(path):
    with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as file:
        yield from file


def rows_of(paths, limits):
    """One row for each problem within the limits of rows, and configuration; the last column is the problem's index."""
    rows, texts, problems = [], [], []
    for record in (json.loads(line) for path in paths for line in lines_of(path)):
        if record.get("bench") != "sweep" or not limits[0] <= record["m"] <= limits[1]:
            continue
        leaves, before = record["leaves"] or 8, len(rows)  # None: law 2
        for us, text in record["configs"]:
            found = re.match(r"wgmma n(\d+) m(\d+) split (\d+) stages (\d+) variant (\d+)( halves)?", text)
            if not us or not found:
                continue
            n, m, split, stages, variant = map(int, found.groups()[:5])
            if (n, m, variant) not in KINDS:
                continue
            stage, fixed, most = shape_of(n, m, variant, leaves // split)
            resident = max(1, min(most, SHARED // (stages * stage + fixed + 1024)))
            tiles_m = up(record["m"], m)
            rows.append([us, KINDS.index((n, m, variant)), n, m, split, stages, resident,
                         up(record["k"] // leaves, 64) * (leaves // split), up(record["n"], n) * tiles_m, tiles_m,
                         record["k"] * record["n"] * 2, "swiglu" in record["shape"] or "gate_up" in record["shape"],
                         found[6] is not None, record.get("rest_us", 0), len(problems)])
            texts.append(text)
        if len(rows) > before:  # shuffled: the order must not depend on the times
            order = random.Random(1).sample(range(before, len(rows)), len(rows) - before)
            rows[before:], texts[before:] = [rows[i] for i in order], [texts[i] for i in order]
            problems.append((record["shape"], record["k"], record["n"], record["m"], leaves))
    return np.array(rows, float), texts, problems


def predict(rows, latency, throughput, c):
    """Microseconds of each row."""
    _, kind, n, m, split, stages, resident, blocks, tiles, tiles_m, weights, swiglu, halves, _, _ = rows.T
    kind = kind.astype(int)
    sms = np.where(split <= 2, SMS, np.where(split <= 4, c["sms_cluster4"], c["sms_cluster8"]))
    slots, ctas = sms * resident, tiles * split
    full = np.floor(ctas / slots)
    last_split = 1 + halves
    rest = (ctas - full * slots) * last_split
    last_resident = np.ceil(rest / sms)

    def block_us(on_sm, active):
        us = np.maximum(latency[kind] * (1 + c["ring_latency"] / (stages - 1)), on_sm * throughput[kind])
        sharers = np.minimum(tiles_m, active)  # CTAs that read the same weights
        memory = active / sharers * (1 + c["reread"] * (sharers - 1)) * n * 128 / (c["terabytes"] * 1e6)
        in_flight = np.where(split == 1, stages * on_sm, stages)  # more in clusters gains nothing (measured)
        return np.maximum(us, memory * (1 + c["ring_memory"] / (in_flight - 1)))

    us = full * blocks * block_us(resident, slots)
    us += np.where(rest > 0, blocks / last_split * block_us(np.maximum(last_resident, 1), np.maximum(rest, 1)), 0)
    waves = full + (rest > 0)
    wide = np.array(KINDS)[kind, 2] > 0
    output = c["output_us"] + np.where(wide & (swiglu > 0), c["swiglu_us"], 0)
    outputs = n * m / (np.where(wide, m, n) * 2) / 1e3
    us += c["launch_us"] + waves * c["wave_us"]
    us += outputs / split / last_split * output * np.where(full > 0, resident, np.maximum(last_resident, 1))
    reduction = c["reduce_us"] * np.log2(split) + outputs * c["reduce_output_us"] + c["reduce_wave_us"] * (waves - 1)
    us += np.where(split > 1, reduction, 0)
    us += np.where(halves > 0, c["halves_us"] + outputs * c["reduce_output_us"], 0)
    memory_us = c["memory_us"] + weights / (c["terabytes"] * 1e6)
    us *= (1 + (memory_us / us) ** 4) ** 0.25  # a soft maximum with memory
    active = np.minimum(ctas, slots)  # weights that the rings of the first wave hold
    held = np.minimum(weights, active / np.minimum(tiles_m, active) * np.minimum(stages, blocks) * n * 128)
    us = np.maximum(us - c["prefetch"] * held / (c["terabytes"] * 1e6), 0.5)
    return np.where((halves > 0) & ((rest == 0) | (rest > slots)), UNUSED, us)


def constants(name):
    """The constants of a set in linear_cost.c, in the order of unpack."""
    text, column = COST.read_text(encoding="utf-8"), list(SETS).index(name)

    def numbers(pattern):
        return [[float(v) for v in part.split(",")][column] for part in re.search(pattern, text).groups()]

    tiles = [numbers(rf"{{ *{n}, *{m}, {VARIANTS[v]}, +{{([^}}]+)}}, +{{([^}}]+)}}}}") for n, m, v in KINDS]
    latency, throughput = [t[0] for t in tiles], [t[1] if t[0] else UNUSED for t in tiles]
    return latency + throughput + [numbers(rf"\.{name} += {{([^}}]+)}}")[0] for name in COMMON]


def unpack(x):
    kinds = len(KINDS)
    return x[:kinds], x[kinds:2 * kinds], dict(zip(COMMON, x[2 * kinds:]))


def set_of(m):
    """The set for this many rows, as in linear_cost.c."""
    text = COST.read_text(encoding="utf-8").split("sets[] = {")[1].split("};")[0]
    found = re.findall(r"{(\w+), (\w+)}", text)
    return next(name for rows, name in found if rows == "SIZE_MAX" or m <= int(rows))


def check(path):
    """The largest relative difference between costs from C and from this formula."""
    worst, count = 0, 0
    for r in (json.loads(line) for line in open(path, encoding="utf-8")):
        kind, tiles_m = KINDS.index((r["tile_n"], r["tile_m"], r["variant"])), up(r["rows"], r["tile_m"])
        row = [1, kind, r["tile_n"], r["tile_m"], r["split_k"], r["stages"], r["resident"],
               up(r["k"] // r["leaves"], 64) * r["leaves"] / r["split_k"], up(r["n"], r["tile_n"]) * tiles_m, tiles_m,
               r["k"] * r["n"] * 2, r["swiglu"], r["halves"], 0, 0]
        ours = predict(np.array([row], float), *unpack(np.array(constants(set_of(r["rows"])))))[0]
        worst, count = max(worst, abs(ours / r["us"] - 1)), count + 1
    print(f"{count} costs, the largest relative difference {worst:.2e}")
    return 0 if count and worst < 1e-12 else 1


def decoders_of(paths):
    """For each sweep: microseconds by (decoder, rows), layer and configuration, and those of the other layers. And the
    model's choice by (decoder, rows) and layer, among the configurations of all sweeps."""
    sweeps, candidates = [], {}
    for path in paths:
        rows, texts, problems = rows_of([path], (1, math.inf))
        times = {}
        for row, text in zip(rows, texts):
            shape, _, _, m, _ = problems[int(row[-1])]
            decoder, layer = shape.split(" ")
            times.setdefault((decoder, m), {}).setdefault(layer, {})[text] = row[0]
            candidates.setdefault((decoder, m), {}).setdefault(layer, {})[text] = row
        sweeps.append(times)
    choices = {}
    for (decoder, m), layers in candidates.items():
        x = unpack(np.array(constants(set_of(m))))
        for layer, found in layers.items():
            us = predict(np.array(list(found.values())), *x)
            choices.setdefault((decoder, m), {})[layer] = list(found)[int(us.argmin())]
    return sweeps, choices


def against_table(paths):
    """Leave-one-sweep-out: steps of decoders by a table of the fastest configurations in one sweep, measured in the
    other sweep, relative to the model's choices there. A configuration that was not measured counts as the slowest."""
    sweeps, model = decoders_of(paths)
    for i, j in ((0, 1), (1, 0)):
        ratios = []
        for key, layers in sweeps[j].items():
            if key not in sweeps[i]:
                continue
            table = {layer: min(found, key=found.get) for layer, found in sweeps[i][key].items()}
            cost = [sum(found.get(choice[layer], max(found.values())) for layer, found in layers.items())
                    for choice in (table, model[key])]
            ratios.append((cost[0] / cost[1], key))
        slower = [r for r in ratios if r[0] > 1.01]
        print(f"table of {paths[i]}, measured in {paths[j]}: {len(ratios)} steps, mean "
              f"{np.mean([r[0] for r in ratios]):.3f} of the model's, {len(slower)} more than 1 % slower")
        for ratio, (decoder, m) in sorted(slower, reverse=True)[:8]:
            print(f"    {ratio:.2f} {decoder}, {m} rows")
        for m in sorted({key[1] for _, key in ratios}):
            of_m = [r for r, key in ratios if key[1] == m]
            print(f"    {m:5} rows: mean {np.mean(of_m):.3f}, worst {max(of_m):.2f}")


class Fit:
    """The objective of a fit."""

    def __init__(self, rows, starts):
        self.rows, self.starts, self.problem = rows, starts, rows[:, -1].astype(int)
        best, rest = np.minimum.reduceat(rows[:, 0], starts)[self.problem], rows[:, -2]
        self.near = rows[:, 0] < NEAR * best
        self.loss = np.log((rest + rows[:, 0]) / (rest + best))  # regret if this row is chosen

    def chosen(self, us):
        """The first of the cheapest rows of each problem."""
        least = np.minimum.reduceat(us, self.starts)[self.problem]
        return np.array([np.flatnonzero(part)[0] for part in np.split(us == least, self.starts[1:])]) + self.starts

    def error(self, us):
        return np.log(us / self.rows[:, 0])[self.near & (us < UNUSED)]

    def score(self, x):
        """The mean regret of the choice and, with less weight, of near choices; large regrets count more."""
        us = predict(self.rows, *unpack(x))
        share = np.exp(-60 * np.minimum(us / np.minimum.reduceat(us, self.starts)[self.problem] - 1, 1))
        loss = np.add.reduceat(share * self.loss, self.starts) / np.add.reduceat(share, self.starts)
        return loss.mean() + 0.5 * np.maximum(loss - 0.03, 0).mean() + 0.02 * math.sqrt((self.error(us) ** 2).mean())


def anneal(fit, start, low, high, seconds, rng):
    """The best point of a random walk of one to three coordinates at a time, with shrinking steps."""
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
    parser.add_argument("--check", metavar="FILE", help="costs written by C")
    parser.add_argument("--against-table", action="store_true", help="two sweeps: the model against a table of the other")
    parser.add_argument("--set", choices=SETS, default="SEQUENCE_MANY")
    parser.add_argument("--seed", type=int, default=0, help="0 starts from linear_cost.c")
    parser.add_argument("--seconds", type=float, default=120, help="of the walk; 0: print the regret of linear_cost.c")
    options = parser.parse_args()
    if options.check:
        sys.exit(check(options.check))
    if options.against_table and len(options.sweeps) != 2:
        parser.error(f"wanted two sweeps, found {len(options.sweeps)}")
    if options.against_table:
        against_table(options.sweeps)
        return
    if not options.sweeps:
        parser.error("wanted sweeps, found none")
    rows, texts, problems = rows_of(options.sweeps, SETS[options.set])
    fit = Fit(rows, np.searchsorted(rows[:, -1], np.arange(len(problems))))
    low, high = np.array([(0.3 * g, 3 * g) for g in GUESS] + [(0.3 * g, 2.5 * g) for g in GUESS] +
                         list(COMMON.values())).T
    rng = np.random.default_rng(options.seed)
    start = low + (high - low) * rng.random(len(low)) / 2
    if options.seed == 0:
        start = np.array(constants(options.set))
    if options.seconds > 0:
        start = np.clip(start, low, high)
    x = anneal(fit, start, low, high, options.seconds, rng)
    x = np.array([float(f"{v:.3g}") for v in x])
    us, (latency, throughput, common) = predict(rows, *unpack(x)), unpack(x)
    print("\n".join(f"    .{name} = {value:.3g}," for name, value in common.items()))
    for (n, m, v), alone, together in zip(KINDS, latency, throughput):
        print(f"    {{{n}, {m}, {VARIANTS[v]}, {alone:.3g}, {together:.3g}}},")
    chosen, fastest = fit.chosen(us), fit.chosen(rows[:, 0])
    loss = fit.loss[chosen]
    mean, worst = math.exp(loss.mean()), math.exp(loss.max())
    print(f"{len(problems)} problems: chosen over best {mean:.4f}, at worst {worst:.2f}; "
          f"error {fit.error(us).std():.3f}")
    for i in np.argsort(-loss)[:12]:
        print(f"{math.exp(loss[i]):.2f} {' '.join(map(str, problems[i]))}: {texts[chosen[i]]} {rows[chosen[i], 0]:.1f} us,"
              f" fastest {texts[fastest[i]]} {rows[fastest[i], 0]:.1f}")


if __name__ == "__main__":
    main()
