#!/usr/bin/env python3
"""rl_figures.py: draws the records of rl_seeds.py and prints their tables.

    python3 bench/rl_figures.py --out docs RECORDS.jsonl ...

    rl_gap.svg    part "gap": largest difference of a token's probability in a step, KL, and reward
    rl_dose.svg   parts "dose" and "stale": held-out accuracy, reward and KL against rounding and age of the sampler's weights

A line is the mean over seeds, its band their range. The tables are Markdown.
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu"))
from svg import Chart, Panel, number  # noqa: E402

GAP = ("tp4-invar", "tp4-bio", "tp4-vanilla")
DOSE = ("exact", "bits-3", "bits-2", "bits-1", "bits-0")
STALE = ("exact", "every-2", "every-8")
NAMES = {"tp4-invar": "invar", "tp4-bio": "bio", "tp4-vanilla": "vanilla", "exact": "exact", "bits-3": "3 bits",
         "bits-2": "2 bits", "bits-1": "1 bit", "bits-0": "0 bits", "every-2": "every 2 steps", "every-8": "every 8 steps"}
COLOURS = {"tp4-invar": 0, "tp4-bio": 4, "tp4-vanilla": 1, "exact": 0, "bits-3": 2, "bits-2": 4, "bits-1": 3, "bits-0": 1,
           "every-2": 5, "every-8": 6}
BUCKETS = 40  # points of a line over all steps


class Bands(Panel):
    """series: {name: [(x, mean, low, high)]}, over a linear axis."""

    def values(self):
        for points in self.series.values():
            for point in points:
                yield from point[1:]


class Curves(Chart):
    """A chart whose panels are Bands."""

    def lines(self, panel, left, scale):
        xs = [point[0] for points in panel.series.values() for point in points]
        if not xs:
            return
        first, last = min(xs), max(xs)

        def at(x):
            return left + self.width * (x - first) / ((last - first) or 1)

        for i in range(5):
            x = first + (last - first) * i / 4
            self.text(at(x), self.top + self.height + 16, number(round(x)), "soft small middle")
        self.text(left + self.width / 2, self.top + self.height + 34, panel.x_name, "soft small middle")
        for series, points in panel.series.items():
            edge = [(at(x), scale(high)) for x, _, _, high in points] + [(at(x), scale(low)) for x, _, low, _ in points[::-1]]
            path = " ".join(f"{x:.5g},{y:.5g}" for x, y in edge)
            self.put(f'<polygon class="shape fill {self.colour(series)}" fill-opacity="0.16" points="{path}"/>')
        for series, points in panel.series.items():
            path = " ".join(f"{at(x):.5g},{scale(mean):.5g}" for x, mean, _, _ in points)
            words = (f"{self.name(series)}, {panel.x_name} {number(points[-1][0])}: {points[-1][1]:.4g} {panel.unit}, "
                     f"from {points[-1][2]:.4g} to {points[-1][3]:.4g} over seeds")
            self.tip(f'polyline class="shape stroke {self.colour(series)}" points="{path}"', words)


def read(paths):
    """{condition: [record]} in order of seeds; the same run of several files counts once."""
    found = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                found[(record["condition"], record["seed"], record["steps"])] = record
    steps = {key[2] for key in found}
    if len(steps) != 1:
        sys.exit(f"rl_figures.py: wanted records of one number of steps, found {sorted(steps) or 'none'}")
    records = {}
    for condition, seed, _ in sorted(found):
        records.setdefault(condition, []).append(found[(condition, seed, next(iter(steps)))])
    return records


def mean(values):
    return sum(values) / len(values)


def over_seeds(rows):
    """[(x, y)] of each seed -> [(x, mean, least, greatest)]."""
    return [(same[0][0], mean([y for _, y in same]), min(y for _, y in same), max(y for _, y in same)) for same in zip(*rows)]


def bucketed(values, combine=mean):
    n, count = len(values), min(BUCKETS, len(values))
    cuts, points = [i * n // count for i in range(count + 1)], []
    for a, b in zip(cuts, cuts[1:]):
        finite = [v for v in values[a:b] if v is not None]  # null: not finite; a bucket of them repeats the one before
        points.append(((a + b) / 2, combine(finite) if finite else points[-1][1] if points else 0.0))
    return points


def metric(records, name, combine=mean):
    return over_seeds([bucketed(r["metrics"][name], combine) for r in records])


def held_out(records):
    return over_seeds([[tuple(pair) for pair in r["held_out"]] for r in records])


def ranked(records, name):
    """A metric's values of all steps, sorted: at which share of the steps it is at most so large."""
    rows = [sorted(v for v in r["metrics"][name] if v is not None) for r in records]
    shares = [i / 100 for i in range(101)]
    return over_seeds([[(100 * s, row[min(len(row) - 1, int(s * len(row)))]) for s in shares] for row in rows])


