/* rows.inc.h: the row ops in the vector vocabulary. Before including it: a vec_*.h and ROWS_NAME. */
#include "kernels/cpu/ex2.inc.h"
#include "kernels/kernels.h"
#include "numerics/attention.h"
#include "numerics/activate.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

#include <string.h>

/* The first n of V_LANES floats at p; the rest zero. */
static inline vf load_some(const float *p, size_t n) {
    if (n >= V_LANES) return v_load(p);
    float t[V_LANES] = {0};
    memcpy(t, p, n * sizeof *t);
    return v_load(t);
}

static inline vf canonical(vf x) { return v_select(v_is_nan(x), v_float(vi_set(IV_NAN_F32_BITS)), x); }

/* Rounds x to type and stores its first n lanes as elements i and on of out. */
static inline void store_some(iv_dtype type, void *out, size_t i, vf x, size_t n) {
    if (n >= V_LANES) {
        if (type == IV_BF16)
            v_store_bf16((uint16_t *)out + i, x);
        else if (type == IV_F16)
            v_store_f16((uint16_t *)out + i, x);
        else
            v_store((float *)out + i, canonical(x));
        return;
    }
    float t[V_LANES];
    if (type == IV_BF16)
        v_store_bf16((uint16_t *)(void *)t, x);
    else if (type == IV_F16)
        v_store_f16((uint16_t *)(void *)t, x);
    else
        v_store(t, canonical(x));
    memcpy((char *)out + i * iv_dtype_bytes(type), t, n * iv_dtype_bytes(type));
}

#define EACH(i, n) for (size_t i = 0, left = (n); i < (n); i += V_LANES, left -= left < V_LANES ? left : V_LANES)

enum { LANE_VECTORS = IV_ROW_LANES / V_LANES };

/* EACH with the law's lane of each vector: unrolled, so that sums by lanes stay in registers. */
#define EACH_LANE(i, lane, n)                                                                          \
    for (size_t group_ = 0; group_ < (n); group_ += IV_ROW_LANES)                                      \
    _Pragma("GCC unroll 16") for (size_t lane = 0, i = group_, left = (n)-group_; lane < LANE_VECTORS; \
                                  lane++, i += V_LANES, left -= V_LANES) if (i < (n))

static float fold(vf lanes[LANE_VECTORS]) {
    for (int stride = LANE_VECTORS / 2; stride > 0; stride /= 2)
        for (int i = 0; i < stride; i++) lanes[i] = v_add(lanes[i], lanes[i + stride]);
    float t[V_LANES];
    v_store(t, lanes[0]);
    for (int stride = V_LANES / 2; stride > 0; stride /= 2)
        for (int i = 0; i < stride; i++) t[i] = t[i] + t[i + stride];
    return t[0];
}

static float squares(const float *x, size_t n) {
    vf lanes[LANE_VECTORS];
    for (int i = 0; i < LANE_VECTORS; i++) lanes[i] = v_set(0.0f);
    EACH_LANE(i, lane, n) {
        vf v = load_some(x + i, left);
        lanes[lane] = v_fma(v, v, lanes[lane]);
    }
    return fold(lanes);
}

static inline void weigh(const float *x, const float *weight, vf r, size_t n, iv_dtype type, void *out) {
    EACH(i, n) store_some(type, out, i, v_mul(v_mul(load_some(x + i, left), r), load_some(weight + i, left)), left);
}

static void norm_by(const float *x, const float *weight, float r, size_t n, iv_dtype type, void *out) {
    weigh(x, weight, v_set(r), n, type, out);
}

static void rmsnorm(const float *x, const float *weight, float eps, size_t n, iv_dtype type, void *out) {
    vf mean = v_div(v_set(squares(x, n)), v_set((float)n));
    weigh(x, weight, v_div(v_set(1.0f), v_sqrt(v_add(mean, v_set(eps)))), n, type, out);
}

