"""Renders the cases of tests/data/jinja_cases.txt with Jinja2 and writes tests/data/jinja_cases.json.

Run it after editing the cases: python3 python/jinja_cases.py. The environment is the one that Hugging Face's
apply_chat_template uses; a case that Jinja2 refuses is stored as an error. Needs Jinja2 3.1.
With a path to chat_templates.json, prints instead the digests of the templates that use {% generation %}.
"""

import copy
import hashlib
import json
import os
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "tests", "data")
NOW = "26 Jul 2024"
SKIPPED_FILTERS = {"filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap"}  # not supported

VARIABLES = {
    "n": 7, "neg": -3, "f": 2.5, "t": True, "no": False, "nil": None, "s": "Hello, World",
    "u": "Grüße, 世界 🙂", "empty": "", "xs": [3, 1, 2], "words": ["b", "A", "c", "a"], "none_list": [],
    "d": {"b": 1, "a": [1, 2], "items": "shadow"}, "e": {},
    "users": [{"name": "ann", "age": 31, "city": "Oslo", "tags": ["x"]}, {"name": "Bob", "age": 25, "city": "oslo"},
              {"name": "cy", "age": 31, "city": "Rome", "tags": []}],
    "deep": {"a": {"b": [{"c": "found"}]}}, "html": "<a href=\"x\">'&'</a>", "lines": "one\ntwo\r\n\nthree\n",
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}],
    "json": {"k": "é\n\"\\\u0001/", "f": [1.0, 1e-05, 1e16, 123456789.125, -0.0], "n": None, "t": True, "e": [], "o": {}},
    "big": 9007199254740993, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}],
}


class Generation(Extension):
    """The generation tag as a block that is called in place, as the original does."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_call"), [], [], body).set_lineno(lineno)

    def _call(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW
    return env


def answer(env, template, variables):
    try:
        # A copy: some filters change their operand (xs|indent appends to xs).
        return {"text": env.from_string(template).render(**copy.deepcopy(variables))}
    except Exception as error:
        return {"error": type(error).__name__ + ": " + str(error)}


def read_cases(path):
    """Cases are separated by lines of ====. In a block that starts with @, every line is an expression."""
    cases = []
    for block in open(path, encoding="utf-8").read().split("\n====\n"):
        if block.startswith("@"):
            cases += ["{{ %s }}" % line for line in block.split("\n")[1:] if line]
        else:
            cases.append(block)
    return cases


def grid(env):
    """Every filter and test on every kind of value, and every operator on pairs of them."""
    values = ["n", "neg", "f", "t", "nil", "s", "empty", "xs", "words", "d", "e", "missing", "(1, 2)", "range(3)"]
    cases = ["{{ %s|%s }}" % (v, f) for f in sorted(env.filters) if f not in SKIPPED_FILTERS for v in values]
    cases += ["{{ %s is %s }}" % (v, t) for t in sorted(env.tests) if t.isalpha() for v in values]
    for op in ["+", "-", "*", "/", "//", "%", "**", "==", "<", ">=", "in", "and"]:
        cases += ["{{ %s %s %s }}" % (a, op, b) for a in values[:8] + values[11:] for b in values[:8] + values[11:]
                  if op != "**" or b != "f"]  # powers of floats: integer exponents only
    return cases


def main():
    env = environment()
    if len(sys.argv) > 1:
        golden = json.load(open(sys.argv[1], encoding="utf-8"))
        for entry in golden["templates"]:
            for name, case in golden["cases"].items():
                if "generation'" not in entry["expect"][name].get("error", ""):
                    continue
                text = answer(env, entry["template"], {**golden["variables"], **case})["text"]
                print(entry["model"], name, hashlib.sha256(text.encode()).hexdigest())
        return
    templates = read_cases(os.path.join(DATA, "jinja_cases.txt")) + grid(env)
    cases = [{"template": t, **answer(env, t, VARIABLES)} for t in templates]
    cases = [c for c in cases if " at 0x" not in c.get("text", "")]  # addresses differ from run to run
    with open(os.path.join(DATA, "jinja_cases.json"), "w", encoding="utf-8") as out:
        lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
        variables = json.dumps(VARIABLES, ensure_ascii=False)
        out.write('{"strftime_now": "%s",\n"variables": %s,\n"cases": [\n%s\n]}\n' % (NOW, variables, lines))
    print(len(cases), "cases,", sum("error" in c for c in cases), "errors")


main()
