#!/usr/bin/env python3
"""Measures the schema compiler on public schemas: how many it refuses, by reason, and whether answers are valid.

  ninja -C build schema_survey
  tests/scripts/survey_schemas.py build/tests/schema_survey bench FOLDER   guidance-ai/jsonschemabench
  tests/scripts/survey_schemas.py build/tests/schema_survey suite FOLDER   json-schema-org/JSON-Schema-Test-Suite (MIT)

FOLDER is a clone, bare or not. The benchmark collects schemas of many owners without a common licence, so none is kept
here. Its sample is the first --sample files of data/ by the SHA-256 of their paths. The package jsonschema, with its
formats (pip install 'jsonschema[format]'), judges by the draft that "$schema" names. Exit status 1: an invalid answer,
an accepted instance that the suite calls invalid, or more refusals than --refused."""

import argparse
import collections
import decimal
import hashlib
import itertools
import json
import re
import signal
import subprocess
import sys

import jsonschema

SUITE_DRAFTS = ("draft2020-12", "draft2019-09", "draft7", "draft6", "draft4")


def files_of(folder, commit, prefix):
    """(path, bytes) of a repository's files that are present: a mirror may lack its largest ones."""
    git = ["git", "-C", folder]
    listed = subprocess.run(git + ["ls-tree", "-r", commit, prefix], check=True, capture_output=True, text=True).stdout
    blobs = [line.split(None, 3) for line in listed.splitlines()]
    blobs = [(path, blob) for _, _, blob, path in blobs if path.endswith(".json")]
    asked = "".join(blob + "\n" for _, blob in blobs)
    out = subprocess.run(git + ["cat-file", "--batch"], check=True, capture_output=True, input=asked.encode()).stdout
    at = 0
    for path, _ in blobs:
        end = out.index(b"\n", at)
        head = out[at:end].split()
        at = end + 1
        if head[1] == b"missing":
            continue
        size = int(head[2])
        yield path, out[at:at + size]
        at += size + 1


class Compiler:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **line):
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def reason_of(message):
    """An error without its places and values."""
    message = message.split(": ", 1)[-1]
    if "this keyword is not supported" in message:
        return "keyword " + message.split(": this keyword")[0].rsplit("/", 1)[1]
    message = re.sub(r"^#\S*: |^#.*?: (?=[a-z$])", "", message)
    if "at byte" in message:
        return "pattern: " + message.rsplit(": ", 1)[1]
    if message.startswith("format: "):
        return message
    return re.sub(r'"[^"]*"|\d+', "_", message)[:90]


def translate_atom(inside):
    def translate(m):
        word = m[0]
        if word in "[]":
            inside[0] = word == "["
        if word == "$":
            return r"\Z"
        if word == r"\s":
            return r"\s\ufeff" if inside[0] else r"[\s\ufeff]"
        return r"[^\s\ufeff]" if word == r"\S" and not inside[0] else word
    return translate


def ecma_pattern(v, pattern, value, schema):
    """Python's \\s has no U+FEFF, its $ matches before a last line end."""
    if v.is_type(value, "string"):
        source = re.sub(r"\\.|[\[\]]|\$$", translate_atom([False]), pattern)
        if not re.search(source, value):
            yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def decimal_multiple(v, step, value, schema):
    """Binary fractions say that 0.07 is no multiple of 0.01."""
    if v.is_type(value, "number") and decimal.Decimal(str(value)) % decimal.Decimal(str(step)) != 0:
        yield jsonschema.ValidationError(f"{value!r} is not a multiple of {step!r}")


def validator(schema, default=jsonschema.Draft202012Validator):
    kind = jsonschema.validators.validator_for(schema, default=default)
    extended = jsonschema.validators.extend(kind, {"pattern": ecma_pattern, "multipleOf": decimal_multiple})
    return extended(schema, format_checker=kind.FORMAT_CHECKER)


def no_duplicates(pairs):
    if len({k for k, _ in pairs}) != len(pairs):
        raise LookupError
    return dict(pairs)