static void center(const float *x, size_t n, float *out) {
    vf lanes[LANE_VECTORS];
    for (int i = 0; i < LANE_VECTORS; i++) lanes[i] = v_set(0.0f);
    EACH_LANE(i, lane, n)
    lanes[lane] = v_add(lanes[lane], load_some(x + i, left)); /* no lane is -0 */
    vf mean = v_div(v_set(fold(lanes)), v_set((float)n));
    EACH(i, n) store_some(IV_F32, out, i, v_sub(load_some(x + i, left), mean), left);
}

static void rope(float *x, const float *cosine, const float *sine, size_t pairs) {
    EACH(i, pairs) {
        vf a = load_some(x + i, left), b = load_some(x + i + pairs, left);
        vf c = load_some(cosine + i, left), s = load_some(sine + i, left);
        vf minus_bs = v_float(vi_xor(v_bits(v_mul(b, s)), vi_set(0x80000000u)));
        store_some(IV_F32, x, i, v_fma(a, c, minus_bs), left);
        store_some(IV_F32, x, i + pairs, v_fma(b, c, v_mul(a, s)), left);
    }
}

static inline void activate_as(iv_activation_kind kind, iv_activation_floats f, const float *gate, const float *up,
                               size_t n, iv_dtype type, void *out) {
    bool gated = IV_ACTIVATION_HAS_GATE(kind);
    EACH(i, n) {
        vf g = gated ? load_some(gate + i, left) : v_set(0.0f);
        store_some(type, out, i, v_activate(kind, f, g, load_some(up + i, left)), left);
    }
}

static void activate(const iv_activation *a, const float *gate, const float *up, size_t n, iv_dtype type, void *out) {
#define AS(kind) \
    case kind: activate_as(kind, IV_ACTIVATION_FLOATS(a), gate, up, n, type, out); break
    switch (a->kind) { /* each kind has a loop of its own */
        AS(IV_ACTIVATION_SILU);
        AS(IV_ACTIVATION_GELU_TANH);
        AS(IV_ACTIVATION_SILU_CLAMPED);
        AS(IV_ACTIVATION_RELU2);
        AS(IV_ACTIVATION_XIELU);
    }
#undef AS
}

static void round_row(const float *x, size_t n, iv_dtype type, void *out) {
    EACH(i, n) store_some(type, out, i, load_some(x + i, left), left);
}

static void sum_exp(const float *x, size_t n, float *max, float *sum) {
    float best[V_LANES], m = -__builtin_inff();
    vf top = v_set(m), lanes[LANE_VECTORS];
    size_t whole = n / V_LANES * V_LANES;
    for (size_t i = 0; i < whole; i += V_LANES) top = v_max(v_load(x + i), top); /* skips NaN */
    v_store(best, top);
    for (int i = 0; i < V_LANES; i++) m = best[i] > m ? best[i] : m;
    for (size_t i = whole; i < n; i++) m = x[i] > m ? x[i] : m;
    m = m + 0.0f; /* the law: a zero maximum is +0 */
    for (int i = 0; i < LANE_VECTORS; i++) lanes[i] = v_set(0.0f);
    for (size_t i = 0; i < whole; i += V_LANES) {
        size_t lane = i / V_LANES % LANE_VECTORS;
        lanes[lane] = v_add(lanes[lane], v_exp(v_sub(v_load(x + i), v_set(m))));
    }
    if (whole < n) {
        float t[V_LANES];
        for (size_t i = 0; i < V_LANES; i++) t[i] = whole + i < n ? x[whole + i] : -__builtin_inff();
        size_t lane = whole / V_LANES % LANE_VECTORS;
        vf term = v_exp(v_sub(v_load(t), v_set(m)));
        lanes[lane] = v_add(lanes[lane], term); /* the lanes past n add e^-inf = +0 */
    }
    *max = m;
    *sum = fold(lanes);
}

static inline vf attention_exp2(iv_arithmetic arithmetic, vf x) { return arithmetic == IV_TC16 ? v_ex2(x) : v_exp2(x); }

