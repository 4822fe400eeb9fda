/* rows_cases.h: row ops against the scalar reference, shared by test_rows.c and test_emulated_rows.c. */
#ifndef IV_TESTS_CUDA_ROWS_CASES_H
#define IV_TESTS_CUDA_ROWS_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/ops.h"
#include "numerics/fma32.h"
#include "numerics/router.h"
#include "numerics/rows.h"

static const iv_dtype types[3] = {IV_BF16, IV_F16, IV_F32};

static size_t random_n(rng *r) {
    static const size_t usual[] = {1, 2, 17, 255, 256, 257, 1000, 1024, 2048, 2560, 4096, 5120, 8192, 9000};
    return usual[rng_below(r, sizeof usual / sizeof *usual)];
}

static void *padded(iv_dtype type, const float *rows, size_t count, size_t n, size_t stride) {
    void *p = calloc(count * stride, iv_dtype_bytes(type));
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < n; j++) put_type(type, p, i * stride + j, iv_canonical(rows[i * n + j]));
    return p;
}

static void embedding(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("embedding");
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        size_t hidden = random_n(&r), k = iv_padded_k(hidden), vocab = 1 + rng_below(&r, 300),
               rows = 1 + rng_below(&r, 40);
        iv_dtype type = types[trial % 3];
        void *table = random_values(&r, WIDE, type, vocab * k);
        int32_t ids[40];
        float *want = malloc(rows * hidden * sizeof *want), scale = trial % 2 ? random_float(&r, NORMAL) : 1.0f;
        for (size_t i = 0; i < rows; i++) {
            ids[i] = rng_below(&r, 20) ? (int32_t)rng_below(&r, vocab) : rng_below(&r, 2) ? -1 : (int32_t)vocab;
            size_t id = ids[i] < 0 || (size_t)ids[i] >= vocab ? 0 : (size_t)ids[i];
            for (size_t j = 0; j < hidden; j++) want[i * hidden + j] = as_float(type, table, id * k + j) * scale;
        }
        iv_gpu_matrix m = {.format = iv_weight_plain(type),
                           .type = type,
                           .n = vocab,
                           .k_padded = k,
                           .data = gpu_copy(table, vocab * k * iv_dtype_bytes(type))};
        int32_t *gpu_ids = gpu_copy(ids, rows * sizeof *ids);
        float *x = gpu_room(rows * hidden * sizeof *x);
        GPU_OK(iv_gpu_embed(&m, gpu_ids, rows, hidden, scale, x, NULL));
        assert_gpu_has("embedding", want, x, rows * hidden, sizeof *x, false);
        cudaFree((void *)m.data), cudaFree(gpu_ids), cudaFree(x), free(table), free(want);
    }
}

/* Residual additions of every form, and weights of norms plus 1. */
static void additions(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("additions");
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        size_t n = random_n(&r), rows = 1 + rng_below(&r, 10), all = rows * n;
        bool normed = rng_below(&r, 2), plain = !normed && rng_below(&r, 2); /* plain: there is no x */
        family f = (family)rng_below(&r, FAMILIES);
        float *x = random_values(&r, f, IV_F32, all), *y = random_values(&r, f, IV_F32, all),
              *w = random_values(&r, NORMAL, IV_F32, n), *want = malloc(all * sizeof *want), scale = 1.0f, after = 1.0f;
        if (rng_below(&r, 2)) scale = random_float(&r, NORMAL);
        if (normed && rng_below(&r, 2)) after = random_float(&r, NORMAL);
        for (size_t i = 0; i < rows; i++) {
            float *v = want + i * n;
            memcpy(v, y + i * n, n * sizeof *v);
            if (normed) iv_ref_rmsnorm(y + i * n, w, 1e-5f, n, v);
            for (size_t j = 0; j < n; j++) {
                v[j] = iv_canonical(plain ? v[j] * scale : iv_fma(scale, iv_canonical(v[j]), x[i * n + j]));
                if (after != 1.0f) v[j] = iv_canonical(v[j] * after);
            }
        }
        float *gpu_x = gpu_copy(x, all * sizeof *x), *gpu_y = gpu_copy(y, all * sizeof *y),
              *gpu_w = gpu_copy(w, n * sizeof *w), *to = plain ? gpu_y : gpu_x;
        iv_gpu_add_args a = {plain ? NULL : gpu_x, gpu_y, normed ? gpu_w : NULL, 1e-5f, scale, after, n, rows, to};
        GPU_OK(iv_gpu_add_rows(&a, NULL));
        assert_gpu_has("a residual addition", want, to, all, sizeof *want, false);
        for (size_t j = 0; j < n; j++) want[j] = 1.0f + w[j];
        GPU_OK(iv_gpu_plus_one(gpu_w, n, gpu_w, NULL));
        assert_gpu_has("weights plus 1", want, gpu_w, n, sizeof *want, false);
        cudaFree(gpu_x), cudaFree(gpu_y), cudaFree(gpu_w), free(x), free(y), free(w), free(want);
    }
}

