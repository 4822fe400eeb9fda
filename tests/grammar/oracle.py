"""Judges what tests/grammar/test_oracle.c wrote: a line of JSON a case.

{"schema": ..., "text": ...}: the text must be JSON that satisfies the schema, as the package jsonschema sees it.
{"regex": ..., "text": ..., "matches": bool}: must match Python's re.
{"grammar": ..., "text": ..., "matches": bool}: must match the class Rules below, which uses no automaton.

Python's re backtracks exponentially with some expressions: cases that take over a second are skipped and counted."""

import json
import re
import signal
import sys

try:
    import jsonschema
except ImportError:
    print("SKIPPED: the Python package jsonschema is not installed")
    sys.exit(77)


def no_duplicates(pairs):
    if len({k for k, _ in pairs}) != len(pairs):
        raise LookupError
    return dict(pairs)


class Rules:
    """A grammar of rules (name ::= ...), asked where a part that begins at some place of a text may end."""
    WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|::=|[|()*+?.]|\{\d*(?:,\d*)?\}|[\w-]+|#[^\n]*')

    def __init__(self, source):
        self.words, self.at, self.rules = [w for w in self.WORDS.findall(source) if w[0] != "#"], 0, {}
        while self.at < len(self.words):
            name = self.words[self.at]
            self.at += 2
            self.rules[name] = self.alternatives()

    def alternatives(self):
        found = [self.sequence()]
        while self.words[self.at:self.at + 1] == ["|"]:
            self.at += 1
            found.append(self.sequence())
        return ("any", found)

    def sequence(self):
        found = []
        while self.at < len(self.words) and self.words[self.at] not in ("|", ")") and \
                self.words[self.at + 1:self.at + 2] != ["::="]:
            found.append(self.item())
        return ("all", found)

    def item(self):
        word = self.words[self.at]
        self.at += 1
        if word == "(":
            part = self.alternatives()
            self.at += 1
        elif word[0] == '"':
            part = ("text", json.loads(word))
        elif word[0] in "[.":
            part = ("one", re.compile(word if word != "." else r"[\s\S]"))
        else:
            part = ("rule", word)
        while self.at < len(self.words) and self.words[self.at][0] in "*+?{":
            word = self.words[self.at]
            self.at += 1
            low, comma, high = word.strip("{}").partition(",")
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(word) or \
                (int(low or 0), int(high) if high else None if comma else int(low))
            part = ("times", part, least, most)
        return part

    def ends(self, part, text, at, known):
        key = (id(part), at)
        if key not in known:
            known[key] = self.find_ends(part, text, at, known)
        return known[key]

    def find_ends(self, part, text, at, known):
        kind = part[0]
        if kind == "text":
            return {at + len(part[1])} if text.startswith(part[1], at) else set()
        if kind == "one":
            return {at + 1} if at < len(text) and part[1].match(text[at]) else set()
        if kind == "rule":
            return self.ends(self.rules[part[1]], text, at, known)
        if kind == "any":
            return set().union(*(self.ends(p, text, at, known) for p in part[1]))
        if kind == "all":
            places = {at}
            for p in part[1]:
                places = set().union(*(self.ends(p, text, i, known) for i in places))
            return places
        _, inner, least, most = part
        places, found, count = {at}, set(), 0
        while places and (most is None or count <= most):
            if count >= least:
                if most is None and places <= found:
                    break
                found |= places
            places = set().union(*(self.ends(inner, text, i, known) for i in places))
            count += 1
        return found

    def matches(self, text):
        return len(text) in self.ends(self.rules["root"], text, 0, {})


def judge(case):
    """None, or the error. Keys that are not listed may come twice: such texts are not judged."""
    if "regex" in case:
        found = re.fullmatch(case["regex"], case["text"], re.ASCII) is not None
        return None if found == case["matches"] else f"re says {found}"
    if "grammar" in case:
        found = Rules(case["grammar"]).matches(case["text"])
        return None if found == case["matches"] else f"the rules say {found}"
    try:
        value = json.loads(case["text"], object_pairs_hook=no_duplicates)
    except LookupError:
        return None
    except ValueError as e:
        return str(e)
    if re.search(r"[^\\](\n|  )|[,:]  |^\s|\s$|\{ |\[ ", re.sub(r'"(\\.|[^"\\])*"', '""', case["text"])):
        return "white space that should not be there"
    kind = jsonschema.Draft202012Validator
    kind.check_schema(case["schema"])
    errors = list(kind(case["schema"], format_checker=kind.FORMAT_CHECKER).iter_errors(value))
    return errors[0].message if errors else None


def too_slow(signal_number, frame):
    raise TimeoutError


def main():
    counts = {"schema": 0, "regex": 0, "grammar": 0, "matches": 0, "unjudged": 0}
    wrong = 0
    signal.signal(signal.SIGALRM, too_slow)
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, 1)
            try:
                reason = judge(case)
            except TimeoutError:
                counts["unjudged"] += 1
                continue
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            counts[next(kind for kind in ("schema", "regex", "grammar") if kind in case)] += 1
            counts["matches"] += case.get("matches", False)
            if reason:
                wrong += 1
                if wrong < 10:
                    print("WRONG:", reason, json.dumps(case)[:600])
    print(f"{counts['schema']} texts of schemas, {counts['regex']} of expressions, {counts['grammar']} of grammars "
          f"({counts['matches']} match), {wrong} wrong, {counts['unjudged']} not judged")
    judged = counts["schema"] + counts["regex"] + counts["grammar"]
    sys.exit(1 if wrong or 100 * counts["unjudged"] > judged else 0)


main()
