#!/usr/bin/env python3
"""Cases for test_tokenizer_cases.c, answered by the reference library (pip install tokenizers; 0.23 was used).

    tokenizer_cases.py small OUT.json SEED COUNT        small made-up tokenizers over every supported step
    tokenizer_cases.py made  OUT.json 0 0               quantifiers after intervals, several templates
    tokenizer_cases.py dirs  OUT.json SEED COUNT DIR... real ones, DIR/tokenizer.json
    tokenizer_cases.py every OUT.json FROM STEP DIR...    real ones, and normalizers and splits: every STEP-th character from FROM on

tests/data/tokenizer_cases.json is `small` with seed 1, count 36, tokenizer_cases_made.json is `made`. Larger ones are for development: point
INVAR_TOKENIZER_CASES at the file. The tests never need this script.
"""
import json
import random
import sys

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

POOLS = [
    lambda r: chr(r.randint(0x20, 0x7E)),
    lambda r: r.choice("abcdefghijklmnopqrstuvwxyz"),
    lambda r: r.choice("the and of to in is that apples 12 345"),
    lambda r: r.choice(" \t\n\r\u00a0\u2003\u3000\u200b\u0085\u2028\u1680\u180e\u202f\ufeff\x0b\x0c\x1c\x1f"),
    lambda r: r.choice("  \n"),
    lambda r: chr(r.randint(0, 0x1F)),
    lambda r: r.choice("0123456789\u0661\u0967\u00bd\u2460\u2167\u00b2\U0001d7d8"),
    lambda r: chr(r.randint(0x80, 0x24F)),
    lambda r: chr(r.randint(0x300, 0x36F)),
    lambda r: r.choice("\u0315\u0334\u0327\u0301\u0308\u05b0\u0591\u3099\u1abf\u08d3\u1df6"),
    lambda r: chr(r.randint(0x370, 0x5FF)),
    lambda r: chr(r.randint(0x600, 0x10FF)),
    lambda r: chr(r.randint(0x1100, 0x1FFF)),
    lambda r: chr(r.randint(0x2000, 0x2BFF)),
    lambda r: chr(r.randint(0x3000, 0x9FFF)),
    lambda r: chr(r.randint(0xAC00, 0xD7A3)),
    lambda r: chr(r.randint(0xF900, 0xFFFD)),
    lambda r: chr(r.randint(0x1F300, 0x1FAFF)),
    lambda r: r.choice(["\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea"]),
    lambda r: chr(r.randint(0x10000, 0x1FFFF)),
    lambda r: r.choice("\U0001e030\U000105c0\U00010d40\U00011f50\U00031350\U0001cc00\u1c89\ua7cb\U0001df25\U000113d4"),
    lambda r: r.choice(["'s", "'T", "'LL", "'\u017f", "'re", "I've", "don't", "\u2019s"]),
    lambda r: r.choice("aAeEiI\u0130\u0131\u017f\u212a\u00c5\u212b\u1e9e\u00df\u01c5\ufb01\ufb06\u03a3\u03c2"),
    lambda r: r.choice("!?.,;:()[]{}<>|/\\\"'`~@#$%^&*_-+="),
    lambda r: r.choice(["\u2581", "\u2581\u2581", "\u0120", "\u010a", "\ufffd"]),
]


def any_char(r):
    while True:
        c = r.randint(0, 0x10FFFF)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def text(r, extra=()):
    out = []
    for _ in range(r.choice([0, 1, 1, 2, 3, 4, 6])):
        pool = r.choice(POOLS) if r.random() < 0.9 else any_char
        if extra and r.random() < 0.3:
            out.append(r.choice(extra))
            if r.random() < 0.3:
                out.append(" " * r.randint(0, 2))
        out.append("".join(pool(r) for _ in range(r.choice([1, 1, 2, 3, 5, 9]))))
    return "".join(out)


def cases_of(tok, r, count, extra):
    cases = []
    size = max(tok.get_vocab(with_added_tokens=True).values()) + 1
    for k in range(count):
        case = {}
        try:
            if k % 4 == 3:
                ids = [r.randrange(size + 2) for _ in range(r.choice([0, 1, 2, 5, 12, 30]))]
                if r.random() < 0.5:
                    lowest = r.randrange(size)
                    ids = [min(size, lowest + r.randrange(300)) for _ in ids]
                case["decode"] = ids
            else:
                s = text(r, extra)
                case["text"], case["add"], case["parse"] = s, r.random() < 0.5, r.random() < 0.7
                tok.encode_special_tokens = not case["parse"]
                ids = tok.encode(s, add_special_tokens=case["add"]).ids
                case["ids"] = ids
            case["decoded"] = tok.decode(ids, skip_special_tokens=False)
            skipped = tok.decode(ids, skip_special_tokens=True)
            if skipped != case["decoded"]:
                case["skipped"] = skipped
        except BaseException as e:  # the reference panics on some inputs; there is no answer then
            if isinstance(e, KeyboardInterrupt):
                raise
            continue
        cases.append(case)
    return cases