static void softmax_block(iv_arithmetic arithmetic, const float *score, int first, int last, float scale_log2e,
                          float *max, float *alpha, iv_dtype type, void *weights) {
    float s[IV_ATTENTION_BLOCK], a[V_LANES], m = -__builtin_inff();
    vf top = v_set(m);
    memcpy(s, score, sizeof s);
    for (int i = 0; i < first; i++) s[i] = -__builtin_inff();
    for (int i = last + 1; i < IV_ATTENTION_BLOCK; i++) s[i] = -__builtin_inff();
    for (int i = 0; i < IV_ATTENTION_BLOCK; i += V_LANES) top = v_max(v_load(s + i), top);
    v_store(a, top);
    for (int i = 0; i < V_LANES; i++) m = a[i] > m ? a[i] : m;
    m = iv_attention_next_max(*max, m * scale_log2e);
    v_store(a, attention_exp2(arithmetic, v_set(*max - m)));
    *alpha = a[0];
    for (int i = 0; i < IV_ATTENTION_BLOCK; i += V_LANES) {
        vf p = attention_exp2(arithmetic, v_fma(v_load(s + i), v_set(scale_log2e), v_set(-m)));
        store_some(type, weights, (size_t)i, p, V_LANES);
    }
    *max = m;
}

static inline void load_weights(iv_dtype type, const void *weights, float *w) {
    for (size_t i = 0; i < IV_ATTENTION_BLOCK; i += V_LANES)
        v_store(w + i, type == IV_BF16  ? v_load_bf16((const uint16_t *)weights + i)
                       : type == IV_F16 ? v_load_f16((const uint16_t *)weights + i)
                                        : v_load((const float *)weights + i));
}

/* One step of tc16 whose other operand is one: no term is negative, so the largest bits have the largest exponent, and
 * 17 terms below 2^26 fit an int. Exact while that exponent is an ordinary one, as a row's is; else the law's step. */
static inline float sum_step(iv_dtype type, float sum, const uint16_t *weights, const float *w) {
    uint32_t top = 0;
    for (size_t i = 0; i < IV_CHAIN_STEP; i++) top = iv_bits(w[i]) > top ? iv_bits(w[i]) : top;
    if (iv_bits(sum) > top) top = iv_bits(sum);
    top &= 0xff800000u;
    if (top < 113u << 23 || top > 227u << 23) /* 2^-14, below which float16 has no exponents, and 2^100 */
        return iv_ref_sum_weights(type, sum, weights, IV_CHAIN_STEP);
    float up = iv_float((279u << 23) - top), down = iv_float(top - (25u << 23));
    int32_t total = (int32_t)(sum * up);
    for (size_t i = 0; i < IV_CHAIN_STEP; i++) total += (int32_t)(w[i] * up);
    int drop = 8 - __builtin_clz((uint32_t)total); /* a float keeps 24 bits */
    return (float)(total >> drop << drop) * down;
}

static void sum_weights(iv_arithmetic arithmetic, iv_dtype type, const void *weights, float alpha, float *lanes) {
    float w[IV_ATTENTION_BLOCK];
    load_weights(type, weights, w);
    for (int c = 0; c < IV_ATTENTION_LANES; c++) lanes[c] = lanes[c] * alpha;
    if (arithmetic == IV_TC16)
        for (size_t i = 0; i < IV_ATTENTION_BLOCK; i += IV_CHAIN_STEP)
            lanes[0] = sum_step(type, lanes[0], (const uint16_t *)weights + i, w + i);
    else
        for (int i = 0; i < IV_ATTENTION_BLOCK; i += IV_ATTENTION_LANES)
            for (int c = 0; c < IV_ATTENTION_LANES; c++) lanes[c] = lanes[c] + w[i + c];
}

static void scale(float *x, size_t n, float s) {
    EACH(i, n) {
        vf y = v_mul(load_some(x + i, left), v_set(s));
        if (left >= V_LANES)
            v_store(x + i, y);
        else {
            float t[V_LANES];
            v_store(t, y);
            memcpy(x + i, t, left * sizeof *t);
        }
    }
}

static void cap(float *x, float inner, float outer, size_t n) {
    EACH(i, n) {
        vf t = v_tanh(v_mul(load_some(x + i, left), v_set(inner)));
        store_some(IV_F32, x, i, v_mul(t, v_set(outer)), left);
    }
}

static void add_scaled(float *x, const float *y, float s, size_t n) {
    EACH(i, n) store_some(IV_F32, x, i, v_fma(v_set(s), load_some(y + i, left), load_some(x + i, left)), left);
}

