"""The functions of law.py over whole arrays, for python/law_train.py: the same bits, thousands of elements at a time.

A fused operation is computed in float64 with the sum rounded to odd, which makes the second rounding to float32 exact. Each
function is compared with law.py's, in exact rationals, by check(). Values here are finite; NaN has no canonical form.
"""
import numpy as np

import law

f32, f64, i64 = np.float32, np.float64, np.int64
TINY = f32(2.0**-126)

# ---- sections 1 and 2 ------------------------------------------------------------------------------------


def exact_sum(p, c):
    """p + c in float64, rounded to odd. Both are far from overflow, or infinite."""
    s = p + c
    other = s - p
    rest = (p - (s - other)) + (c - other)
    bits = s.view(i64)
    step = np.where((rest > 0) == (s > 0), i64(1), i64(-1))
    return (bits + np.where((np.abs(rest) > 0) & (bits & 1 == 0), step, i64(0))).view(f64)


def fma(a, b, c):
    a, b, c = np.broadcast_arrays(f32(a), f32(b), f32(c))
    return np.asarray(exact_sum(a.astype(f64) * b.astype(f64), c.astype(f64))).astype(f32)


def flush(v):
    """An exact sum, rounded to odd in float64, to float32."""
    return np.where(np.abs(v) < 2.0**-126 - 2.0**-151, np.copysign(f64(0), v), v).astype(f32)


def daz(x):
    return np.where(np.abs(x) < TINY, np.copysign(f32(0), x), x)


def fma_ftz(a, b, c):
    return flush(exact_sum(daz(a).astype(f64) * daz(b).astype(f64), daz(c).astype(f64)))


def add_ftz(a, b):
    return fma_ftz(np.ones_like(a), a, b)


def add_plain(a, b):
    return a + b


