/* rows.c: row ops in plain loops, in the order of the law. */
#include "numerics/rows.h"
#include "numerics/vec_scalar.h"
#include "numerics/activate.h"
#include "numerics/elementary64.h"

float iv_ref_fold_lanes(float lanes[IV_ROW_LANES]) {
    for (size_t stride = IV_ROW_LANES / 2; stride > 0; stride /= 2)
        for (size_t i = 0; i < stride; i++) lanes[i] = lanes[i] + lanes[i + stride];
    return lanes[0];
}

float iv_ref_squares(const float *x, size_t n) {
    float lanes[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < n; i++) lanes[i % IV_ROW_LANES] = iv_fma(x[i], x[i], lanes[i % IV_ROW_LANES]);
    return iv_ref_fold_lanes(lanes);
}

float iv_ref_rms_factor(const float *x, float eps, size_t n) {
    float mean = iv_ref_squares(x, n) / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

float iv_ref_heads_factor(const float *squares, size_t heads, size_t head_dim, float eps) {
    float sum = 0.0f;
    for (size_t h = 0; h < heads; h++) sum = sum + squares[h];
    return 1.0f / sqrtf(sum / (float)(heads * head_dim) + eps);
}

void iv_ref_norm_by(const float *x, const float *weight, float r, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) out[i] = iv_canonical((x[i] * r) * weight[i]);
}

void iv_ref_rmsnorm(const float *x, const float *weight, float eps, size_t n, float *out) {
    iv_ref_norm_by(x, weight, iv_ref_rms_factor(x, eps, n), n, out);
}

void iv_ref_center(const float *x, size_t n, float *out) {
    float lanes[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < n; i++) lanes[i % IV_ROW_LANES] = lanes[i % IV_ROW_LANES] + x[i];
    float mean = iv_ref_fold_lanes(lanes) / (float)n;
    for (size_t i = 0; i < n; i++) out[i] = iv_canonical(x[i] - mean);
}

void iv_ref_rope(float *x, const float *cosine, const float *sine, size_t pairs) {
    for (size_t i = 0; i < pairs; i++) {
        float a = x[i], b = x[i + pairs], as = a * sine[i], bs = b * sine[i];
        x[i] = iv_canonical(iv_fma(a, cosine[i], -bs));
        x[i + pairs] = iv_canonical(iv_fma(b, cosine[i], as));
    }
}

const iv_activation iv_silu = {.kind = IV_ACTIVATION_SILU};

void iv_ref_activate(const iv_activation *a, const float *gate, const float *up, size_t n, float *out) {
    iv_activation_floats f = IV_ACTIVATION_FLOATS(a);
    for (size_t i = 0; i < n; i++) out[i] = iv_canonical(v_activate(a->kind, f, gate ? gate[i] : 0.0f, up[i]));
}

static double softplus(double x) { return x > 700 ? x : iv_log64(1 + iv_exp64(x)); }

iv_activation iv_ref_xielu(float alpha_p, float alpha_n, float beta, float eps) {
    return (iv_activation){.kind = IV_ACTIVATION_XIELU,
                           .positive = softplus((double)alpha_p),
                           .negative = (double)beta + softplus((double)alpha_n),
                           .beta = (double)beta,
                           .eps = (double)eps};
}

void iv_ref_forbid(float *x, size_t first, size_t n, const uint64_t *allowed) {
    for (size_t i = 0; i < n;) {
        size_t id = first + i, bits = 64 - id % 64;
        uint64_t zeros = ~allowed[id / 64] >> (id % 64);
        if (bits > n - i) bits = n - i;
        if (bits < 64) zeros &= ((uint64_t)1 << bits) - 1;
        for (; zeros; zeros &= zeros - 1) x[i + (size_t)__builtin_ctzll(zeros)] = -INFINITY;
        i += bits;
    }
}

void iv_ref_cap(float *x, float inner, float outer, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = iv_canonical(v_tanh(x[i] * inner) * outer);
}

float iv_ref_shape_gradient(iv_logit_shape shape, float y, float d) {
    if (shape.cap != 0.0f && y > -INFINITY) {
        float t = y * (1.0f / shape.cap);
        d = d * iv_fma(-t, t, 1.0f);
    }
    return shape.divisor == 1.0f ? d : d / shape.divisor;
}

void iv_ref_sum_exp(const float *x, size_t n, float *max, float *sum) {
    float m = -INFINITY, lanes[IV_ROW_LANES] = {0}; /* skips NaN, which reaches the sum */
    for (size_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    m = m + 0.0f; /* the law: a zero maximum is +0 */
    for (size_t i = 0; i < n; i++) lanes[i % IV_ROW_LANES] += v_exp(x[i] - m);
    *max = m;
    *sum = iv_ref_fold_lanes(lanes);
}

float iv_ref_log(float x) { return v_log(x); }
float iv_ref_exp(float x) { return v_exp(x); }

void iv_ref_log_sum_exp(const float *x, size_t n, float *max, float *log_sum) {
    float sum;
    iv_ref_sum_exp(x, n, max, &sum);
    *log_sum = v_log(sum);
}

void iv_ref_route(const float *logits, size_t experts, size_t k, int normalise, int32_t *ids, float *weights) {
    float max, sum, selected = 0.0f;
    iv_ref_sum_exp(logits, experts, &max, &sum);
    for (size_t j = 0; j < k; j++) {
        int32_t best = -1;
        for (size_t e = 0; e < experts; e++) {
            int taken = 0;
            for (size_t i = 0; i < j; i++) taken |= ids[i] == (int32_t)e;
            if (!taken && (best < 0 || logits[e] > logits[best])) best = (int32_t)e;
        }
        ids[j] = best;
        weights[j] = v_exp(logits[best] - max) / sum;
        selected += weights[j];
    }
    for (size_t j = 0; normalise && j < k; j++) weights[j] = weights[j] / selected;
}

void iv_ref_sort_experts(int32_t *ids, float *weights, size_t k) {
    for (size_t i = 1; i < k; i++)
        for (size_t j = i; j > 0 && ids[j] < ids[j - 1]; j--) {
            int32_t id = ids[j];
            float w = weights[j];
            ids[j] = ids[j - 1], weights[j] = weights[j - 1];
            ids[j - 1] = id, weights[j - 1] = w;
        }
}

float iv_ref_combine(const int32_t *ids, const float *terms, size_t k) {
    float node[IV_EXPERTS_PER_TOKEN_MAX];
    int32_t at[IV_EXPERTS_PER_TOKEN_MAX];
    for (size_t i = 0; i < k; i++) node[i] = terms[i], at[i] = ids[i];
    while (k > 1) { /* one level of the tree: siblings are added, the others move up */
        size_t out = 0;
        for (size_t i = 0; i < k; out++) {
            int sibling = i + 1 < k && at[i] / 2 == at[i + 1] / 2;
            node[out] = sibling ? node[i] + node[i + 1] : node[i];
            at[out] = at[i] / 2;
            i += sibling ? 2 : 1;
        }
        k = out;
    }
    return node[0];
}