static void add_product(float *x, const float *y, const float *z, size_t n) {
    EACH(i, n)
    store_some(IV_F32, x, i, v_fma(load_some(y + i, left), load_some(z + i, left), load_some(x + i, left)), left);
}

static void decays(float total, const float *before, size_t n, float *out) {
    EACH(i, n) store_some(IV_F32, out, i, v_exp(v_sub(v_set(total), load_some(before + i, left))), left);
}

static void merge(float *total, const float *split, float keep, float add, size_t n) {
    EACH(i, n) {
        vf y = v_fma(load_some(split + i, left), v_set(add), v_mul(load_some(total + i, left), v_set(keep)));
        store_some(IV_F32, total, i, y, left);
    }
}

static void divide(const float *x, float d, size_t n, iv_dtype type, void *out) {
    EACH(i, n) store_some(type, out, i, v_div(load_some(x + i, left), v_set(d)), left);
}

static void add(float *x, const float *y, size_t n) {
    EACH(i, n) store_some(IV_F32, x, i, v_add(load_some(x + i, left), load_some(y + i, left)), left);
}

/* V_LANES blocks of Philox side by side; the compiler makes vectors of the loops over lanes. */
static void random_lanes(uint64_t seed, uint64_t position, uint32_t first_block, uint32_t out[4][V_LANES]) {
    uint32_t x0[V_LANES], x1[V_LANES], x2[V_LANES], x3[V_LANES], k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (uint32_t l = 0; l < V_LANES; l++) {
        x0[l] = first_block + l, x1[l] = (uint32_t)position;
        x2[l] = (uint32_t)(position >> 32), x3[l] = 0;
    }
    for (int round = 0; round < 10; round++) {
        for (int l = 0; l < V_LANES; l++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * x0[l], p1 = (uint64_t)0xCD9E8D57u * x2[l];
            x0[l] = (uint32_t)(p1 >> 32) ^ x1[l] ^ k0, x2[l] = (uint32_t)(p0 >> 32) ^ x3[l] ^ k1;
            x1[l] = (uint32_t)p1, x3[l] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    memcpy(out[0], x0, sizeof x0), memcpy(out[1], x1, sizeof x1);
    memcpy(out[2], x2, sizeof x2), memcpy(out[3], x3, sizeof x3);
}

static void random_words(uint64_t seed, uint64_t position, uint32_t first_block, size_t blocks, uint32_t *random) {
    uint32_t words[4][V_LANES];
    for (size_t b = 0; b < blocks; b += V_LANES) {
        size_t n = blocks - b < V_LANES ? blocks - b : V_LANES;
        random_lanes(seed, position, first_block + (uint32_t)b, words);
        for (size_t l = 0; l < n; l++)
            for (size_t i = 0; i < 4; i++) random[4 * (b + l) + i] = words[i][l];
    }
}

/* Skips whole chunks without a larger value. */
static size_t find_above(const float *x, size_t from, size_t n, float than) {
    enum { CHUNK = 4 * V_LANES };
    for (; from + CHUNK <= n; from += CHUNK) {
        uint32_t any = 0;
        for (size_t i = 0; i < CHUNK; i++) any |= x[from + i] > than;
        if (any) break;
    }
    while (from < n && !(x[from] > than)) from++;
    return from;
}

static size_t largest(const float *x, size_t n) {
    size_t best = 0;
    for (size_t at = 1; (at = find_above(x, at, n, x[best])) < n; at++) best = at;
    return best;
}

void ROWS_NAME(iv_kernels *k) {
    k->squares = squares, k->norm_by = norm_by, k->center = center, k->rmsnorm = rmsnorm, k->rope = rope,
    k->activate = activate, k->round = round_row, k->sum_exp = sum_exp;
    k->softmax_block = softmax_block, k->sum_weights = sum_weights;
    k->scale = scale, k->merge = merge, k->divide = divide, k->add = add;
    k->cap = cap, k->add_scaled = add_scaled, k->add_product = add_product, k->decays = decays;
    k->random = random_words, k->largest = largest, k->find_above = find_above;
}
