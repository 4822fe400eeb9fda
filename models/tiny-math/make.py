#!/usr/bin/env python3
"""make.py: arithmetic problems with worked answers, to train tiny-math on; the held-out problems are in none of them.

    python3 models/tiny-math/make.py --count 400000 --seed 1 --out train.jsonl

A line is {"messages": [user, assistant]}, for `invar train sft`. The kinds of problems, their wording and the form of answers
are those of `problems.jsonl`; numbers, names and orders are drawn. A question that `problems.jsonl` has is drawn again. The
same arguments write the same bytes with every Python 3.
"""

import argparse
import json
import os
import random

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = "Amy Ana Ben Eva Hugo Ida Jon Kai Lena Leo Liv Max Mia Nia Omar Raj Sam Tom Uma Zoe".split()
THINGS = ("apples beads books buttons cards coins cookies eggs marbles pencils plums shells stamps stickers stones "
          "tickets").split()
PLACES = "beach fair farm library market museum park school shop station".split()
ASK = ("Compute {}.", "Evaluate {}.", "What is {}?", "{} = ?")
LARGEST = 1020
ASK_STORY = ("How many {things} are left for {name}?", "What is {name}'s count of {things} at the end?",
             "How many {things} does {name} have now?")


def below(r, n):
    """Of random's methods only getrandbits is the same in all versions."""
    while True:
        x = r.getrandbits(n.bit_length())
        if x < n:
            return x


def pick(r, items):
    return items[below(r, len(items))]


def between(r, low, high):
    return low + below(r, high - low + 1)


def step(steps, a, sign, b):
    """a sign b: its value, and the line that says so."""
    value = a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else a // b
    steps.append(f"{a} {sign} {b} = {value}")
    return value


def chain(r, steps, count, value):
    """count more sums and differences."""
    words = ""
    for _ in range(count):
        sign, b = pick(r, "+-"), between(r, 2, 99)
        words += f" {sign} {b}"
        value = step(steps, value, sign, b)
    return words, value


# Operations before and after a product, and how often of 300; no product: only the first.
EXPRESSIONS = [((1, None), 81), ((2, None), 63), ((3, None), 31), ((0, 0), 37), ((0, 1), 34), ((0, 2), 17), ((1, 0), 16),
               ((2, 0), 9), ((1, 1), 9), (("*", 0), 3)]


def draw(r, table):
    at = below(r, sum(share for _, share in table))
    for item, share in table:
        if at < share:
            return item
        at -= share
    raise AssertionError


def expression(r):
    """Sums and differences, or a product with some of them before it, in brackets, and behind."""
    steps, a = [], between(r, 2, 99)
    before, after = draw(r, EXPRESSIONS)
    if before == "*":
        a, b = between(r, 2, 9), between(r, 2, 9)
        words, value = f"({a} * {b})", step(steps, a, "*", b)
    else:
        more, value = chain(r, steps, before, a)
        words = f"({a}{more})" if before and after is not None else f"{a}{more}"
    if after is not None:
        b = between(r, 2, 9)
        value = step(steps, value, "*", b)
        more, value = chain(r, steps, after, value)
        words += f" * {b}{more}"
    return pick(r, ASK).format(words), steps, value


def clock(r):
    steps, now, hours = [], between(r, 1, 12), between(r, 2, 40)
    total = step(steps, now, "+", hours)
    hour = (total - 1) % 12 + 1
    steps.append(f"{total} mod 12 = {hour % 12}")
    return f"It is {now} o'clock. What hour will the clock show in {hours} hours?", steps, hour


def remainder(r):
    steps, by, times = [], between(r, 2, 12), between(r, 1, 29)
    a = by * times + below(r, by)
    value = step(steps, a, "-", step(steps, by, "*", times))
    return pick(r, (f"{a} mod {by} = ?", f"What is the remainder of {a} divided by {by}?")), steps, value


def sequence(r):
    steps, first, by = [], between(r, 1, 60), between(r, 2, 15)
    numbers = [first + by * i for i in range(4)]
    step(steps, numbers[1], "-", numbers[0])
    value = step(steps, numbers[3], "+", by)
    return f"What comes next: {', '.join(map(str, numbers))}?", steps, value


def largest(r):
    a, b, c = (between(r, 1, 300) for _ in range(3))
    steps = [f"max({a}, {b}) = {max(a, b)}", f"max({max(a, b)}, {c}) = {max(a, b, c)}"]
    return f"Which is the largest: {a}, {b} or {c}?", steps, max(a, b, c)


def event(r, steps, name, value):
    """One sentence of a story that keeps the number between 1 and LARGEST, and the new number; None if it does not."""
    kind = below(r, 11)
    if kind < 4:
        n = between(r, 2, 99)
        words = (f"Then {name} buys {n} more.", f"A friend gives {name} {n} {{things}}.",
                 f"At the {pick(r, PLACES)}, {name} finds {n} more.")[below(r, 3)]
        return (words, step(steps, value, "+", n)) if value + n <= LARGEST else None
    if kind < 7:
        if value < 3:
            return None
        n = between(r, 1, min(value - 1, 99 + below(r, 2) * 300))
        words = (f"{name} gives away {n}.", f"{name} loses {n} at the {pick(r, PLACES)}.",
                 f"{name} sells {n} {{things}}.")[below(r, 3)]
        return words, step(steps, value, "-", n)
    if kind < 9:
        n = between(r, 2, 5)
        words = {2: "Then the number doubles.", 3: "Then the number triples."}.get(n, f"Then the number grows {n} times.")
        return (words, step(steps, value, "*", n)) if value * n <= LARGEST else None
    divisors = [n for n in (2, 3, 4, 5, 6) if value % n == 0]
    if not divisors:
        return None
    n = pick(r, divisors)
    return f"{name} shares them equally among {n} boxes and keeps one box.", step(steps, value, "/", n)


def story(r):
    name, things, value, steps = pick(r, NAMES), pick(r, THINGS), between(r, 4, 120), []
    words = [f"{name} has {value} {things}."]
    count = between(r, 1, 4)
    while len(words) <= count:
        found = event(r, steps, name, value)
        if found:
            words.append(found[0].format(things=things))
            value = found[1]
    words.append(pick(r, ASK_STORY).format(name=name, things=things))
    return " ".join(words), steps, value


# Shares of the held-out problems; remainders, the hardest, have twice theirs.
KINDS = [(story, 50), (expression, 30), (clock, 6), (remainder, 10), (sequence, 5), (largest, 5)]


def line(question, steps, value):
    answer = "<think>\n" + "\n".join(steps) + f"\n</think>\n\n{value}"
    return json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})


def main():
    parser = argparse.ArgumentParser(description="training problems for tiny-math")
    parser.add_argument("--count", type=int, default=400000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    with open(os.path.join(HERE, "problems.jsonl"), encoding="utf-8") as file:
        held_out = {json.loads(text)["question"] for text in file}
    r = random.Random(options.seed)
    left = options.count
    with open(options.out, "w", encoding="utf-8") as file:
        while left:
            question, steps, value = draw(r, KINDS)(r)
            if question not in held_out:
                file.write(line(question, steps, value) + "\n")
                left -= 1


if __name__ == "__main__":
    main()