def judge(v, text, unjudged):
    """None: valid, or not judged, which is counted: a repeated additional name; the validator itself fails."""
    signal.setitimer(signal.ITIMER_REAL, 3)
    try:
        error = next(v.iter_errors(json.loads(text, object_pairs_hook=no_duplicates)), None)
        return error and error.message
    except ValueError as e:
        return str(e)
    except Exception as e:  # of the validator: a reference it cannot resolve, a pattern that re cannot read
        unjudged[type(e).__name__] += 1
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def bench(args, compiler):
    files = [f for f in files_of(args.folder, args.commit, "data/")]
    files.sort(key=lambda f: hashlib.sha256(f[0].encode()).digest())
    refused, reasons, places = 0, collections.Counter(), {}
    texts, wrong, silent, unjudged = 0, 0, 0, collections.Counter()
    for path, data in files[:args.sample]:
        schema = json.loads(data)
        answer = compiler.ask(schema=schema, walks=args.walks)
        if "error" in answer:
            refused += 1
            reason = reason_of(answer["error"])
            reasons[reason] += 1
            places.setdefault(reason, []).append(f"{path}: {answer['error']}")
            continue
        v = validator(schema)
        silent += not answer["texts"]
        for text in answer["texts"]:
            texts += 1
            error = judge(v, text, unjudged)
            if error:
                wrong += 1
                print(f"INVALID {path}: {error[:200]}\n    {text[:300]}")
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
        for place in places[reason][:args.places]:
            print("         ", place[:240])
    print(f"{min(args.sample, len(files))} schemas, {refused} refused, {texts} answers, {wrong} invalid, "
          f"{silent} accepted schemas without an answer of a sampled length, not judged: {dict(unjudged)}")
    return wrong or refused > args.refused


def orders(value):
    """A value with its objects' names in several orders."""
    if isinstance(value, dict):
        for names in itertools.islice(itertools.permutations(value), 6):
            for values in itertools.islice(itertools.product(*(orders(value[n]) for n in names)), 6):
                yield dict(zip(names, values))
    elif isinstance(value, list):
        for values in itertools.islice(itertools.product(*map(orders, value)), 12):
            yield list(values)
    else:
        yield value


def suite(args, compiler):
    refused, reasons = 0, collections.Counter()
    counts, unsound = collections.Counter(), 0
    missing = collections.Counter()
    for draft in SUITE_DRAFTS:
        for path, data in files_of(args.folder, args.commit, f"tests/{draft}/"):
            optional = "/optional/" in path
            if optional and "/format/" not in path:
                continue
            for group in json.loads(data):
                cases = [(t, [json.dumps(o, separators=(",", ":"), ensure_ascii=False) for o in orders(t["data"])])
                         for t in group["tests"]]
                texts = [t for _, some in cases for t in some]
                answer = compiler.ask(schema=group["schema"], instances=texts)
                if "error" in answer:
                    refused += 1
                    reasons[reason_of(answer["error"])] += 1
                    continue
                accepts = iter(answer["accepts"])
                for test, some in cases:
                    accepted = any([next(accepts) for _ in some])
                    counts[test["valid"], accepted] += 1
                    if accepted and not test["valid"] and (optional or "format.json" not in path):
                        unsound += 1
                        print(f"UNSOUND {path}: {group['description']}: {test['description']}: {some[0][:100]}")
                    if test["valid"] and not accepted:
                        missing[path.split("/", 2)[2]] += 1
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
    print("valid, not written:", ", ".join(f"{k} {n}" for k, n in missing.most_common()))
    print(f"{refused} groups refused; valid: {counts[True, True]} accepted, {counts[True, False]} not; "
          f"invalid: {counts[False, False]} rejected, {unsound} accepted")
    return unsound


def too_slow(number, frame):
    raise TimeoutError


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("what", choices=("bench", "suite"))
    p.add_argument("folder")
    p.add_argument("--commit", default="HEAD")
    p.add_argument("--sample", type=int, default=2000)
    p.add_argument("--walks", type=int, default=5)
    p.add_argument("--refused", type=int, default=250)
    p.add_argument("--places", type=int, default=0, help="refused schemas to print for each reason")
    args = p.parse_args()
    signal.signal(signal.SIGALRM, too_slow)
    compiler = Compiler(args.program)
    sys.exit(1 if (bench if args.what == "bench" else suite)(args, compiler) else 0)


main()