REGEXES = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
    r"\w+|[^\w\s]+", r"\s+", r"\d", r"\p{P}", r"[^\S\n]+", r"[\W\d]", r"\b", r"\B", r"^.", r".$", r"a{,2}", r"\h+",
    r"[^\P{L}e]+", r"(?<=\s)\S", r"\p{S}|\p{M}", r"[a-ce\-\]]+", r"\p{Han}+|\p{Hangul}", r"(?i)apples|THE", r"\s*",
    r"(?:a|e)+?\w", r"\u0301|\x{1F600}", r"\p{^L}+", r"(?>the|t)h?", r"\AT|\z", r"[\p{N}\p{Z}]{2,}", r"{", r"\v|\p{Cc}",
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


EMPTY = (r"\b", r"a{,2}", r"\B", r"\s*", r"\AT|\z")  # may match nothing: the reference's Replace then garbles the text


def pattern(r, replaces=False):
    return {"Regex": r.choice([p for p in REGEXES if not (replaces and p in EMPTY)])} if r.random() < 0.7 else {"String": r.choice([" ", "e", "th", "\u2581", "."])}


def replace(r):
    return {"type": "Replace", "pattern": pattern(r, True), "content": r.choice(["", " ", "\u2581", "xy", "\u00e9"])}


def sequence(r, key, steps, most):
    chosen = [r.choice(steps)(r) for _ in range(r.choice(range(most + 1)))]
    if not chosen:
        return None
    return chosen[0] if len(chosen) == 1 and r.random() < 0.5 else {"type": "Sequence", key: chosen}


def metaspace(r):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": r.choice(["never", "first", "always"]),
            "split": r.random() < 0.6}


NORMALIZERS = [lambda r, k=k: {"type": k} for k in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")] + [
    lambda r: {"type": "Prepend", "prepend": r.choice(["\u2581", "x"])}, replace,
    lambda r: {"type": "Strip", "strip_left": r.random() < 0.5, "strip_right": r.random() < 0.5}]
PRETOKENIZERS = [
    lambda r: {"type": "Split", "pattern": pattern(r), "behavior": r.choice(BEHAVIORS), "invert": r.random() < 0.3},
    lambda r: {"type": "Split", "pattern": pattern(r), "behavior": r.choice(BEHAVIORS), "invert": r.random() < 0.3},
    lambda r: {"type": "Digits", "individual_digits": r.random() < 0.5},
    lambda r: {"type": "Punctuation", "behavior": r.choice(BEHAVIORS)},
    lambda r: {"type": "Whitespace"}, lambda r: {"type": "WhitespaceSplit"}, metaspace]
BYTE_LEVEL = lambda r: {"type": "ByteLevel", "add_prefix_space": r.random() < 0.4, "trim_offsets": False,
                        "use_regex": r.random() < 0.6}