def round_bfloat16(x):
    u = np.ascontiguousarray(x, f32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(f32)


ROUND = {"float32": lambda x: f32(x), "bfloat16": round_bfloat16, "float16": lambda x: f32(x).astype(np.float16).astype(f32)}

# ---- section 3: chains over the last axis ----------------------------------------------------------------


def chain_fma32(acc, a, b, _):
    """acc[...] continues over the last axis of a and b, which broadcast to acc's shape."""
    a, b = daz(a).astype(f64), daz(b).astype(f64)
    for k in range(0, a.shape[-1], 2):
        for i in (k + 1, k):
            acc = flush(exact_sum(a[..., i] * b[..., i], daz(acc).astype(f64)))
    return acc


def apart(x, fraction, least):
    """Signed mantissa and exponent of the leading bit; a subnormal has the least exponent."""
    m, e = np.frexp(x.astype(f64))
    e = np.maximum(e - 1, least)
    return np.ldexp(m, np.frexp(x.astype(f64))[1] - e + fraction).astype(i64), e.astype(i64)


def shifted(m, by):
    """m * 2^by, truncated toward zero."""
    a = np.abs(m)
    left, right = np.clip(by, 0, 40), np.clip(-by, 0, 62)
    return np.sign(m) * ((a << left) >> right)


def chain_tc16(acc, a, b, kind):
    fraction, least = {"bfloat16": (7, -126), "float16": (10, -14)}[kind]
    (ma, ea), (mb, eb) = apart(a, fraction, least), apart(b, fraction, least)
    for k in range(0, a.shape[-1], 16):
        m = ma[..., k : k + 16] * mb[..., k : k + 16]
        e = np.where(m != 0, ea[..., k : k + 16] + eb[..., k : k + 16], i64(-9999))
        mc, ec = apart(acc, 23, -126)
        top = np.maximum(np.maximum(np.where(mc != 0, ec, i64(-9999)), e.max(-1)), -133)
        total = shifted(m, e - top[..., None] + 25 - 2 * fraction).sum(-1) + shifted(mc, ec - top + 25 - 23)
        size = np.frexp(np.abs(total).astype(f64))[1] - 1 + top - 25
        drop = np.clip(np.maximum(size - 23, -149) - (top - 25), 0, 62)
        kept = np.sign(total) * (np.abs(total) >> drop << drop)
        acc = np.ldexp(kept.astype(f64), top - 25).astype(f32) + f32(0)
    return acc


CHAIN = {"fma32": chain_fma32, "tc16": chain_tc16}
ADD = {"fma32": add_ftz, "tc16": add_plain}


def pad16(x, axis=-1):
    width = [(0, 0)] * x.ndim
    width[axis] = (0, -x.shape[axis] % 16)
    return np.pad(x, width)


def tree(nodes, add):
    while len(nodes) > 1:
        nodes = [add(nodes[i], nodes[i + 1]) for i in range(0, len(nodes), 2)]
    return nodes[0]


def leaves_of(padded, leaves=4):
    """leaves: at most so many; 8 in sums that tensor-parallel ranks divide."""
    while padded % (16 * leaves):
        leaves //= 2
    return leaves


def chain_matrix(arithmetic, kind, acc, x, w):
    """acc[rows][outputs] continues over x[rows][k] and w[outputs][k], some rows at a time."""
    out, rows = np.empty_like(acc), max(1, 1 << 19 >> int(w.shape[0] * 16).bit_length())
    for i in range(0, len(x), rows):
        out[i : i + rows] = CHAIN[arithmetic](acc[i : i + rows], x[i : i + rows, None, :], w[None], kind)
    return out


def linear(arithmetic, kind, x, w, leaves=4):
    """x[rows][k], w[outputs][k] -> [rows][outputs]; leaves: at most so many, 1 in experts, 8 in o and down."""
    x, w = pad16(x), pad16(w)
    leaves = leaves_of(x.shape[1], leaves)
    n = x.shape[1] // leaves
    zero = np.zeros((len(x), len(w)), f32)
    part = [chain_matrix(arithmetic, kind, zero, x[:, i * n : (i + 1) * n], w[:, i * n : (i + 1) * n]) for i in range(leaves)]
    return tree(part, ADD[arithmetic])


# ---- sections 4 and 5 ------------------------------------------------------------------------------------


def poly(x, coefficients):
    c = [law.h(t) for t in coefficients.split()]
    p = np.full_like(x, c[0])
    for k in c[1:]:
        p = fma(p, x, k)
    return p


def scale(p, t):
    n = (t.view(np.uint32) - np.uint32(0x4B400000)) << np.uint32(23)
    return (p.view(np.uint32) + n).view(f32)


def within(x, y, low, high):
    """y where low <= x <= high or x < high as the law has it; the given results elsewhere."""
    return np.where(high(x), f32(np.inf), np.where(low(x), f32(0), y)).astype(f32)


def exp2(x):
    x = np.asarray(x, f32)
    t = x + law.M
    return within(x, scale(poly(x - (t - law.M), law.EXP2), t), lambda v: v < -126, lambda v: ~(v < 128))


C0, C1, C2 = (np.array([row[i] for row in law.EX2], i64) for i in range(3))


def ex2(x):
    x = np.asarray(x, f32)
    inside = np.where((x < 128) & (x >= -126), x, f32(0)).astype(f64)
    whole = np.trunc(np.abs(inside) * 2.0**23).astype(i64)
    k, fraction = whole >> 23, whole & 0x7FFFFF
    below = (x < 0) & (fraction != 0)
    n = np.where(x < 0, -k, k) - below
    fraction = np.where(below, 0x7FFFFF - fraction, fraction)
    i, r = fraction >> 17, fraction & 0x1FFFF
    q = sum(np.where(r >> b & 1, r >> (18 - b), 0) for b in range(17)) >> 1
    v = (C0[i] * 2**13 + C1[i] * r + C2[i] * q + 0x77E2) >> 15
    y = (((n + 127) << 23) + v - 2**23).astype(np.uint32).view(f32)
    return within(x, y, lambda z: z < -126, lambda z: ~(z < 128))


def exp(x):
    x = np.asarray(x, f32)
    t = fma(x, law.h("0x1.715476p+0"), law.M)
    n = t - law.M
    r = fma(n, law.h("-0x1.7f7d1cp-20"), fma(n, law.h("-0x1.62e4p-1"), x))
    y = scale(poly(r, law.EXP), t)
    return within(x, y, lambda v: v < law.h("-0x1.5d589ep+6"), lambda v: v > law.h("0x1.62e42ep+6"))


def log(x):
    return np.array([law.log(v) for v in np.ravel(x)], f32).reshape(np.shape(x))


def silu(x):
    return x / (f32(1) + exp(f32(0) - x))


def fold(lanes):
    stride = 128
    while stride:
        lanes = lanes[..., :stride] + lanes[..., stride : 2 * stride]
        stride //= 2
    return lanes[..., 0]


def lane_fma(a, b):
    """The fold of lanes l = fma(a, b, l) over the last axis."""
    lanes = np.zeros(a.shape[:-1] + (256,), f32)
    for i in range(0, a.shape[-1], 256):
        n = min(256, a.shape[-1] - i)
        lanes[..., :n] = fma(a[..., i : i + n], b[..., i : i + n], lanes[..., :n])
    return fold(lanes)


def rms_factor(x, eps):
    return f32(1) / np.sqrt(lane_fma(x, x) / f32(x.shape[-1]) + f32(eps))


def rmsnorm(x, w, eps):
    return (x * rms_factor(x, eps)[..., None]) * w


def rope(x, cosine, sine):
    """x[..., d]; cosine and sine broadcast to [..., d/2]."""
    n = x.shape[-1] // 2
    a, b = x[..., :n], x[..., n:]
    return np.concatenate([fma(a, cosine, -(b * sine)), fma(b, cosine, a * sine)], -1)


def sum_exp(x):
    m = x.max(-1) + f32(0)
    e = exp(x - m[..., None])
    lanes = np.zeros(x.shape[:-1] + (256,), f32)
    for i in range(0, x.shape[-1], 256):
        n = min(256, x.shape[-1] - i)
        lanes[..., :n] = lanes[..., :n] + e[..., i : i + n]
    return m, fold(lanes)


# ---- every function against law.py -----------------------------------------------------------------------


def check():
    def same(name, got, want):
        got, want = np.ravel(np.asarray(got, f32)), np.array(want, f32)
        if not (got.view(np.uint32) == want.view(np.uint32)).all():
            raise SystemExit("law_vector.%s differs from law.%s" % (name, name))

    x, y, z = (np.array(law.inputs(s, 400, spread=w), f32) for s, w in ((1, 7), (2, 60), (3, 66)))
    z[::3] = -(x * y)[::3]
    wide = np.array([law.f(i * 2654435761) for i in range(400)], f32)
    wide = wide[np.isfinite(wide) & (np.abs(wide) < 2.0**100)]
    for a, b, c in ((x, y, z), (x, x, y), (z, z, x), (wide, np.roll(wide, 1), np.roll(wide, 2)),
                    (f32(2.0**-63) * x, f32(2.0**-64) * x, f32(2.0**-128) * y)):
        same("fma", fma(a, b, c), [law.fma(*t) for t in zip(a, b, c)])
        same("fma_ftz", fma_ftz(a, b, c), [law.fma_ftz(*t) for t in zip(a, b, c)])
        same("add_ftz", add_ftz(a, c), [law.add_ftz(*t) for t in zip(a, c)])
    for name in ("exp2", "ex2", "exp", "silu"):
        v = np.concatenate([x, y, np.array([0, -0.0, 1, 127.9, 128, -126, -126.1, 88.8, -87.4, -200, 300], f32)])
        same(name, globals()[name](v), [getattr(law, name)(t) for t in v])
    for kind in ("bfloat16", "float16"):
        v = wide if kind == "bfloat16" else x
        same("ROUND", ROUND[kind](v), [law.ROUND[kind](t) for t in v])
    for arithmetic, kind in (("fma32", "float32"), ("fma32", "bfloat16"), ("tc16", "bfloat16"), ("tc16", "float16")):
        for k in (16, 40, 256):
            for spread in (0, 8 if kind == "float16" else 40):
                a = np.array(law.inputs(k, 3 * k, kind, spread), f32).reshape(3, k)
                b = np.array(law.inputs(k + 1, 2 * k, kind, spread), f32).reshape(2, k)
                for leaves in (4, 8):
                    same("linear", linear(arithmetic, kind, a, b, leaves),
                         [law.linear(arithmetic, kind, p, q, leaves) for p in a for q in b])
    v = np.array(law.inputs(6, 1200, spread=3), f32).reshape(2, 600)
    w = np.array(law.inputs(7, 600), f32)
    same("rmsnorm", rmsnorm(v, w, 1e-5), [t for row in v for t in law.rmsnorm(row, w, f32(1e-5))])
    m, s = sum_exp(v)
    same("sum_exp", np.stack([m, s], 1), [t for row in v for t in law.sum_exp(row)])
    same("rope", rope(v[:, :40], w[:20], w[20:40]), [t for row in v for t in law.rope(row[:40], w[:20], w[20:40])])


if __name__ == "__main__":
    check()
