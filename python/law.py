"""A second implementation of the law (docs/NUMERICS.md): slow, with exact rationals where an operation is fused.

    python3 python/law.py > tests/data/law.json      needs numpy

tests/numerics/test_law.c computes the same inputs in C and compares bits.
"""
import json
import struct
import sys
from fractions import Fraction

import numpy as np

f32 = np.float32
np.seterr(all="ignore")
NAN, INF = 0x7FFFFFFF, f32("inf")

# ---- sections 1 and 2: floats ----------------------------------------------------------------------------


def u(x):
    return NAN if np.isnan(x) else struct.unpack("<I", struct.pack("<f", float(x)))[0]


def f(bits):
    return f32(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])


def h(text):
    return f32(float.fromhex(text))


def nearest(q, places=24, least=-149, top=128):
    """The float of `places` bits nearest to the rational q != 0, ties to even, as a Python float."""
    a = abs(q)
    e = a.numerator.bit_length() - a.denominator.bit_length()
    if Fraction(2) ** e > a:
        e -= 1
    unit = Fraction(2) ** max(e - places + 1, least)
    n, rest = divmod(a, unit)
    if 2 * rest > unit or (2 * rest == unit and n % 2):
        n += 1
    v = n * unit
    v = float("inf") if v >= Fraction(2) ** top else float(v)
    return -v if q < 0 else v


def fused(a, b, c, finish):
    """a*b + c; finish rounds an exact sum that is not zero. Zeros and non-finite values follow IEEE 754."""
    a, b, c = (np.float64(x) for x in (a, b, c))
    if not np.isfinite(a * b + c) or a * b == 0 and c == 0:
        return f32(a * b + c)
    q = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    return f32(0) if q == 0 else f32(finish(q))


def fma(a, b, c):
    return fused(a, b, c, nearest)


def flushed(q):
    if abs(q) < Fraction(1, 2**126) - Fraction(1, 2**151):
        return -0.0 if q < 0 else 0.0
    return nearest(q)


def daz(x):
    return np.copysign(f32(0), x) if abs(x) < h("0x1p-126") else x


def fma_ftz(a, b, c):
    return fused(daz(a), daz(b), daz(c), flushed)


def add_ftz(a, b):
    return fma_ftz(f32(1), a, b)


ROUND = {
    "float32": lambda x: x,
    "bfloat16": lambda x: f(((u(x) + 0x7FFF + ((u(x) >> 16) & 1)) >> 16) << 16) if np.isfinite(x) else x,
    "float16": lambda x: f32(nearest(Fraction(float(x)), 11, -24, 16)) if np.isfinite(x) and x != 0 else x,
}

# ---- section 3: dot products -----------------------------------------------------------------------------


def chain_fma32(acc, a, b, _):
    for k in range(0, len(a), 2):
        acc = fma_ftz(a[k + 1], b[k + 1], acc)
        acc = fma_ftz(a[k], b[k], acc)
    return acc


def apart(x, kind):
    """(mantissa, exponent, fraction bits) of a finite number; the exponent is that of its leading bit."""
    fraction, least = {"bfloat16": (7, -126), "float16": (10, -14), "float32": (23, -126)}[kind]
    q = Fraction(float(x))
    e = least
    while abs(q) >= Fraction(2) ** (e + 1):
        e += 1
    return int(q / Fraction(2) ** (e - fraction)), e, fraction


def toward_zero(q):
    return int(q) if q >= 0 else -int(-q)