static void logit_shapes(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("logit shapes");
    for (size_t trial = 0; trial < trials(40, 1000); trial++) {
        size_t n = 1 + rng_below(&r, 2000), stride = n + rng_below(&r, 9), rows = 1 + rng_below(&r, 6);
        iv_logit_shape shape = {rng_below(&r, 2) ? 8.0f : 1.0f, rng_below(&r, 3) ? 30.0f : 0.0f};
        float *x = random_values(&r, (family)rng_below(&r, FAMILIES), IV_F32, rows * stride);
        float *gpu_x = gpu_copy(x, rows * stride * sizeof *x);
        for (size_t i = 0; i < rows; i++) {
            for (size_t j = 0; shape.divisor != 1.0f && j < n; j++)
                x[i * stride + j] = iv_canonical(x[i * stride + j] / shape.divisor);
            if (shape.cap != 0.0f) iv_ref_cap(x + i * stride, 1.0f / shape.cap, shape.cap, n);
        }
        GPU_OK(iv_gpu_shape_logits(shape, gpu_x, rows, n, stride, NULL));
        assert_gpu_has("logits", x, gpu_x, rows * stride, sizeof *x, false);
        cudaFree(gpu_x), free(x);
    }
}

static void rmsnorm(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("rmsnorm");
    size_t other_order = 0;
    for (size_t trial = 0; trial < trials(120, 2000); trial++) {
        static const size_t of_warps[] = {256, 256, 256, 1024, 2048, 2560, 4096, 5120}; /* in steps of many rows */
        bool many = trial % 8 == 7;
        size_t n = many ? of_warps[rng_below(&r, 8)] : random_n(&r), out_rows;
        size_t rows = out_rows = many ? 2048 + rng_below(&r, 40) : trial == 5 ? 1500 : 1 + rng_below(&r, 20);
        size_t stride = n + rng_below(&r, 2) * (many ? 4 * rng_below(&r, 10) : rng_below(&r, 40));
        iv_dtype type = types[trial % 3];
        float *x = random_values(&r, (family)rng_below(&r, FAMILIES), IV_F32, rows * n);
        float *w = random_values(&r, rng_below(&r, 6) ? NORMAL : SPECIAL, IV_F32, n),
              eps = rng_below(&r, 2) ? 1e-6f : 0.0f;
        float *y = malloc(rows * n * sizeof *y);
        int32_t *pick = NULL, *gpu_pick = NULL;
        if (rng_below(&r, 2)) {
            pick = malloc(rows * sizeof *pick);
            for (size_t i = 0; i < rows; i++) pick[i] = (int32_t)rng_below(&r, rows);
            gpu_pick = gpu_copy(pick, rows * sizeof *pick);
        }
        for (size_t i = 0; i < rows; i++) {
            const float *from = x + (pick ? (size_t)pick[i] : i) * n;
            float sum = 0.0f, lanes[IV_ROW_LANES] = {0};
            iv_ref_rmsnorm(from, w, eps, n, y + i * n);
            for (size_t j = 0; j < n; j++) { /* the control: one lane instead of 256 */
                sum = fmaf(from[j], from[j], sum);
                lanes[j % IV_ROW_LANES] = fmaf(from[j], from[j], lanes[j % IV_ROW_LANES]);
            }
            other_order += isfinite(sum) && sum != iv_ref_fold_lanes(lanes);
        }
        void *want = padded(type, y, rows, n, stride), *gpu_x = gpu_copy(x, rows * n * sizeof *x);
        float *gpu_w = gpu_copy(w, n * sizeof *w);
        void *out = gpu_room(out_rows * stride * iv_dtype_bytes(type));
        GPU_OK(iv_gpu_rmsnorm(gpu_x, n, gpu_pick, gpu_w, eps, rows, type, out, stride, NULL));
        assert_gpu_has("rmsnorm", want, out, rows * stride, iv_dtype_bytes(type), false);
        cudaFree(gpu_x), cudaFree(gpu_w), cudaFree(out), cudaFree(gpu_pick);
        free(x), free(w), free(y), free(pick), free(want);
    }
    assert_true(other_order > 0); /* sums in another order differ: the comparison can fail */
}