DECODERS = [replace, lambda r: {"type": "ByteFallback"}, lambda r: {"type": "Fuse"}, metaspace,
            lambda r: {"type": "Strip", "content": r.choice([" ", "e", "\u2581"]), "start": r.randrange(3), "stop": r.randrange(2)},
            lambda r: {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]
LINES = ["the apples and the others in that house of 12 or 345 bananas", "is the theme that of an ant? (the end.)",
         "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \u6771\u4eac \uc548\ub155 \u041f\u0440\u0438\u0432\u0435\u0442  a  b",
         "\u2581the\u2581apples\u2581and\u2581of"]


def small_tokenizer(r):
    byte_level, bytes_fall = r.random() < 0.35, r.random() < 0.5
    tok = Tokenizer(models.BPE(unk_token="<unk>" if r.random() < 0.6 else None))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if byte_level else pre_tokenizers.Split(Regex(r"\S+|\s+"), "isolated")
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()} if byte_level and r.random() < 0.8 else {}
    if not byte_level and r.random() < 0.2:
        options["continuing_subword_prefix"] = "##"
    if not byte_level and r.random() < 0.2:
        options["end_of_word_suffix"] = "</w>"
    special = ["<unk>"] + (["<0x%02X>" % b for b in range(256)] if bytes_fall and not byte_level else [])
    tok.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=r.choice([60, 90, 130]) + len(special), special_tokens=special,
                                                       show_progress=False, **options))
    spec = json.loads(tok.to_str())
    model = spec["model"]
    model.update(byte_fallback=bytes_fall and r.random() < 0.9, fuse_unk=r.random() < 0.5, ignore_merges=r.random() < 0.3)
    if r.random() < 0.5:
        model["merges"] = [" ".join(m) for m in model["merges"]]
    spec["normalizer"] = sequence(r, "normalizers", NORMALIZERS, 2)
    spec["pre_tokenizer"] = sequence(r, "pretokenizers", PRETOKENIZERS + ([BYTE_LEVEL] * 5 if byte_level else []), 3)
    # "first" is known to differ when the text's first character has been changed or pushed aside (tokenizer.md).
    steps = (spec["pre_tokenizer"] or {}).get("pretokenizers", [spec["pre_tokenizer"] or {}])
    for i, step in enumerate(steps):
        moved = spec["normalizer"] or any(s["type"] in ("Metaspace", "ByteLevel") for s in steps[:i])
        if moved and step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "always"
    spec["decoder"] = sequence(r, "decoders", DECODERS, 4) if r.random() < 0.9 else None
    flag = lambda p: r.random() < p
    spec["added_tokens"], names = [], r.sample(["<s>", "<pad>", "</s>", "The", "ap", "\u00c9t\u00e9", "x y", "  ", "<s>x", "<", "12"], r.randrange(6))
    for name in ["<unk>"] * flag(0.5) + names:
        if name in model["vocab"] or name in names:
            new = len(model["vocab"]) + sum(a["content"] not in model["vocab"] for a in spec["added_tokens"])
            spec["added_tokens"].append(dict(id=model["vocab"].get(name, new), content=name, single_word=flag(0.2), lstrip=flag(0.3),
                                             rstrip=flag(0.3), normalized=flag(0.4), special=flag(0.5)))
    ids = {a["content"]: a["id"] for a in spec["added_tokens"]}
    spec["post_processor"] = None
    if ids and flag(0.6):
        left, right = r.choice(list(ids)), r.choice(list(ids))
        piece = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
        template = {"type": "TemplateProcessing", "single": [piece(left), {"Sequence": {"id": "A", "type_id": 0}}] + [piece(right)] * flag(0.5),
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in {left, right}}}
        both = [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, template]
        spec["post_processor"] = {"type": "Sequence", "processors": both} if flag(0.5) else template
    return spec, names


def every_case(tok, start, step):
    """Every step-th character from start on, between a letter and a digit, after a space, and among marks of several classes."""
    cases = []
    # Beyond these ranges nothing is assigned but private use.
    assigned = [c for c in (*range(0, 0xD800), *range(0xE000, 0x33500), *range(0xE0000, 0xE0200))][start::step]
    for i in range(0, len(assigned), 64):
        chars = [chr(c) for c in assigned[i : i + 64]]
        s = "".join("a%s1 %s.%s\u0315%s\u0334\n%s%sB" % (c, c, c, c, c, c) for c in chars)
        ids = tok.encode(s, add_special_tokens=False).ids
        cases.append({"text": s, "add": False, "parse": True, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False)})
    return cases


def byte_tokenizer(normalizer, pretokenizer):
    """Shows what the steps did: its ids are the bytes of the text, with a mark (id 1) where a piece ends."""
    vocab = {"\u2423": 0, "</w>": 1}
    vocab.update({"<0x%02X>" % b: b + 2 for b in range(256)})
    return {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pretokenizer, "post_processor": None,
            "decoder": {"type": "ByteFallback"}, "model": {"type": "BPE", "unk_token": None, "byte_fallback": True, "fuse_unk": False,
                                                            "end_of_word_suffix": "|", "vocab": vocab, "merges": []}}


