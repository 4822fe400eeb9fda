/* backward.inc.h: the row ops of the backward pass in the vector vocabulary. Before including it: rows.inc.h and
 * BACKWARD_NAME. */

/* The first n of V_LANES elements from element i on, as floats; the rest zero. */
static inline vf load_typed(iv_dtype type, const void *p, size_t i, size_t n) {
    float t[V_LANES];
    size_t width = iv_dtype_bytes(type);
    const void *at = (const char *)p + i * width;
    if (n < V_LANES) memset(t, 0, sizeof t), at = memcpy(t, at, n * width);
    if (type == IV_BF16) return v_load_bf16(at);
    if (type == IV_F16) return v_load_f16(at);
    return v_load(at);
}

static inline vf minus(vf x) { return v_float(vi_xor(v_bits(x), vi_set(0x80000000u))); }

static float dot_by(const float *x, const float *w, vf r, size_t n, const float *dy) {
    vf lanes[LANE_VECTORS];
    for (int i = 0; i < LANE_VECTORS; i++) lanes[i] = v_set(0.0f);
    EACH_LANE(i, lane, n) {
        vf g = v_mul(load_some(dy + i, left), load_some(w + i, left));
        lanes[lane] = v_fma(g, v_mul(load_some(x + i, left), r), lanes[lane]);
    }
    return fold(lanes);
}

static inline vf norm_slope(const float *x, const float *w, vf r, vf c, const float *dy, size_t left) {
    vf g = v_mul(load_some(dy, left), load_some(w, left));
    return v_fma(minus(v_mul(load_some(x, left), r)), c, g);
}

static float norm_dot(const float *x, const float *w, float r, size_t n, const float *dy) {
    return dot_by(x, w, v_set(r), n, dy);
}

static void norm_by_backward(const float *x, const float *w, float r, float c, size_t n, const float *dy, float *out) {
    EACH(i, n) {
        vf t = norm_slope(x + i, w + i, v_set(r), v_set(c), dy + i, left);
        store_some(IV_F32, out, i, v_mul(t, v_set(r)), left);
    }
}

static float rmsnorm_backward(const float *x, const float *w, float eps, size_t n, const float *dy, const float *add_to,
                              float *out) {
    vf mean = v_div(v_set(squares(x, n)), v_set((float)n));
    vf r = v_div(v_set(1.0f), v_sqrt(v_add(mean, v_set(eps))));
    vf c = v_div(v_set(dot_by(x, w, r, n, dy)), v_set((float)n));
    EACH(i, n) {
        vf t = norm_slope(x + i, w + i, r, c, dy + i, left);
        store_some(IV_F32, out, i, add_to ? v_fma(t, r, load_some(add_to + i, left)) : v_mul(t, r), left);
    }
    float first[V_LANES];
    v_store(first, r);
    return first[0];
}

static void norm_weight_backward(const float *dy, const float *x, float r, size_t n, float *sum) {
    EACH(i, n) {
        vf y = v_fma(load_some(dy + i, left), v_mul(load_some(x + i, left), v_set(r)), load_some(sum + i, left));
        store_some(IV_F32, sum, i, y, left);
    }
}

static inline void activate_backward_as(iv_activation_kind kind, iv_activation_floats f, iv_dtype type,
                                        const void *gate, const void *up, const float *da, size_t n, iv_dtype to,
                                        void *dgate, void *dup) {
    bool gated = IV_ACTIVATION_HAS_GATE(kind);
    EACH(i, n) {
        vf g = gated ? load_typed(type, gate, i, left) : v_set(0.0f), dg = g, du;
        v_activate_backward(kind, f, g, load_typed(type, up, i, left), load_some(da + i, left), &dg, &du);
        store_some(to, dup, i, du, left);
        if (gated) store_some(to, dgate, i, dg, left);
    }
}

static void activate_backward(const iv_activation *a, iv_dtype type, const void *gate, const void *up, const float *da,
                              size_t n, iv_dtype to, void *dgate, void *dup) {
#define AS(kind) \
    case kind: activate_backward_as(kind, IV_ACTIVATION_FLOATS(a), type, gate, up, da, n, to, dgate, dup); break
    switch (a->kind) {
        AS(IV_ACTIVATION_SILU);
        AS(IV_ACTIVATION_GELU_TANH);
        AS(IV_ACTIVATION_SILU_CLAMPED);
        AS(IV_ACTIVATION_RELU2);
        AS(IV_ACTIVATION_XIELU);
    }
#undef AS
}

static void logits_backward(const float *x, size_t first, size_t n, float max, float sum, float c, size_t target,
                            iv_dtype type, void *out) {
    float q = 1.0f / sum;
    EACH(i, n) {
        vf p = v_mul(v_exp(v_sub(load_some(x + i, left), v_set(max))), v_set(q));
        store_some(type, out, i, v_mul(v_set(c), p), left);
    }
    if (target < first || target - first >= n) return;
    size_t i = target - first;
    iv_ref_logits_backward(x + i, target, 1, max, sum, c, target, type, (char *)out + i * iv_dtype_bytes(type));
}

static void attention_gradients(iv_arithmetic arithmetic, const float *score, const float *dp, int first, int last,
                                bool capped, float scale_log2e, float lse2, float delta, iv_dtype type, void *p,
                                void *ds) {
    size_t width = iv_dtype_bytes(type), begin = (size_t)first, end = (size_t)(last + 1);
    if (first > last) begin = end = 0;
    for (int i = 0; i < IV_ATTENTION_BLOCK; i += V_LANES) {
        vf w = attention_exp2(arithmetic, v_fma(v_load(score + i), v_set(scale_log2e), v_set(-lse2)));
        store_some(type, p, (size_t)i, w, V_LANES);
        vf d = v_mul(w, v_sub(v_load(dp + i), v_set(delta))), t = v_load(score + i);
        if (capped) d = v_mul(d, v_fma(v_sub(v_set(0.0f), t), t, v_set(1.0f)));
        store_some(type, ds, (size_t)i, d, V_LANES);
    }
    if (begin == 0 && end == IV_ATTENTION_BLOCK) return;
    memset(p, 0, begin * width), memset(ds, 0, begin * width);
    memset((char *)p + end * width, 0, (IV_ATTENTION_BLOCK - end) * width);
    memset((char *)ds + end * width, 0, (IV_ATTENTION_BLOCK - end) * width);
}

static float row_dot(iv_dtype type, const void *a, const void *b, size_t n) {
    vf lanes[LANE_VECTORS];
    for (int i = 0; i < LANE_VECTORS; i++) lanes[i] = v_set(0.0f);
    EACH_LANE(i, lane, n)
    lanes[lane] = v_fma(load_typed(type, a, i, left), load_typed(type, b, i, left), lanes[lane]);
    return fold(lanes);
}

void BACKWARD_NAME(iv_kernels *k) {
    k->rmsnorm_backward = rmsnorm_backward, k->norm_weight_backward = norm_weight_backward;
    k->norm_dot = norm_dot, k->norm_by_backward = norm_by_backward;
    k->activate_backward = activate_backward, k->logits_backward = logits_backward;
    k->attention_gradients = attention_gradients, k->row_dot = row_dot;
}
