"""Writes tests/data/rope.json: rotary frequencies and table entries in 60-digit arithmetic, and the bits of the
law (docs/NUMERICS.md, section 6), from a second implementation in Python's doubles.

    python3 python/rope_data.py > tests/data/rope.json      needs mpmath
"""
import json
import math
import struct

from mpmath import mp, mpf

mp.dps = 60

RULES = [
    {"name": "plain", "theta": 1e4, "head_dim": 64, "factor": 1.0},
    {"name": "qwen3", "theta": 1e6, "head_dim": 128, "factor": 1.0},
    {"name": "linear", "theta": 1e4, "head_dim": 96, "factor": 4.0},
    {"name": "llama31", "theta": 5e5, "head_dim": 128, "factor": 8.0, "low": 1.0, "high": 4.0, "original": 8192},
    {"name": "llama32", "theta": 5e5, "head_dim": 64, "factor": 32.0, "low": 1.0, "high": 4.0, "original": 8192},
    {"name": "odd", "theta": 1234567.875, "head_dim": 10, "factor": 1.0},
    {"name": "qwen3_yarn", "theta": 1e6, "head_dim": 128, "factor": 4.0, "original": 32768, "beta_fast": 32.0,
     "beta_slow": 1.0, "truncate": True, "mscale": 0.0, "mscale_all": 0.0},
    {"name": "yarn_llama2", "theta": 1e4, "head_dim": 128, "factor": 16.0, "original": 4096, "beta_fast": 32.0,
     "beta_slow": 1.0, "truncate": True, "mscale": 0.0, "mscale_all": 0.0},
    {"name": "yarn_mscale", "theta": 1e4, "head_dim": 64, "factor": 40.0, "original": 4096, "beta_fast": 32.0,
     "beta_slow": 1.0, "truncate": True, "mscale": 1.0, "mscale_all": 0.707},
    {"name": "yarn_between", "theta": 15e4, "head_dim": 64, "factor": 32.0, "original": 4096, "beta_fast": 32.0,
     "beta_slow": 1.0, "truncate": False, "mscale": 0.0, "mscale_all": 0.0},
    {"name": "yarn_one", "theta": 1e6, "head_dim": 16, "factor": 1.0, "original": 300, "beta_fast": 8.0,
     "beta_slow": 7.5, "truncate": True, "mscale": 0.0, "mscale_all": 0.0},
]
POSITIONS = [0, 1, 2, 3, 63, 64, 1000, 4095, 8192, 40959, 131071, 524287, 1048575, 1048576]