def every(dirs, start, step):
    split = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    pieces = [split(REGEXES[0]), split(REGEXES[1])] + [split(x) for x in (r"\w", r"[\w]", r"\b", r"\p{P}", r"\p{S}|\p{Z}", r"\p{M}", r"\p{Han}|\p{Latin}",
                                                                            r"\p{Cyrillic}|\p{Arabic}|\p{Hiragana}", r"(?i:'s|k)")]
    pieces += [{"type": t} for t in ("Whitespace", "WhitespaceSplit", "Punctuation")] + [{"type": "Digits", "individual_digits": True}]
    specs = [byte_tokenizer({"type": t}, None) for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")] + [byte_tokenizer(None, p) for p in pieces]
    for spec in specs:
        s = json.dumps(spec, separators=(",", ":"))
        yield {"name": str(spec["normalizer"] or spec["pre_tokenizer"]), "json": s, "cases": every_case(Tokenizer.from_str(s), start, step)}
    for path in dirs:
        yield {"name": path, "dir": path, "cases": every_case(Tokenizer.from_file(path + "/tokenizer.json"), start, step)}


INTERVALS = [r"\p{N}{1,3}+", r"a{2}+", r"a{1,2}+b", r"a{2,}+", r"a{,2}+b", r"[^a]{1,2}+", r"(ab){1,2}+", r"a{1,3}+a", r"a{2}?", r"a{2}??",
             r"a{2,3}?", r"a{1,2}?+b", r"a{2}*", r"a{2}{3}", r"(?:a|b){2}?c", r"\p{L}{2}{2,}|\s", r"\{2}+", r"a{+", r"(a{2}+|b){2}+", r"a{2}++b",
             r"\b\w{2,3}+", r"(?i:a{2}+)", r"a++b", r"a?+", r"\p{L}{1,4}?\d{2}+"]


def template(single, pair):
    piece = lambda t: {"Sequence": {"id": t, "type_id": 0}} if t in "AB" else {"SpecialToken": {"id": t, "type_id": 0}}
    names = sorted({t for t in single + pair if t not in "AB"})
    return {"type": "TemplateProcessing", "single": [piece(t) for t in single], "pair": [piece(t) for t in pair],
            "special_tokens": {t: {"id": t, "ids": [ord(t) + 2] * (1 + (t == "y")), "tokens": [t] * (1 + (t == "y"))} for t in names}}


def made(r):
    """Quantifiers after an interval, and several templates in a Sequence. Tokens of byte_tokenizer: byte b has id b + 2."""
    for regex in INTERVALS:
        spec = byte_tokenizer(None, {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False})
        yield regex, spec, ["a" * n for n in range(1, 8)] + ["aaab", "ababab", "aabbc aac", "123 1234567", "Abc12 abcde34", "{{{ a{ AaA aa  bb"]
    pairs = ["AB", "xAxB", "yBAx", "xyAB"]
    for first in ("A", "xA", "Ay", "xAy", "yxA"):
        for pair in pairs:
            for middle in ([], [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}], [template("A", "BA")]):
                steps = [template(first, "AB"), *middle, template("zA", pair)]
                for last in ([], [template("A", "BxA")]):
                    spec = byte_tokenizer(None, None) | {"post_processor": {"type": "Sequence", "processors": steps + last}}
                    yield "templates %s %s" % (first, pair), spec, ["", "abc"]


def made_cases(tok, texts):
    cases = []
    for s in texts:
        for add in (True, False):
            try:
                ids = tok.encode(s, add_special_tokens=add).ids
            except BaseException:  # more than two pieces before a template
                return None
            cases.append({"text": s, "add": add, "parse": True, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False)})
    return cases


def main():
    kind, out, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    r = random.Random(seed)
    result = []
    if kind == "every":
        result = list(every(sys.argv[5:], seed, count))
    if kind == "dirs":
        for path in sys.argv[5:]:
            with open(path + "/tokenizer.json") as f:
                extra = [a["content"] for a in json.load(f)["added_tokens"]]
            result.append({"name": path, "dir": path, "cases": cases_of(Tokenizer.from_file(path + "/tokenizer.json"), r, count, extra)})
    while kind == "small" and len(result) < count:
        spec, extra = small_tokenizer(r)
        s = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        try:
            tok = Tokenizer.from_str(s)
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            continue
        # An added token that normalizes to nothing, or to another one's text, makes the reference hang or guess.
        forms = [tok.normalizer.normalize_str(a["content"]) if a["normalized"] and tok.normalizer else a["content"]
                 for a in spec["added_tokens"] if a["normalized"]]
        if "" in forms or len(set(forms)) < len(forms):
            continue
        result.append({"name": "small %d" % len(result), "json": s, "cases": cases_of(tok, r, 20, extra)})
    for name, spec, texts in made(r) if kind == "made" else ():
        s = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        cases = made_cases(Tokenizer.from_str(s), texts)
        if cases:
            result.append({"name": name, "json": s, "cases": cases})
    with open(out, "w") as f:
        json.dump(result, f, ensure_ascii=False, separators=(",", ":"))


main()