/* Any kind, with a small limit, which values reach. */
static iv_activation random_activation(rng *r) {
    return (iv_activation){(iv_activation_kind)rng_below(r, IV_ACTIVATION_KINDS), 0.7, 1.702, 0.8, 0.7, 0.5, -1e-2};
}

static void activations(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("activations");
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        size_t n = random_n(&r), rows = 1 + rng_below(&r, 20), stride = rng_below(&r, 2) ? iv_padded_k(n) : n;
        iv_dtype type = types[trial % 3];
        iv_activation a = random_activation(&r);
        size_t all = iv_activation_inputs(&a) * n;
        float *wide = random_values(&r, (family)rng_below(&r, FAMILIES), IV_F32, rows * all),
              *y = malloc(rows * n * sizeof *y);
        for (size_t i = 0; i < rows; i++)
            iv_ref_activate(&a, all > n ? wide + i * all : NULL, wide + (i + 1) * all - n, n, y + i * n);
        float *logits = random_values(&r, NORMAL, IV_F32, 3 * rows), *gpu_logits = gpu_copy(logits, 12 * rows);
        iv_gpu_row_scales scales = {rng_below(&r, 2) ? gpu_logits : NULL, 3};
        for (size_t i = 0; scales.logits && i < rows * n; i++) y[i] = y[i] * iv_ref_sigmoid(logits[3 * (i / n)]);
        void *want = padded(type, y, rows, n, stride), *act = gpu_room(rows * stride * iv_dtype_bytes(type));
        float *gpu_wide = gpu_copy(wide, rows * all * sizeof *wide);
        GPU_OK(iv_gpu_activate(&a, gpu_wide, rows, n, type, act, stride, scales, NULL));
        cudaFree(gpu_logits), free(logits);
        assert_gpu_has("activation", want, act, rows * stride, iv_dtype_bytes(type), false);
        cudaFree(gpu_wide), cudaFree(act), free(wide), free(y), free(want);
    }
}

static void copies(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("copies");
    for (size_t trial = 0; trial < trials(40, 400); trial++) {
        size_t stride = 1 + rng_below(&r, 500), column = rng_below(&r, stride), k = rng_below(&r, stride - column + 1);
        size_t rows = 1 + rng_below(&r, 20), to = k + rng_below(&r, 20), picks = 1 + rng_below(&r, 30);
        iv_dtype type = types[trial % 3];
        size_t width = iv_dtype_bytes(type);
        unsigned char *x = random_values(&r, NORMAL, type, rows * stride), *want = calloc(rows * to + 1, width);
        unsigned char *picked = malloc(picks * stride * width);
        int32_t pick[30];
        for (size_t i = 0; i < rows; i++) memcpy(want + i * to * width, x + (i * stride + column) * width, k * width);
        for (size_t i = 0; i < picks; i++) {
            pick[i] = (int32_t)rng_below(&r, rows);
            memcpy(picked + i * stride * width, x + (size_t)pick[i] * stride * width, stride * width);
        }
        void *gpu_x = gpu_copy(x, rows * stride * width), *out = gpu_room(rows * to * width);
        void *out_picked = gpu_room(picks * stride * width), *gpu_pick = gpu_copy(pick, sizeof pick);
        GPU_OK(iv_gpu_copy_columns(type, gpu_x, stride, column, k, rows, out, to, NULL));
        GPU_OK(iv_gpu_pick_rows(type, gpu_x, stride, gpu_pick, picks, out_picked, NULL));
        assert_gpu_has("copy of columns", want, out, rows * to, width, false);
        assert_gpu_has("picked rows", picked, out_picked, picks * stride, width, false);
        cudaFree(gpu_x), cudaFree(out), cudaFree(out_picked), cudaFree(gpu_pick), free(x), free(want), free(picked);
    }
}