def panel(title, unit, records, names, draw, suffix="", **more):
    series = {n: draw(records[n + suffix if n + suffix in records else n]) for n in names
              if n in records or n + suffix in records}
    return Bands(title, unit, series, **more)


def gap_chart(records):
    panels = [panel("Largest gap of a probability in a step", "gap", records, GAP,
                    lambda r: ranked(r, "largest_probability_difference"), x_name="% of steps with at most this", log_y=True),
              panel("KL of sampler and learner (k3)", "nats", records, GAP, lambda r: metric(r, "kl"), x_name="step",
                    log_y=True),
              panel("Reward", "reward", records, GAP, lambda r: metric(r, "reward"), x_name="step")]
    return "Sampler with four ranks, learner with one", panels


def dose_chart(records):
    panels = []
    for names, what in ((DOSE, "rounded"), (STALE, "stale")):
        for suffix, how in (("", "no correction"), ("-tis", "importance weights")):
            panels.append(panel(f"Held-out accuracy: {what}, {how}", "", records, names, held_out, suffix, x_name="step"))
        panels.append(panel(f"KL (k3): {what}, no correction", "nats", records, names, lambda r: metric(r, "kl"), x_name="step",
                            log_y=True))
    return "Sampler's matrices rounded to few mantissa bits, or taken every few steps", panels


def write(path, title, panels, seeds, steps):
    panels = [p for p in panels if p.series]
    if not panels:
        print(f"{os.path.basename(path)}: no records", file=sys.stderr)
        return
    subtitle = f"tiny-sum, GRPO, {steps} steps; mean and range of {seeds} seeds; 0 is drawn at the lower edge"
    with open(path, "w", encoding="utf-8") as file:
        file.write(Curves(title, subtitle, panels, COLOURS, NAMES).document())


def spread(values, form):
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(records, names):
    print("| sampler | seeds | held-out accuracy at the end | best | tokens that differ | largest gap of a probability: "
          "median step, worst | KL k3, mean | sampler's entropy at the end |")
    print("|---|---|---|---|---|---|---|---|")
    for n in names:
        if n not in records:
            continue
        of = records[n]
        gaps = sorted(v for r in of for v in r["metrics"]["largest_probability_difference"] if v is not None)
        kl = [mean([v for v in r["metrics"]["kl"] if v is not None]) for r in of]
        entropy = [mean([v for v in r["metrics"]["entropy_estimate"][-10:] if v is not None]) for r in of]
        differ = sum(r["tokens_different"] for r in of) / sum(r["tokens_compared"] for r in of)
        print(f"| {n} | {len(of)} | {spread([r['held_out'][-1][1] for r in of], '.3f')} | "
              f"{mean([max(a for _, a in r['held_out']) for r in of]):.3f} | {100 * differ:.3g} % | "
              f"{gaps[len(gaps) // 2]:.2g}, {gaps[-1]:.2g} | {mean(kl):.2g} | {mean(entropy):.3f} |")
    print()


def check_equal(records):
    """The exact runs are one run, whatever the ranks or the correction."""
    for name in ("tp4-invar", "exact-tis"):
        pairs = [(a, b) for a in records.get("exact", []) for b in records.get(name, []) if a["seed"] == b["seed"]]
        if pairs:
            print(f"exact and {name}: {sum(a['weights'] == b['weights'] for a, b in pairs)} of {len(pairs)} seeds end at the "
                  "same weights")


def main():
    parser = argparse.ArgumentParser(description="pictures and tables of rl_seeds.py")
    parser.add_argument("records", nargs="+")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    records = read(options.records)
    seeds = min(len(of) for of in records.values())
    steps = next(iter(records.values()))[0]["steps"]
    os.makedirs(options.out, exist_ok=True)
    for name, chart in (("rl_gap.svg", gap_chart), ("rl_dose.svg", dose_chart)):
        write(os.path.join(options.out, name), *chart(records), seeds, steps)
    for names in (GAP, DOSE, tuple(n + "-tis" for n in DOSE), STALE[1:], tuple(n + "-tis" for n in STALE[1:])):
        table(records, names)
    check_equal(records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