def tc16_step(c, a, b, kind):
    values = list(a) + list(b) + [c]
    products = [np.float64(x) * np.float64(y) for x, y in zip(a, b)] + [np.float64(c)]
    if any(np.isnan(v) for v in values + products) or (INF in products and -INF in products):
        return f(NAN)
    if INF in products or -INF in products:
        return INF if INF in products else -INF
    terms = [(c0[0] * c1[0], c0[1] + c1[1], 2 * c0[2]) for c0, c1 in ((apart(x, kind), apart(y, kind)) for x, y in zip(a, b))]
    terms.append(apart(c, "float32"))
    e_max = max([-133] + [e for m, e, _ in terms if m])
    unit = Fraction(2) ** (e_max - 25)
    total = sum(toward_zero(m * Fraction(2) ** (e - bits) / unit) for m, e, bits in terms) * unit
    if total == 0:
        return f32(0)
    e = total.numerator.bit_length() - total.denominator.bit_length()
    if Fraction(2) ** e > abs(total):
        e -= 1
    place = Fraction(2) ** max(e - 23, -149)
    kept = toward_zero(total / place) * place
    return f32(0) if kept == 0 else f32(np.copysign(INF, float(kept))) if abs(kept) >= 2**128 else f32(float(kept))


def chain_tc16(acc, a, b, kind):
    for k in range(0, len(a), 16):
        acc = tc16_step(acc, a[k : k + 16], b[k : k + 16], kind)
    return acc


CHAIN = {"fma32": chain_fma32, "tc16": chain_tc16}


def padded(x):
    return list(x) + [f32(0)] * (-len(x) % 16)


def linear(arithmetic, kind, x, w, leaves=4):
    """leaves: at most so many; 8 in o and down."""
    x, w = padded(x), padded(w)
    while len(x) % (16 * leaves):
        leaves //= 2
    n = len(x) // leaves
    nodes = [CHAIN[arithmetic](f32(0), x[i * n : (i + 1) * n], w[i * n : (i + 1) * n], kind) for i in range(leaves)]
    add = add_ftz if arithmetic == "fma32" else lambda a, b: a + b
    while len(nodes) > 1:
        nodes = [add(nodes[i], nodes[i + 1]) for i in range(0, len(nodes), 2)]
    return nodes[0]


# ---- section 5: elementary functions ---------------------------------------------------------------------

M = h("0x1.8p23")
EXP2 = "0x1.5ec86ap-10 0x1.3cbf6p-7 0x1.c6afeep-5 0x1.ebfa4cp-3 0x1.62e43p-1 1"
EXP = "0x1.6d110p-10 0x1.120b62p-7 0x1.55551ap-5 0x1.5554dep-3 0x1p-1 1 1"
LOG = ("0x1.1d8ea6p-4 -0x1.d635bcp-4 0x1.dea282p-4 -0x1.fcf4c6p-4 0x1.23d21ap-3 -0x1.555b4ap-3 0x1.999d5ap-3 "
       "-0x1.fffffcp-3 0x1.555554p-2")


def poly(x, coefficients):
    c = [h(t) for t in coefficients.split()]
    p = c[0]
    for k in c[1:]:
        p = fma(p, x, k)
    return p


def scale(p, t):
    return f(u(p) + ((u(t) - 0x4B400000) << 23))


def given2(x):
    """2^x if the law defines the exact result, or None."""
    if np.isnan(x):
        return f(NAN)
    return INF if not x < 128 else f32(0) if x < -126 else None


def exp2(x):
    if given2(x) is not None:
        return given2(x)
    t = x + M
    return scale(poly(x - (t - M), EXP2), t)