/* ---- rotation ---------------------------------------------------------------------------------------------- */

enum { PAGES = 6, POSITIONS = 50, ROWS = 40 };

typedef struct rotation {
    iv_gpu_rotate_args a; /* host pointers */
    size_t width, kv_bytes;
    uint64_t bad;
    unsigned char *pages, *q, *q_raw, *k_raw;
    const float *factor; /* of the heads at work, of a norm over all */
} rotation;

static void want_raw(const rotation *t) {
    size_t d = t->a.kv.head_dim, q = t->a.heads * d, k = t->a.kv.heads * d;
    for (size_t row = 0; row < t->a.rows; row++)
        for (size_t h = 0; h < q + k; h += d) {
            size_t angles = (size_t)t->a.positions[row] * (d / 2);
            float x[512];
            memcpy(x, t->a.qkv + row * t->width + h, d * sizeof *x);
            if (t->a.norms_behind) iv_ref_rope(x, t->a.cosine + angles, t->a.sine + angles, d / 2);
            for (size_t i = h; i < h + d; i++)
                put_type(t->a.kv.type, i < q ? t->q_raw : t->k_raw, i < q ? row * q + i : row * k + i - q,
                         iv_canonical(x[i - h]));
        }
}

static bool finite_bits(iv_dtype type, const void *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(as_float(type, p, i))) return false;
    return true;
}

static void want_head(const rotation *t, const float *from, const float *norm, size_t position, void *out) {
    size_t d = t->a.kv.head_dim;
    float x[512];
    memcpy(x, from, d * sizeof *x);
    if (t->factor) {
        iv_ref_norm_by(x, norm, *t->factor, d, x);
        norm = NULL;
    }
    if (norm && !t->a.norms_behind) iv_ref_rmsnorm(x, norm, t->a.eps, d, x);
    iv_ref_rope(x, t->a.cosine + position * (d / 2), t->a.sine + position * (d / 2), d / 2);
    if (norm && t->a.norms_behind) iv_ref_rmsnorm(x, norm, t->a.eps, d, x);
    for (size_t i = 0; i < d; i++) put_type(t->a.kv.type, out, i, x[i]);
}

static void want_value(const rotation *t, const float *from, void *out) {
    size_t d = t->a.kv.head_dim;
    float x[512], ones[512];
    for (size_t i = 0; i < d; i++) ones[i] = 1.0f;
    memcpy(x, from, d * sizeof *x);
    if (t->a.value_norm) iv_ref_rmsnorm(x, ones, t->a.eps, d, x);
    for (size_t i = 0; i < d; i++) put_type(t->a.kv.type, out, i, x[i]);
}