def pairs_of(rule):
    n = rule["head_dim"] // 2
    return sorted({0, 1, 2, 3, n // 4, n // 2, n - 2, n - 1})


# ---- the exact values ------------------------------------------------------------------------------------


def exact_yarn_range(rule):
    ends = []
    for turns in (rule["beta_fast"], rule["beta_slow"]):
        ratio = mpf(rule["original"]) / (mpf(turns) * 2 * mp.pi)
        pair = rule["head_dim"] * mp.log(ratio) / (2 * mp.log(mpf(rule["theta"])))
        ends.append(min(max(pair, mpf(0)), mpf(rule["head_dim"] - 1)))
    low, high = (mp.floor(ends[0]), mp.ceil(ends[1])) if rule["truncate"] else ends
    return low, high + mpf("0.001") if low == high else high


def exact_attention(rule):
    if "beta_fast" not in rule:
        return mpf(1)
    scales = [mpf(m) / 10 * mp.log(mpf(rule["factor"])) + 1 for m in (rule["mscale"], rule["mscale_all"])]
    return scales[0] / scales[1] if rule["mscale"] and rule["mscale_all"] else mp.log(mpf(rule["factor"])) / 10 + 1


def exact_frequencies(rule):
    out = []
    for i in range(rule["head_dim"] // 2):
        f = mpf(rule["theta"]) ** (-mpf(2 * i) / rule["head_dim"])
        if "beta_fast" in rule:
            low, high = exact_yarn_range(rule)
            ramp = min(max((i - low) / (high - low), mpf(0)), mpf(1))
            out.append(f / mpf(rule["factor"]) * ramp + f * (1 - ramp))
            continue
        if "low" not in rule:
            out.append(f / mpf(rule["factor"]))
            continue
        low, high, original, factor = (mpf(rule[k]) for k in ("low", "high", "original", "factor"))
        wavelength = 2 * mp.pi / f
        if wavelength < original / high:
            out.append(f)
        elif wavelength > original / low:
            out.append(f / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


# ---- the law in doubles: each line is the operations shown, in that order --------------------------------

LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
TWO_PI, TWO_OVER_PI = float.fromhex("0x1.921fb54442d18p+2"), float.fromhex("0x1.45f306dc9c883p-1")
P1, P2, P3 = (float.fromhex(x) for x in ("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2e037073p-69"))


def law_log(x):
    m, e = split(x)
    if m > 1.4142135623730951:
        m, e = m * 0.5, e + 1
    s = (m - 1.0) / (m + 1.0)
    z, total = s * s, 0.0
    for k in range(25, 0, -2):
        total = total * z + 1.0 / k
    return e * LN2_HIGH + (2.0 * s * total + e * LN2_LOW)


def split(x):
    bits = struct.unpack("<Q", struct.pack("<d", x))[0]
    m = struct.unpack("<d", struct.pack("<Q", (bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000))[0]
    return m, (bits >> 52) - 1023


def law_exp(x):
    scaled = x / (LN2_HIGH + LN2_LOW)
    n = int(scaled - 0.5 if scaled < 0 else scaled + 0.5)
    r, total = (x - n * LN2_HIGH) - n * LN2_LOW, 1.0
    for k in range(16, 0, -1):
        total = 1.0 + r * total / k
    return total * 2.0**n


def law_sine_cosine(x):
    n = int(x * TWO_OVER_PI + 0.5)
    r = ((x - n * P1) - n * P2) - n * P3
    z, s, c = r * r, 0.0, 0.0
    for i in range(20, 0, -2):
        s = (1.0 + s) * (-z / (i * (i + 1)))
        c = (1.0 + c) * (-z / (i * (i - 1)))
    s, c = r + r * s, 1.0 + c
    return [(s, c), (c, -s), (-s, -c), (-c, s)][n % 4]


def law_yarn_range(rule):
    ends = []
    for turns in (rule["beta_fast"], rule["beta_slow"]):
        ratio = float(rule["original"]) / (turns * TWO_PI)
        pair = float(rule["head_dim"]) * law_log(ratio) / (2.0 * law_log(rule["theta"]))
        ends.append(min(max(pair, 0.0), float(rule["head_dim"] - 1)))
    low, high = (float(math.floor(ends[0])), float(math.ceil(ends[1]))) if rule["truncate"] else ends
    return low, high + 0.001 if low == high else high


def law_attention(rule):
    def scaled(mscale):
        return 0.1 * mscale * law_log(rule["factor"]) + 1.0 if rule["factor"] > 1.0 else 1.0

    if "beta_fast" not in rule:
        return 1.0
    both = rule["mscale"] and rule["mscale_all"]
    return scaled(rule["mscale"]) / scaled(rule["mscale_all"]) if both else scaled(1.0)


def law_frequencies(rule):
    log_theta, out = law_log(rule["theta"]), []
    for i in range(rule["head_dim"] // 2):
        f = law_exp(-float(2 * i) / float(rule["head_dim"]) * log_theta)
        if "beta_fast" in rule:
            low, high = law_yarn_range(rule)
            ramp = min(max((float(i) - low) / (high - low), 0.0), 1.0)
            out.append(f / rule["factor"] * ramp + f * (1.0 - ramp))
            continue
        if "low" not in rule:
            out.append(f / rule["factor"])
            continue
        low, high, original, factor = rule["low"], rule["high"], float(rule["original"]), rule["factor"]
        wavelength = TWO_PI / f
        if wavelength < original / high:
            out.append(f)
        elif wavelength > original / low:
            out.append(f / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1.0 - smooth) * f / factor + smooth * f)
    return out


def float_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def main():
    rules = []
    for rule in RULES:
        exact, law = exact_frequencies(rule), law_frequencies(rule)
        # A double and a remainder: the law's error is below one ulp of a double.
        entry = dict(rule)
        entry["frequencies"] = [[float(f).hex(), float(f - mpf(float(f))).hex()] for f in exact]
        entry["law_frequencies"] = [f.hex() for f in law]
        attention, scale = exact_attention(rule), law_attention(rule)
        if "beta_fast" in rule:
            entry["attention"] = [float(attention).hex(), float(attention - mpf(float(attention))).hex()]
            entry["law_attention"] = scale.hex()
        entry["rows"] = []
        for position in POSITIONS:
            for i in pairs_of(rule):
                angle = exact[i] * position
                sine, cosine = law_sine_cosine(float(position) * law[i])
                entry["rows"].append([position, i, float(mp.cos(angle) * attention).hex(),
                                      float(mp.sin(angle) * attention).hex(), "%08x" % float_bits(cosine * scale),
                                      "%08x" % float_bits(sine * scale)])
        rules.append(entry)
    text = json.dumps({"made_by": "python/rope_data.py", "rules": rules})
    print(text.replace('], [', '],\n[').replace('{"name"', '\n{"name"'))


if __name__ == "__main__":
    main()