# Rows of c0 c1 c2 in hexadecimal, one for each 64th of the fraction.
EX2 = """
2000000 58b9 1ee 2059347 59b0 1f5 20b361b 5aaa 1fa 210e8a2 5ba7 1ff 216ab0f 5ca6 206 21c7d86 5da9 209
2226039 5eae 20f 2285356 5fb6 214 22e5709 60c0 21d 2346b7e 61ce 222 23a90e5 62df 227 240c772 63f2 22f
2470f4e 6509 234 24d68ad 6623 238 253d3c0 673f 241 25a50b6 685f 247 260dfc2 6982 24d 2678117 6aa8 254
26e34e6 6bd2 258 274fb67 6cfe 261 27bd4c9 6e2e 267 282c145 6f61 26e 289c10b 7098 273 290d456 71d2 279
297fb5a 730f 281 29f364e 7450 287 2a6856a 7594 28f 2ade8e7 76dc 295 2b560fb 7827 29e 2bcede2 7976 2a5
2c48fd7 7ac8 2ae 2cc4710 7c1f 2b3 2d413cc 7d79 2bb 2dbf648 7ed7 2c1 2e3eebe 8038 2cb 2ebfd6a 819e 2d1
2f4228e 8307 2da 2fc5e67 8474 2e3 304b134 85e5 2ec 30d1b33 875b 2f1 3159ca8 88d4 2fb 31e35d3 8a51 305
326e6f7 8bd3 30b 32fb054 8d59 313 3389230 8ee3 31c 3418ccf 9071 326 34aa076 9204 32d 353cd6a 939b 336
35d13f4 9536 341 3667457 96d6 34a 36feede 987b 351 37983d3 9a24 35a 383337d 9bd1 366 38cfe27 9d84 36d
396e41c 9f3b 377 3a0e5aa a0f7 380 3ab031d a2b7 38d 3b53cc1 a47d 395 3bf92e7 a648 39d 3ca05dd a817 3aa
3d495f5 a9ec 3b2 3df437f abc5 3bf 3ea0ecc ada4 3c9 3f4f831 af88 3d4
"""
EX2 = [[int(t, 16) for t in EX2.split()[3 * i : 3 * i + 3]] for i in range(64)]


def ex2(x):
    if given2(x) is not None:
        return given2(x)
    k, fraction = divmod(int(abs(Fraction(float(x))) * 2**23), 2**23)
    n = k
    if x < 0:
        n, fraction = (-k - 1, 2**23 - 1 - fraction) if fraction else (-k, 0)
    i, r = divmod(fraction, 2**17)
    c0, c1, c2 = EX2[i]
    q = sum(r >> 18 - b for b in range(17) if r >> b & 1) // 2
    v = (c0 * 2**13 + c1 * r + c2 * q + 0x77E2) // 2**15
    return f((n + 127 << 23) + v - 2**23)


def exp(x):
    if np.isnan(x):
        return f(NAN)
    if x > h("0x1.62e42ep+6"):
        return INF
    if x < h("-0x1.5d589ep+6"):
        return f32(0)
    t = fma(x, h("0x1.715476p+0"), M)
    n = t - M
    r = fma(n, h("-0x1.7f7d1cp-20"), fma(n, h("-0x1.62e4p-1"), x))
    return scale(poly(r, EXP), t)


def log(x):
    if np.isnan(x) or x < 0:
        return f(NAN)
    if x == 0:
        return -INF
    if x == INF:
        return INF
    small = x < h("0x1p-126")
    d = (u(x * h("0x1p23") if small else x) - 0x3F3504F3) & 0xFFFFFFFF
    e = f32(((d ^ 0x80000000) - 0x80000000 >> 23) - (23 if small else 0))
    m = f((d & 0x007FFFFF) + 0x3F3504F3)
    g = m - f32(1)
    z = g * g
    p = (poly(g, LOG) * g) * z
    p = fma(f32(-0.5), z, fma(e, h("0x1.7f7d1cp-20"), p))
    return fma(e, h("0x1.62e4p-1"), g + p)


def silu(x):
    return x / (f32(1) + exp(f32(0) - x))


# ---- sections 4, 7, 9: rows, attention, experts ----------------------------------------------------------


def fold(lanes):
    lanes, stride = list(lanes), 128
    while stride:
        for i in range(stride):
            lanes[i] = lanes[i] + lanes[i + stride]
        stride //= 2
    return lanes[0]


def largest(m, values):
    for x in values:
        m = x if x > m else m
    return m + f32(0)


def rmsnorm(x, w, eps):
    lanes = [f32(0)] * 256
    for i, v in enumerate(x):
        lanes[i % 256] = fma(v, v, lanes[i % 256])
    r = f32(1) / np.sqrt(fold(lanes) / f32(len(x)) + eps)
    return [(v * r) * k for v, k in zip(x, w)]


