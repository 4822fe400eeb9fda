"""Judges what tests/grammar/test_oracle.c wrote: a line of JSON a case.

{"schema": ..., "text": ...}: the text must be JSON that satisfies the schema, as the package jsonschema sees it.
{"regex": ..., "text": ..., "matches": bool}: must be what Python's re says.

Python's re backtracks, for ever with some expressions: what takes it longer than a second is not judged, and counted."""

import json
import re
import signal
import sys

try:
    import jsonschema
except ImportError:
    print("SKIPPED: the Python package jsonschema is not here")
    sys.exit(77)


def no_duplicates(pairs):
    if len({k for k, _ in pairs}) != len(pairs):
        raise LookupError
    return dict(pairs)


def judge(case):
    """None, or what is wrong. Keys that are not listed may come twice: such texts are not judged."""
    if "regex" in case:
        found = re.fullmatch(case["regex"], case["text"], re.ASCII) is not None
        return None if found == case["matches"] else f"re says {found}"
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
    counts = {"schema": 0, "regex": 0, "matches": 0, "unjudged": 0}
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
            counts["regex" if "regex" in case else "schema"] += 1
            counts["matches"] += case.get("matches", False)
            if reason:
                wrong += 1
                if wrong < 10:
                    print("WRONG:", reason, json.dumps(case)[:600])
    print(f"{counts['schema']} texts of schemas, {counts['regex']} of expressions ({counts['matches']} match), {wrong} wrong, "
          f"{counts['unjudged']} not judged")
    sys.exit(1 if wrong or 100 * counts["unjudged"] > counts["schema"] + counts["regex"] else 0)


main()