static void want_rotated(rotation *t) {
    size_t d = t->a.kv.head_dim, kv_heads = t->a.kv.heads, element = iv_dtype_bytes(t->a.kv.type);
    for (size_t row = 0; row < t->a.rows; row++) {
        const float *from = t->a.qkv + row * t->width;
        size_t position = (size_t)t->a.positions[row];
        float squares[64], whole[2];
        for (size_t h = 0; h < t->a.heads + kv_heads; h++) squares[h] = iv_ref_squares(from + h * d, d);
        whole[0] = iv_ref_heads_factor(squares, t->a.heads, d, t->a.eps);
        whole[1] = iv_ref_heads_factor(squares + t->a.heads, kv_heads, d, t->a.eps);
        t->factor = t->a.factors ? &whole[0] : NULL;
        size_t apart = t->a.factors ? d : 0; /* from a head's weights to the next one's */
        for (size_t h = 0; h < t->a.heads; h++)
            want_head(t, from + h * d, t->a.q_norm ? t->a.q_norm + h * apart : NULL, position,
                      t->q + (row * t->a.heads + h) * d * element);
        t->factor = t->a.factors ? &whole[1] : NULL;
        for (size_t h = 0; h < kv_heads && t->a.slots[row] >= 0; h++) {
            unsigned char k[512 * 4], v[512 * 4];
            want_head(t, from + (t->a.heads + h) * d, t->a.k_norm ? t->a.k_norm + h * apart : NULL, position, k);
            want_value(t, from + (t->a.heads + (t->a.values_are_keys ? 0 : kv_heads) + h) * d, v);
            if (!finite_bits(t->a.kv.type, k, d) || !finite_bits(t->a.kv.type, v, d)) {
                uint64_t here = (uint64_t)t->a.layer << 32 | row;
                t->bad = here < t->bad ? here : t->bad;
                continue;
            }
            size_t page = (size_t)t->a.slots[row] / 64, slot = (size_t)t->a.slots[row] % 64;
            unsigned char *keys = t->pages + page * iv_gpu_kv_page_bytes(&t->a.kv) + h * iv_gpu_kv_head_bytes(&t->a.kv);
            memcpy(keys + slot * d * element, k, d * element);
            memcpy(keys + (64 + slot) * d * element, v, d * element);
        }
    }
}