def sum_exp(x):
    m, lanes = largest(-INF, x), [f32(0)] * 256
    for i, v in enumerate(x):
        lanes[i % 256] = lanes[i % 256] + exp(v - m)
    return m, fold(lanes)


def log_softmax(x):
    m, s = sum_exp(x)
    return [(v - m) - log(s) for v in x]


def swiglu(gate, up):
    return [silu(g) * v for g, v in zip(gate, up)]


def rope(x, cosine, sine):
    n = len(x) // 2
    return ([fma(x[i], cosine[i], -(x[i + n] * sine[i])) for i in range(n)] +
            [fma(x[i + n], cosine[i], x[i] * sine[i]) for i in range(n)])


def route(logits, k, normalise):
    m, s = sum_exp(logits)
    ids = sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:k]
    w = [exp(logits[e] - m) / s for e in ids]
    total = f32(0)
    for v in w:
        total = total + v
    return ids, [v / total for v in w] if normalise else w


def combine(terms):
    """terms: {expert id: value}"""
    while len(terms) > 1:
        up = {}
        for e in sorted(terms):
            up[e // 2] = up[e // 2] + terms[e] if e // 2 in up else terms[e]
        terms = up
    return next(iter(terms.values()))


def attention(arithmetic, kind, q, keys, values, t, window):
    chain, e, dim = CHAIN[arithmetic], ex2 if arithmetic == "tc16" else exp2, len(q)
    factor = f32(1.4426950408889634 / np.sqrt(np.float64(dim)))
    low, total = (max(0, t - window + 1) if window else 0), None
    for split in range(t // 256 + 1):
        if 256 * split + 255 < low:
            continue
        m, s, lanes, out = -INF, f32(0), [f32(0)] * 8, [f32(0)] * dim
        for block in range(4 * split, 4 * split + 4):
            at = range(64 * block, 64 * block + 64)
            if not any(low <= j <= t for j in at):
                continue
            score = [chain(f32(0), padded(q), padded(keys[j]), kind) if low <= j <= t else -INF for j in at]
            most = largest(-INF, score) * factor
            new = most if most > m + f32(8) else m
            alpha = e(m - new)
            w = [ROUND[kind](e(fma(x, factor, -new))) for x in score]
            if arithmetic == "tc16":
                s = chain(s * alpha, w, [f32(1)] * 64, kind)
            else:
                lanes = [x * alpha for x in lanes]
                for j in range(64):
                    lanes[j % 8] = lanes[j % 8] + w[j]
            for d in range(dim):
                column = [values[j][d] if low <= j <= t else f32(0) for j in at]
                out[d] = chain(out[d] * alpha, w, column, kind) + f32(0)
            m = new
        if arithmetic == "fma32":
            s = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
        if total is None:
            total = m, s, out
            continue
        new = largest(total[0], [m])
        keep, add = e(total[0] - new), e(m - new)
        total = (new, fma(s, add, total[1] * keep), [fma(o, add, x * keep) for o, x in zip(out, total[2])])
    return [o / total[1] for o in total[2]]


# ---- section 17: linear attention ------------------------------------------------------------------------


def softplus(x):
    e = exp(f32(0) - abs(x))
    v = f32(1) + e
    rest = e if v == 1 else log(v) * (e / (v - f32(1)))
    return x + rest if x > 0 else rest


def sigmoid(x):
    return f32(1) / (f32(1) + exp(f32(0) - x))


def convolve(weights, rows, t, channel, bias=f32(0)):
    """The sum of a channel's taps at row t."""
    y = bias
    for j, w in enumerate(weights):
        at = t - len(weights) + 1 + j
        y = fma(w, rows[at][channel] if at >= 0 else f32(0), y)
    return y


def l2_norm(x, scale=None):
    lanes = [f32(0)] * 256
    for i, v in enumerate(x):
        lanes[i % 256] = fma(v, v, lanes[i % 256])
    r = f32(1) / np.sqrt(fold(lanes) + f32(1e-6))
    return [v * r if scale is None else (v * r) * scale for v in x]


def delta_rule(arithmetic, kind, rows, key_dim, value_dim):
    """rows: (q, k, v, g, beta). o of each row."""
    chain, rounded, zero = CHAIN[arithmetic], ROUND[kind], f32(0)
    state, out, block = [[zero] * value_dim for _ in range(key_dim)], [], []
    for q, k, v, g, beta in rows:
        total = (block[-1][2] if block else zero) + g
        t = len(block)
        end = t // 16 * 16 + 16
        columns = [padded([rounded(row[j]) for row in state]) for j in range(value_dim)]

        def products(x, before):
            weights = [rounded(exp(total - block[i][2]) * chain(zero, padded(x), padded(block[i][0]), kind)) for i in range(before)]
            weights += [zero] * (end - before)
            updates = [row[1] for row in block] + [[zero] * value_dim] * (end - len(block))
            return [chain(exp(total - zero) * chain(zero, padded(x), columns[j], kind), weights, [row[j] for row in updates], kind) + zero
                    for j in range(value_dim)]

        w = products(k, t)
        block.append((k, [rounded(beta * (a - b)) for a, b in zip(v, w)], total))
        out.append(products(q, t + 1))
        if len(block) == 64:
            decays = [exp(total - row[2]) for row in block]
            for c in range(key_dim):
                decayed = [rounded(d * row[0][c]) for d, row in zip(decays, block)]
                state[c] = [chain(exp(total - zero) * state[c][j], decayed, [row[1][j] for row in block], kind) for j in range(value_dim)]
            block = []
    return out


def linear_attention(arithmetic, kind, inputs, z, b, a, conv, a_log, dt_bias, norm, key_dim, value_dim):
    """One head: inputs: rows of the channels q, k, v in the type; z, b, a: per row."""
    rounded, rows = ROUND[kind], []
    scale = f32(1 / np.sqrt(np.float64(key_dim)))
    for t in range(len(inputs)):
        x = [silu(convolve(conv[c], inputs, t, c)) for c in range(len(conv))]
        q = [rounded(v) for v in l2_norm(x[:key_dim], scale)]
        k = [rounded(v) for v in l2_norm(x[key_dim : 2 * key_dim])]
        g = f32(0) - exp(a_log) * softplus(a[t] + dt_bias)
        rows.append((q, k, x[2 * key_dim :], g, sigmoid(b[t])))
    out = delta_rule(arithmetic, kind, rows, key_dim, value_dim)
    return [[rounded(silu(gate) * n) for gate, n in zip(z[t], rmsnorm(o, norm, f32(1e-6)))] for t, o in enumerate(out)]


def selective_scan(arithmetic, kind, inputs, z, dt, conv, bias, a_log, dt_bias, skip, low, norm, state_dim, head_dim):
    """One head with a group of its own, the gate before the norm: inputs: rows of the channels C, B, x in the type; z, dt: per row."""
    chain, rounded, zero, out, block = CHAIN[arithmetic], ROUND[kind], f32(0), [], []
    state = [[zero] * head_dim for _ in range(state_dim)]
    for t in range(len(inputs)):
        channels = [silu(convolve(conv[c], inputs, t, c, bias[c])) for c in range(len(conv))]
        c, b = ([rounded(v) for v in channels[i * state_dim : (i + 1) * state_dim]] for i in range(2))
        x, d = channels[2 * state_dim :], softplus(dt[t] + dt_bias)
        d = low if d < low else d
        total = (block[-1][2] if block else zero) + d * (zero - exp(a_log))
        block.append((b, [rounded(d * v) for v in x], total))
        end = (len(block) - 1) // 16 * 16 + 16
        weights = [rounded(exp(total - row[2]) * chain(zero, padded(c), padded(row[0]), kind)) for row in block] + [zero] * (end - len(block))
        y = []
        for j in range(head_dim):
            updates = [row[1][j] for row in block] + [zero] * (end - len(block))
            column = padded([rounded(row[j]) for row in state])
            y.append(fma(skip, x[j], chain(exp(total - zero) * chain(zero, padded(c), column, kind), weights, updates, kind)))
        out.append([rounded(v) for v in rmsnorm([silu(gate) * v for gate, v in zip(z[t], y)], norm, f32(1e-6))])
        if len(block) == 64:
            for i in range(state_dim):
                decayed = [rounded(exp(total - row[2]) * row[0][i]) for row in block]
                state[i] = [chain(exp(total - zero) * state[i][j], decayed, [row[1][j] for row in block], kind) for j in range(head_dim)]
            block = []
    return out


def short_convolution(kind, projections, conv):
    """projections: rows of b, c, x."""
    rounded, n, s, out = ROUND[kind], len(conv), [], []
    for t, row in enumerate(projections):
        s.append([rounded(row[c] * row[2 * n + c]) for c in range(n)])
        out.append([rounded(row[n + c] * convolve(conv[c], s, t, c)) for c in range(n)])
    return out


# ---- section 20: int8 products ---------------------------------------------------------------------------


def magnitude(x):
    """The largest |x|: NaN if there is one."""
    return f(max(u(v) & 0x7FFFFFFF for v in x))


def int8_codes(x, a, terms):
    """Of a row of magnitude a: its codes as [terms] lists of integers, and its scale."""
    if not np.isfinite(a):
        return [[0] * len(x)] * terms, f(NAN)
    if a < h("0x1p-100"):
        return [[0] * len(x)] * terms, f32(0)
    inverse = f32(127) / a
    p = [v * inverse for v in x]
    high = [round(Fraction(float(v))) for v in p]  # ties to even
    low = [round(Fraction(float((v - f32(c)) * f32(254)))) for v, c in zip(p, high)]
    return [high, low][:terms], a / f32(127 if terms == 1 else 32258)


def int8_linear(x, terms, codes, scale):
    """An output whose weights are int8 codes and a scale."""
    rows, s = int8_codes(x, magnitude(x), terms)
    sums = [f32(sum(a * b for a, b in zip(row, codes))) for row in rows]
    t = sums[0] if terms == 1 else fma(sums[0], f32(254), sums[1])
    return (t * s) * scale


# ---- the cases: inputs from a formula that C shares ------------------------------------------------------


def inputs(seed, n, kind="float32", spread=0):
    """Multiples of 2^-14 in [-2, 2), times a power of two from 2^-spread to 2^spread; rounded to kind."""
    out = []
    for i in range(n):
        r = (seed * 7919 + i + 1) * 2654435761 % 2**32
        r = (r ^ r >> 15) * 2246822519 % 2**32
        out.append(ROUND[kind](f32(((r >> 16) - 32768) / 16384.0 * 2.0 ** (r % (2 * spread + 1) - spread))))
    return out


def bits(values):
    return "".join("%08x" % u(v) for v in values)


def main():
    cases = []
    special = [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000, 0x3F3504F3, 0x3F3504F2]
    args = [f(b) for b in special] + inputs(1, 150, spread=7) + inputs(2, 50, spread=60)
    for name, function in (("exp2", exp2), ("exp", exp), ("log", log), ("silu", silu), ("ex2", ex2)):
        cases.append({"op": name, "x": bits(args), "y": bits([function(x) for x in args])})
    runs = [("fma32", "bfloat16"), ("fma32", "float16"), ("fma32", "float32"), ("tc16", "bfloat16"), ("tc16", "float16")]
    for arithmetic, kind in runs:
        for k, most in ((16, 4), (40, 8), (200, 4), (384, 4), (384, 8)):
            for spread in (0, 12 if kind == "float16" else 50):
                x, w = inputs(k, k, kind, spread), inputs(k + 1, k, kind, spread)
                cases.append({"op": "linear", "arithmetic": arithmetic, "type": kind, "k": k, "leaves": most,
                              "spread": spread, "y": bits([linear(arithmetic, kind, x, w, most)])})
        for dim, t, window in ((20, 5, 0), (8, 70, 0), (4, 300, 0), (4, 330, 100), (4, 520, 270)):
            q, k, v = inputs(3, dim, kind), inputs(4, (t + 1) * dim, kind), inputs(5, (t + 1) * dim, kind)
            rows = lambda x: [x[j * dim : (j + 1) * dim] for j in range(t + 1)] + [[f32(0)] * dim] * 64
            cases.append({"op": "attention", "arithmetic": arithmetic, "type": kind, "head_dim": dim, "position": t, "window": window,
                          "y": bits(attention(arithmetic, kind, q, rows(k), rows(v), t, window))})
    for kind in ("bfloat16", "float16", "float32"):
        for terms, k, spread, odd in ((1, 5, 0, 0), (1, 200, 3, 0), (2, 200, 0, 0), (2, 4096, 6, 0), (1, 16, 0, 0x7F800000),
                                      (2, 16, 0, 0x7FC00000), (2, 1, 0, 0), (1, 1, 0, 0x0D000000)):
            x = inputs(k, k, kind, spread)
            if odd:  # a number that is not finite in the row, or one that is too small in a row of zeros
                x = x[:3] + [f(odd)] + x[4:] if odd >= 0x7F800000 else [ROUND[kind](f(odd))]
            y = []
            for row in range(3):
                w = inputs(k + 1 + row, k, kind, spread)
                codes, scale = int8_codes(w, magnitude(w), 1)
                y.append(int8_linear(x, terms, codes[0], scale))
            y.append(int8_linear(x, terms, [(7 * i) % 256 - 128 for i in range(k)], f32(-0.75)))  # a file's codes
            cases.append({"op": "int8", "arithmetic": "i8", "type": kind, "terms": terms, "k": k, "spread": spread, "odd": odd, "y": bits(y)})
    key, value, taps, count = 5, 3, 4, 68
    channels = 2 * key + value
    cut = lambda x, n: [x[i : i + n] for i in range(0, len(x), n)]
    for arithmetic, kind in runs:
        y = linear_attention(arithmetic, kind, cut(inputs(10, count * channels, kind), channels), cut(inputs(11, count * value), value),
                             inputs(12, count), inputs(13, count), cut(inputs(14, channels * taps), taps), f32(-0.5), f32(-3.0),
                             inputs(15, value), key, value)
        cases.append({"op": "linear_attention", "arithmetic": arithmetic, "type": kind, "y": bits([v for row in y for v in row])})
    for arithmetic, kind in runs:
        y = selective_scan(arithmetic, kind, cut(inputs(18, count * channels, kind), channels), cut(inputs(11, count * value), value),
                           inputs(12, count), cut(inputs(14, channels * taps), taps), inputs(19, channels), f32(-0.5), f32(-2.0), f32(0.75),
                           f32(0.03125), inputs(15, value), key, value)
        cases.append({"op": "selective_scan", "arithmetic": arithmetic, "type": kind, "y": bits([v for row in y for v in row])})
    for kind in ("bfloat16", "float16", "float32"):
        y = short_convolution(kind, cut(inputs(16, 8 * 3 * 5, kind), 15), cut(inputs(17, 15), 3))
        cases.append({"op": "short_convolution", "arithmetic": "fma32", "type": kind, "y": bits([v for row in y for v in row])})
    x, w, c, s = inputs(6, 600, spread=3), inputs(7, 600), inputs(8, 20), inputs(9, 20)
    cases.append({"op": "rmsnorm", "y": bits(rmsnorm(x, w, f32(1e-5)))})
    cases.append({"op": "log_softmax", "y": bits(log_softmax(x))})
    cases.append({"op": "swiglu", "y": bits(swiglu(x, w))})
    cases.append({"op": "rope", "y": bits(rope(x[:40], c, s))})
    for normalise in (0, 1):
        ids, weights = route(x[:100], 8, normalise)
        terms = {e: weight * w[e] for e, weight in zip(ids, weights)}
        cases.append({"op": "experts", "normalise": normalise, "ids": ids, "y": bits(weights + [combine(terms)])})
    json.dump({"made_by": "python/law.py", "cases": cases}, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
