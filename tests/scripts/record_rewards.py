#!/usr/bin/env python3
"""Records math-verify's verdict on pairs of a gold answer and an answer, as tests/data/train/rewards.json.

    python3 -m venv V && V/bin/pip install math-verify==0.9.0
    V/bin/python tests/scripts/record_rewards.py > tests/data/train/rewards.json

The pairs are ours. tests/train/test_reward.c holds `boxed` and, for numbers, `numeric` against the table: where ours
differs by choice, the entry has our verdict and the reason (reward_choices.json)."""
import json
import sys
from importlib.metadata import version

from math_verify import parse, verify

# gold answer: answers, equal or not
NUMBERS = {
    "10080": [r"10,\!080", "10{,}080", "10,080", "10080", "10080.0", r"10\,080", "1080", "80", r"\$10,080", r"10080\text{ m}"],
    r"10,\!080": ["10080", "10,080", r"10,\!080", "80", "10081"],
    "1200.5": ["$1,200.50", r"\$1,200.50", "1200.50", "1200.5", "1,200.5", "1200", "200.50", r"\frac{2401}{2}", "1.2005e3"],
    "0.75": ["3/4", r"\frac{3}{4}", r"\dfrac{3}{4}", r"\tfrac{3}{4}", r"\frac34", r"\dfrac34", ".75", "0.750", "0.7", "4/3", r"\frac{6}{8}"],
    r"\frac{3}{4}": ["0.75", "3/4", r"\frac34", r"\tfrac34", r"\dfrac{3}{4}", r"\frac{4}{3}", r"-\frac{3}{4}", "0.76", r"\frac{75}{100}"],
    r"-\frac{1}{2}": ["-0.5", "-1/2", r"\frac{-1}{2}", r"-\frac12", r"-\dfrac{1}{2}", "0.5", r"\frac{1}{2}", "-.5"],
    "-3": ["-3", "-3.0", "3", r"-\frac{6}{2}", "-3.00", "- 3"],
    "1.5": [r"1\frac{1}{2}", r"\frac{3}{2}", "3/2", "1.50", r"1\frac12", "1 1/2", "15", r"1\tfrac{1}{2}", r"\frac32", "1.05"],
    r"2\frac{1}{3}": [r"\frac{7}{3}", "7/3", r"2\frac13", "2.33", r"2\dfrac{1}{3}", r"\frac{2}{3}", "2"],
    "1500": ["1.5e3", "1500", "1,500", r"1.5 \times 10^3", r"1.5 \times 10^{3}", r"1.5 \cdot 10^3", "15e2", "150", "1.5e4"],
    "0.00012": [r"1.2 \times 10^{-4}", "1.2e-4", "0.00012", "0.0012", r"\frac{12}{100000}"],
    "1024": ["2^{10}", "1024", "1,024", "2^10", "4^5", "210", "1023"],
    "50\\%": ["50\\%", "50%", "0.5", "50", r"\frac{1}{2}", "0.50", "5", "500\\%"],
    "0.5": ["50\\%", "50%", "1/2", ".5", "0.50", "0.05", r"\frac12"],
    "50": ["50\\%", "50%", "50", "50.0", "0.5", "500", r"50 \%"],
    "90": [r"90^\circ", r"90^{\circ}", "90", r"90\text{ degrees}", "90.0", "9", "180", r"90\,^\circ", "90 degrees"],
    r"90^\circ": ["90", r"90^\circ", r"90^{\circ}", r"\frac{\pi}{2}", "45", r"91^\circ"],
    r"5": [r"5\text{ cm}", "5 cm", r"5\ \text{cm}", r"5\mathrm{cm}", "x = 5", "x=5", r"\$5", "$5", "5.", "+5", "05", "5.000", "5x", r"5\text{ cm}^2", r"5\text{ cm}^{2}", r"5\text{ apples}", "-5", "55", "n=5", r"5\mbox{ inches}"],
    r"5\text{ cm}": ["5", r"5\text{ cm}", "5 cm", r"6\text{ cm}", r"5\text{ m}", "50"],
    r"12\text{ cm}^2": ["12", r"12\text{ cm}^{2}", r"12 \text{ cm}^2", "122", "144", r"12\mathrm{ cm}^2"],
    "18": [r"\boxed{18}", "18", "18.00", r"\$18", r"18 \text{ dollars}", "18 dollars", r"\$ 18", "$18.00", "1.8", "81"],
    "0": ["0", "0.0", "-0", "00", "1", r"\frac{0}{5}", "0\\%"],
    "123456789": ["123,456,789", "123456789", r"123{,}456{,}789", r"123,\!456,\!789", "123456788", "123 456 789", "123.456.789"],
    "1000000": ["1,000,000", "10^6", "10^{6}", r"1{,}000{,}000", "1e6", "100,000", "1000000.00"],
    "3.14": ["3.14", "3.140", r"\pi", "3.1", r"\frac{157}{50}", "3.141"],
    r"\frac{1}{3}": ["0.333", "1/3", r"\frac13", r"\frac{2}{6}", "0.3333333333", "0.3", r"\dfrac{1}{3}", "3"],
    r"\frac{22}{7}": ["22/7", r"\frac{22}{7}", r"3\frac{1}{7}", "3.142857", r"\frac{44}{14}", r"\frac{7}{22}"],
    r"\$32,\!348": ["32348", "32,348", r"\$32,348", r"\$32{,}348", "348", "32.348"],
    "7.25": [r"7\frac{1}{4}", "7 1/4", r"\frac{29}{4}", "7.250", "29/4", "7.2", "71/4"],
}
TEXTS = {
    r"\sqrt{3}": [r"\sqrt3", r"\sqrt{3}", r"\sqrt 3", "3", r"\sqrt{2}", r"\sqrt{9}", r"\sqrt[3]{3}"],
    r"2\sqrt{3}": [r"2\sqrt3", r"2\sqrt{3}", r"2 \sqrt{3}", r"\sqrt{23}", r"3\sqrt{2}", r"2\sqrt 3", r"\sqrt{12}"],
    r"\frac{\sqrt{3}}{2}": [r"\frac{\sqrt3}{2}", r"\dfrac{\sqrt{3}}{2}", r"\tfrac{\sqrt3}2", r"\frac{\sqrt 3}{2}", r"\frac{3}{2}", r"\frac{\sqrt{2}}{3}", r"\frac{\sqrt{2}}{2}", r"\sqrt{3}/2", r"\sqrt3/2", r"\sqrt{3/2}"],
    r"\frac{\pi}{2}": [r"\frac{\pi}{2}", r"\dfrac{\pi}{2}", r"\tfrac{\pi}2", r"\frac{\pi}{3}", r"\pi/2", r"\frac{2}{\pi}", r"\pi / 2", r"2/\pi"],
    r"-\frac{\pi}{4}": [r"-\pi/4", r"\frac{-\pi}{4}", r"\pi/4", r"-\dfrac{\pi}4"],
    r"\frac{3\pi}{4}": [r"3\pi/4", r"\frac{3 \pi}{4}", r"3\pi/5", r"\frac{3\pi}{4}\text{ radians}"],
    r"\frac{a+b}{2}": ["(a+b)/2", "a+b/2", r"\frac{a + b}{2}", r"\frac{a-b}{2}"],
    r"\frac{1}{x+1}": ["1/(x+1)", "1/x+1", r"\frac1{x+1}", r"\frac{1}{x-1}"],
    r"\frac{1}{2x}": ["1/(2x)", r"\frac{1}{2 x}", "1/2", r"\frac{2}{x}"],
    r"(\frac{\pi}{2},3)": [r"(\pi/2,3)", r"\left(\pi/2, 3\right)", r"(\pi/2,4)", r"(3,\frac{\pi}{2})"],
    r"\frac{1}{x^2}": ["1/x^2", "1/x^{2}", r"\dfrac{1}{x^{2}}", "1/x^3"],
    r"\text{(A)}": ["A", "(A)", r"\text{A}", "B", "(B)"],
    "C": ["(C)", r"\textbf{(C)}", r"\text{C}", "c", "D"],
    r"x+1": ["x+1", "x + 1", "1+x", "x-1", "x", "x+2", r"\left(x+1\right)", "(x+1)", "(x)+(1)"],
    r"2x": ["2x", "2 x", "x2", "2y", r"2\,x", "4x"],
    r"(1,2)": ["(1,2)", "(1, 2)", r"\left(1,2\right)", r"\left( 1, 2 \right)", "(2,1)", "(1,3)", r"(1,\,2)"],
    r"\left(\frac{1}{2},3\right)": [r"(\frac12,3)", r"\left(\dfrac{1}{2}, 3\right)", r"(\frac{1}{2},4)", r"(\tfrac12, 3)"],
    r"[0,1)": ["[0,1)", "[0, 1)", r"\left[0,1\right)", "(0,1)", "[0,1]"],
    r"\text{yes}": [r"\text{yes}", "yes", r"\text{ yes}", r"\text{no}", r"\textbf{yes}", "(yes)"],
    r"x^2+1": ["x^2+1", "x^{2}+1", "x^2 + 1", "x^3+1", "x^2-1"],
    r"e^{2}": ["e^{2}", "e^2", "e^3", "2e"],
    r"\frac{x}{2}": [r"\frac{x}{2}", r"\frac x2", r"\dfrac{x}{2}", r"\frac{2}{x}", "x/2"],
    r"3\pi": [r"3\pi", r"3 \pi", r"\pi", r"3\pi\text{ cm}", r"\pi3", r"4\pi"],
    r"\infty": [r"\infty", r"+\infty", r"-\infty", "0"],
    r"i\sqrt{2}": [r"i\sqrt2", r"i\sqrt{2}", r"i \sqrt{2}", r"\sqrt{2}", "i"],
}


def judged(gold, answer):
    return bool(verify(parse(r"\boxed{" + gold + "}"), parse(r"\boxed{" + answer + "}")))


def main():
    choices = json.load(open(__file__.replace("record_rewards.py", "reward_choices.json")))
    entries = []
    for number, golds in ((True, NUMBERS), (False, TEXTS)):
        for gold, answers in golds.items():
            for answer in answers:
                entry = {"gold": gold, "answer": answer, "number": number, "verdict": judged(gold, answer)}
                for choice in choices:
                    if (choice["gold"], choice["answer"]) == (gold, answer):
                        entry.update({k: choice[k] for k in ("boxed", "numeric", "why") if k in choice})
                entries.append(entry)
    json.dump({"math_verify": version("math-verify"), "pairs": entries}, sys.stdout, indent=1)
    print()


main()