static void rotation_trial(rng *r, size_t trial) {
    static const size_t dims[] = {2, 6, 64, 80, 96, 128, 128, 192, 256, 512};
    size_t d = dims[rng_below(r, 10)], rows = 1 + rng_below(r, ROWS), kv_heads = 1 + rng_below(r, 4);
    size_t heads = kv_heads * (1 + rng_below(r, 5));
    bool norms = rng_below(r, 2), whole = norms && rng_below(r, 2); /* over all heads */
    size_t weights = whole ? (heads + kv_heads) * d : 2 * d, of_k = whole ? heads * d : d;
    bool same = !whole && rng_below(r, 3) == 0; /* values are keys */
    rotation t = {.width = (heads + (same ? 1 : 2) * kv_heads) * d, .bad = UINT64_MAX};
    int32_t positions[ROWS];
    int64_t slots[ROWS];
    for (size_t i = 0; i < rows; i++) {
        positions[i] = (int32_t)rng_below(r, POSITIONS);
        slots[i] = rng_below(r, 8) ? (int64_t)(i * 9 + rng_below(r, 9)) : -1; /* distinct */
    }
    float *qkv = random_values(r, rng_below(r, 4) ? NORMAL : (family)rng_below(r, FAMILIES), IV_F32, rows * t.width);
    float *norm = random_values(r, NORMAL, IV_F32, weights), *table = random_values(r, NORMAL, IV_F32, POSITIONS * d);
    t.a = (iv_gpu_rotate_args){.qkv = qkv,
                               .rows = rows,
                               .heads = heads,
                               .q_norm = norms ? norm : NULL,
                               .k_norm = norms ? norm + of_k : NULL,
                               .factors = whole ? table : NULL, /* here only whether there are any */
                               .norms_behind = !whole && rng_below(r, 2),
                               .values_are_keys = same,
                               .value_norm = rng_below(r, 3) == 0,
                               .eps = 1e-6f,
                               .cosine = table,
                               .sine = table + POSITIONS * d / 2,
                               .positions = positions,
                               .slots = slots,
                               .kv = {.type = types[trial % 3],
                                      .heads = kv_heads,
                                      .head_dim = d,
                                      .page_count = PAGES,
                                      .page_heads = rng_below(r, 2) ? 0 : kv_heads + rng_below(r, 3)},
                               .layer = (uint32_t)rng_below(r, 60)};
    size_t element = iv_dtype_bytes(t.a.kv.type), kv_bytes = PAGES * iv_gpu_kv_page_bytes(&t.a.kv),
           q = rows * heads * d;
    size_t k = rows * kv_heads * d;
    bool raw = !whole && rng_below(r, 2);
    t.pages = calloc(kv_bytes, 1), t.q = malloc(q * element);
    t.q_raw = malloc(q * element), t.k_raw = malloc(k * element);
    iv_gpu_rotate_args a = t.a;
    a.kv.pages = gpu_copy(t.pages, kv_bytes), a.q = gpu_room(q * element);
    a.qkv = gpu_copy(qkv, rows * t.width * sizeof *qkv), a.cosine = gpu_copy(table, POSITIONS * d * sizeof *table);
    a.sine = a.cosine + POSITIONS * d / 2;
    float *gpu_norm = gpu_copy(norm, weights * sizeof *norm), *factors = gpu_room(2 * rows * sizeof *factors);
    a.q_norm = norms ? gpu_norm : NULL, a.k_norm = norms ? gpu_norm + of_k : NULL;
    a.factors = whole ? factors : NULL;
    if (whole) GPU_OK(iv_gpu_head_factors(a.qkv, rows, heads, kv_heads, d, a.eps, factors, NULL));
    a.positions = gpu_copy(positions, rows * sizeof *positions), a.slots = gpu_copy(slots, rows * sizeof *slots);
    a.bad = gpu_copy(&(uint64_t){UINT64_MAX}, sizeof *a.bad);
    if (raw) a.q_raw = gpu_room(q * element), a.k_raw = gpu_room(k * element);
    GPU_OK(iv_gpu_rotate(&a, NULL));
    want_rotated(&t), want_raw(&t);
    if (raw) {
        assert_gpu_has("queries before their norm", t.q_raw, a.q_raw, q, element, false);
        assert_gpu_has("keys before their norm", t.k_raw, a.k_raw, k, element, false);
    }
    assert_gpu_has("rotated queries", t.q, a.q, q, element, false);
    assert_gpu_has("keys and values", t.pages, a.kv.pages, kv_bytes / element, element, false);
    uint64_t *bad = host_copy(a.bad, sizeof *bad);
    if (*bad != t.bad) fail_msg("bad: wanted %llx, got %llx", (unsigned long long)t.bad, (unsigned long long)*bad);
    cudaFree(a.kv.pages), cudaFree(a.q), cudaFree((void *)a.qkv), cudaFree((void *)a.cosine), cudaFree(gpu_norm);
    cudaFree((void *)a.positions), cudaFree((void *)a.slots), cudaFree(a.bad), cudaFree(a.q_raw), cudaFree(a.k_raw);
    cudaFree(factors);
    free(t.q_raw), free(t.k_raw);
    free(bad), free(qkv), free(norm), free(table), free(t.pages), free(t.q);
}

static void centered_rows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("center");
    for (size_t trial = 0; trial < trials(40, 1000); trial++) {
        size_t n = 1 + rng_below(&r, rng_below(&r, 2) ? 90 : 3000), rows = 1 + rng_below(&r, 12);
        float *x = random_values(&r, (family)rng_below(&r, FAMILIES), IV_F32, rows * n), *want = malloc(rows * n * 4);
        float *from = gpu_copy(x, rows * n * 4), *to = gpu_room(rows * n * 4);
        for (size_t i = 0; i < rows; i++) iv_ref_center(x + i * n, n, want + i * n);
        GPU_OK(iv_gpu_center(from, n, rows, to, NULL));
        assert_gpu_has("center", want, to, rows * n, 4, false);
        cudaFree(from), cudaFree(to), free(x), free(want);
    }
}

static void rotations(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("rotation");
    for (size_t trial = 0; trial < trials(150, 3000); trial++) rotation_trial(&r, trial);
}

#endif
