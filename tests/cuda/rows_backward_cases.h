/* rows_backward_cases.h: row ops of a training step against the scalar reference, shared by test_rows_backward.c and
 * test_emulated_rows_backward.c. */
#ifndef IV_TESTS_CUDA_ROWS_BACKWARD_CASES_H
#define IV_TESTS_CUDA_ROWS_BACKWARD_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/learn.h"
#include "numerics/backward.h"
#include "numerics/rows.h"

static const iv_dtype types[3] = {IV_BF16, IV_F16, IV_F32};

static size_t random_n(rng *r) {
    static const size_t usual[] = {1,    2,    6,    17,   48,   255,  256,  257, 1000,
                                   1024, 1500, 2048, 2560, 4096, 5120, 8192, 9000};
    return usual[rng_below(r, sizeof usual / sizeof *usual)];
}

static family random_family(rng *r) { return rng_below(r, 3) ? NORMAL : (family)rng_below(r, FAMILIES); }

/* Memory of the host that looks like gpu_room's. */
static inline void *host_room(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    return memset(p, 0xa5, bytes ? bytes : 1);
}

/* Distinct rows below `of` in random order, some of them -1. */
static int32_t *random_picks(rng *r, size_t count, size_t of) {
    int32_t *pick = malloc((of ? of : 1) * sizeof *pick);
    for (size_t i = 0; i < of; i++) pick[i] = (int32_t)i;
    for (size_t i = of; i > 1; i--) {
        size_t j = rng_below(r, i);
        int32_t t = pick[i - 1];
        pick[i - 1] = pick[j], pick[j] = t;
    }
    for (size_t i = 0; i < count; i++)
        if (rng_below(r, 5) == 0) pick[i] = -1;
    return pick;
}

/* ---- copies ------------------------------------------------------------------------------------------------- */

static void rounded_rows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("rounded rows");
    for (size_t trial = 0; trial < trials(80, 1000); trial++) {
        size_t n = random_n(&r), rows = rng_below(&r, 12), more = rng_below(&r, 3) * 4;
        size_t column = rng_below(&r, 2) ? 4 * rng_below(&r, 5) : rng_below(&r, 20), x_stride = column + n + more;
        size_t stride = rng_below(&r, 2) ? (n + 31) / 16 * 16 : n + rng_below(&r, 9);
        if (rng_below(&r, 2)) x_stride = (x_stride + 3) / 4 * 4;
        iv_dtype type = types[trial % 3];
        size_t width = iv_dtype_bytes(type);
        float *x = random_values(&r, (family)rng_below(&r, FAMILIES), IV_F32, rows * x_stride);
        void *want = calloc(rows * stride + 1, width);
        for (size_t i = 0; i < rows; i++)
            for (size_t c = 0; c < n; c++)
                put_type(type, want, i * stride + c, iv_canonical(x[i * x_stride + column + c]));
        float *gpu_x = gpu_copy(x, rows * x_stride * sizeof *x);
        void *out = gpu_room(rows * stride * width);
        GPU_OK(iv_gpu_round_rows(gpu_x, x_stride, column, n, rows, type, out, stride, NULL));
        assert_gpu_has("rounded rows", want, out, rows * stride, width, false);
        cudaFree(gpu_x), cudaFree(out), free(x), free(want);
    }
    assert_int_not_equal(0, iv_gpu_round_rows(NULL, 10, 8, 3, 1, IV_BF16, NULL, 16, NULL));
    assert_int_not_equal(0, iv_gpu_round_rows(NULL, 10, 0, 10, 1, IV_BF16, NULL, 9, NULL));
}

static void cleared_and_gathered_rows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("cleared and gathered rows");
    for (size_t trial = 0; trial < trials(60, 800); trial++) {
        size_t rows = 1 + rng_below(&r, 30), count = rng_below(&r, rows + 1), unit = trial % 2 ? 16 : 4;
        size_t stride = unit * (1 + rng_below(&r, 700)), bytes = unit * (1 + rng_below(&r, stride / unit));
        unsigned char *x = random_values(&r, NORMAL, IV_F32, rows * stride / 4), *want = malloc(rows * stride);
        int32_t *list = random_picks(&r, 0, rows), *gpu_list = gpu_copy(list, rows * sizeof *list);
        unsigned char *gpu_x = gpu_copy(x, rows * stride), *out = gpu_room(rows * stride);
        memcpy(want, x, rows * stride);
        for (size_t i = 0; i < count; i++) memset(want + (size_t)list[i] * stride, 0, bytes);
        GPU_OK(iv_gpu_clear_rows(gpu_list, count, gpu_x, bytes, stride, NULL));
        assert_gpu_has("cleared rows", want, gpu_x, rows * stride / 4, 4, false);
        int32_t *pick = malloc(rows * sizeof *pick);
        memset(x, 0, rows * stride);
        for (size_t i = 0; i < rows; i++) {
            pick[i] = (int32_t)rng_below(&r, rows + 1) - 1;
            if (pick[i] >= 0) memcpy(x + i * stride, want + (size_t)pick[i] * stride, stride);
        }
        int32_t *gpu_pick = gpu_copy(pick, rows * sizeof *pick);
        GPU_OK(iv_gpu_gather_rows(gpu_x, gpu_pick, rows, stride, out, NULL));
        assert_gpu_has("gathered rows", x, out, rows * stride / 4, 4, false);
        cudaFree(gpu_list), cudaFree(gpu_x), cudaFree(out), cudaFree(gpu_pick);
        free(x), free(want), free(list), free(pick);
    }
    GPU_OK(iv_gpu_clear_rows(NULL, 0, NULL, 4, 4, NULL));
    GPU_OK(iv_gpu_gather_rows(NULL, NULL, 0, 4, NULL, NULL));
    assert_int_not_equal(0, iv_gpu_gather_rows(NULL, NULL, 1, 6, NULL, NULL));
}

/* A row without a place is written nowhere, and rows that are no row's place keep their bytes. */
static void scattered_rows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("scattered rows");
    for (size_t trial = 0; trial < trials(40, 400); trial++) {
        size_t rows = 1 + rng_below(&r, 30), bytes = (trial % 2 ? 16 : 4) * (1 + rng_below(&r, 700));
        unsigned char *x = random_values(&r, NORMAL, IV_F32, rows * bytes / 4), *want = malloc(rows * bytes);
        int32_t *place = random_picks(&r, 0, rows);
        memset(want, 0xa5, rows * bytes); /* as gpu_room does */
        for (size_t i = 0; i < rows; i++) {
            if (rng_below(&r, 3) == 0) place[i] = -1;
            if (place[i] >= 0) memcpy(want + (size_t)place[i] * bytes, x + i * bytes, bytes);
        }
        unsigned char *gpu_x = gpu_copy(x, rows * bytes), *out = gpu_room(rows * bytes);
        int32_t *gpu_place = gpu_copy(place, rows * sizeof *place);
        GPU_OK(iv_gpu_scatter_rows(gpu_x, gpu_place, rows, bytes, out, NULL));
        assert_gpu_has("scattered rows", want, out, rows * bytes / 4, 4, false);
        cudaFree(gpu_x), cudaFree(out), cudaFree(gpu_place);
        free(x), free(want), free(place);
    }
    GPU_OK(iv_gpu_scatter_rows(NULL, NULL, 0, 4, NULL, NULL));
    assert_int_not_equal(0, iv_gpu_scatter_rows(NULL, NULL, 1, 6, NULL, NULL));
}

/* ---- RMSNorm -------------------------------------------------------------------------------------------------- */

/* The control: is the second sum another number in plain order? */
static bool order_matters(const float *x, const float *w, const float *dy, float r, size_t n) {
    float sum = 0.0f, lanes[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        sum = fmaf(dy[i] * w[i], x[i] * r, sum);
        lanes[i % IV_ROW_LANES] = fmaf(dy[i] * w[i], x[i] * r, lanes[i % IV_ROW_LANES]);
    }
    return isfinite(sum) && sum != iv_ref_fold_lanes(lanes);
}

static void norms_backward(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("norms backward");
    size_t other_order = 0;
    for (size_t trial = 0; trial < trials(120, 2000); trial++) {
        size_t n = trial == 3 ? 16384 : trial == 4 ? 17000 : random_n(&r), of = 1 + rng_below(&r, n > 5000 ? 6 : 20);
        bool picks = rng_below(&r, 2), round = rng_below(&r, 2);
        size_t rows = picks ? 1 + rng_below(&r, of) : of, stride = n + rng_below(&r, 2) * rng_below(&r, 40);
        iv_dtype type = types[trial % 3];
        size_t width = iv_dtype_bytes(type);
        float *x = random_values(&r, random_family(&r), IV_F32, of * n);
        float *w = random_values(&r, rng_below(&r, 6) ? NORMAL : SPECIAL, IV_F32, n);
        float *dy = random_values(&r, random_family(&r), IV_F32, rows * n);
        float *dx = random_values(&r, random_family(&r), IV_F32, of * n), *factors = host_room(rows * sizeof *factors);
        if (rng_below(&r, 4) == 0) memset(x, 0, n * sizeof *x);
        if (rng_below(&r, 4) == 0) memset(dx, 0, of * n * sizeof *dx);
        float eps = rng_below(&r, 2) ? 1e-6f : 0.0f;
        int32_t *pick = random_picks(&r, rows, of), *gpu_pick = picks ? gpu_copy(pick, rows * sizeof *pick) : NULL;
        void *rounded = host_room(of * stride * width);
        iv_gpu_norm_backward_args a = {.x = gpu_copy(x, of * n * sizeof *x),
                                       .pick = gpu_pick,
                                       .weight = gpu_copy(w, n * sizeof *w),
                                       .eps = eps,
                                       .n = n,
                                       .rows = rows,
                                       .dy = gpu_copy(dy, rows * n * sizeof *dy),
                                       .dx = gpu_copy(dx, of * n * sizeof *dx),
                                       .factors = gpu_room(rows * sizeof *factors),
                                       .type = type,
                                       .rounded = round ? gpu_copy(rounded, of * stride * width) : NULL,
                                       .rounded_stride = stride};
        for (size_t i = 0; i < rows; i++) {
            if (picks && pick[i] < 0) continue;
            size_t at = picks ? (size_t)pick[i] : i;
            factors[i] = iv_ref_rmsnorm_backward(x + at * n, w, eps, n, dy + i * n, dx + at * n, dx + at * n);
            other_order += order_matters(x + at * n, w, dy + i * n, factors[i], n);
            for (size_t c = 0; c < stride; c++) put_type(type, rounded, at * stride + c, c < n ? dx[at * n + c] : 0.0f);
        }
        GPU_OK(iv_gpu_norm_backward(&a, NULL));
        assert_gpu_has("dx", dx, a.dx, of * n, sizeof *dx, false);
        assert_gpu_has("factors", factors, a.factors, rows, sizeof *factors, true);
        if (round) assert_gpu_has("rounded dx", rounded, a.rounded, of * stride, width, false);
        cudaFree((void *)a.x), cudaFree(gpu_pick), cudaFree((void *)a.weight), cudaFree((void *)a.dy), cudaFree(a.dx);
        cudaFree(a.factors), cudaFree(a.rounded);
        free(x), free(w), free(dy), free(dx), free(factors), free(pick), free(rounded);
    }
    assert_true(other_order > 0);
    GPU_OK(iv_gpu_norm_backward(&(iv_gpu_norm_backward_args){.n = 4}, NULL));
}

/* ---- activations ---------------------------------------------------------------------------------------------------
 */

static void activation_tapes(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("activations with a tape");
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        size_t n = random_n(&r), rows = rng_below(&r, 16), stride = rng_below(&r, 2) ? iv_padded_k(n) : n;
        iv_dtype type = types[trial % 3];
        iv_activation a = {(iv_activation_kind)rng_below(&r, IV_ACTIVATION_KINDS), 0.7, 1.702, 0.8, 0.7, 0.5, -1e-2};
        bool gated = iv_activation_is_gated(&a), grouped = gated && n % 8 == 0 && rng_below(&r, 2);
        size_t width = iv_dtype_bytes(type), all = gated ? 2 * n : n;
        float *x = random_values(&r, (family)rng_below(&r, FAMILIES), IV_F32, rows * 2 * n);
        float *wide = malloc(rows * all * sizeof *wide + 1), *y = malloc(n * sizeof *y);
        void *gate = malloc(rows * n * width + 1), *up = malloc(rows * n * width + 1);
        void *act = calloc(rows * stride + 1, width);
        for (size_t i = 0; i < rows; i++) {
            const float *g = x + i * 2 * n, *u = g + n;
            iv_ref_activate(&a, gated ? g : NULL, u, n, y);
            for (size_t c = 0; c < n; c++) {
                put_type(type, gate, i * n + c, iv_canonical(g[c])), put_type(type, up, i * n + c, iv_canonical(u[c]));
                put_type(type, act, i * stride + c, y[c]);
                if (gated) wide[i * all + (grouped ? c / 8 * 16 + c % 8 : c)] = g[c];
                wide[i * all + (grouped ? c / 8 * 16 + c % 8 + 8 : all - n + c)] = u[c];
            }
        }
        float *gpu_wide = gpu_copy(wide, rows * all * sizeof *wide);
        void *gpu_gate = gpu_room(rows * n * width), *gpu_up = gpu_room(rows * n * width);
        void *gpu_act = gpu_room(rows * stride * width);
        GPU_OK(iv_gpu_activate_tape(&a, gpu_wide, grouped, rows, n, type, gpu_gate, gpu_up, gpu_act, stride,
                                    (iv_gpu_row_scales){0}, NULL));
        if (gated) assert_gpu_has("gate", gate, gpu_gate, rows * n, width, false);
        assert_gpu_has("up", up, gpu_up, rows * n, width, false);
        assert_gpu_has("act", act, gpu_act, rows * stride, width, false);
        cudaFree(gpu_wide), cudaFree(gpu_gate), cudaFree(gpu_up), cudaFree(gpu_act);
        free(x), free(wide), free(y), free(gate), free(up), free(act);
    }
    assert_int_not_equal(0, iv_gpu_activate_tape(&iv_silu, NULL, true, 1, 12, IV_BF16, NULL, NULL, NULL, 16,
                                                 (iv_gpu_row_scales){0}, NULL));
}

static void activations_backward(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("activations backward");
    for (size_t trial = 0; trial < trials(80, 1000); trial++) {
        size_t n = random_n(&r), rows = rng_below(&r, 12), all = iv_padded_k(n),
               leaves = (size_t)iv_leaf_count(all, IV_SUM_OF_RANKS);
        size_t part = rng_below(&r, 2) ? all / leaves : 16 * (1 + rng_below(&r, all / 16 + 4));
        iv_activation a = {(iv_activation_kind)rng_below(&r, IV_ACTIVATION_KINDS), 0.7, 1.702, 0.8, 0.7, 0.5, -1e-2};
        bool gated = iv_activation_is_gated(&a);
        size_t inputs = gated ? 2 : 1, apart = gated ? part : 0;
        size_t stride = ((n + part - 1) / part + rng_below(&r, 2)) * inputs * part + rng_below(&r, 3) * 4;
        iv_dtype type = types[trial % 3];
        size_t width = iv_dtype_bytes(type);
        void *gate = random_values(&r, random_family(&r), type, rows * n);
        void *up = random_values(&r, random_family(&r), type, rows * n);
        float *da = random_values(&r, random_family(&r), IV_F32, rows * n);
        float *wide = malloc(rows * inputs * n * sizeof *wide + 1);
        void *dy = calloc(rows * stride + 1, width);
        for (size_t i = 0; i < rows; i++) {
            float *dg = wide + i * inputs * n, *du = dg + (inputs - 1) * n;
            iv_ref_activate_backward(&a, type, gated ? (char *)gate + i * n * width : NULL, (char *)up + i * n * width,
                                     da + i * n, n, IV_F32, gated ? dg : NULL, du);
            for (size_t c = 0; c < n; c++) {
                size_t to = i * stride + c / part * (part + apart) + c % part;
                if (gated) put_type(type, dy, to, dg[c]);
                put_type(type, dy, to + apart, du[c]);
            }
        }
        void *gpu_gate = gpu_copy(gate, rows * n * width), *gpu_up = gpu_copy(up, rows * n * width);
        float *gpu_da = gpu_copy(da, rows * n * sizeof *da);
        void *gpu_dy = gpu_room(rows * stride * width);
        float *gpu_wide = rng_below(&r, 2) ? gpu_room(rows * inputs * n * sizeof *wide) : NULL;
        GPU_OK(iv_gpu_activate_backward(&a, type, gpu_gate, gpu_up, gpu_da, rows, n, part, gpu_dy, stride, gpu_wide,
                                        NULL));
        assert_gpu_has("d gate and d up", dy, gpu_dy, rows * stride, width, false);
        if (gpu_wide) assert_gpu_has("d gate, then d up", wide, gpu_wide, rows * inputs * n, sizeof *wide, false);
        cudaFree(gpu_gate), cudaFree(gpu_up), cudaFree(gpu_da), cudaFree(gpu_dy), cudaFree(gpu_wide);
        free(gate), free(up), free(da), free(wide), free(dy);
    }
    assert_int_not_equal(
        0, iv_gpu_activate_backward(&iv_silu, IV_BF16, NULL, NULL, NULL, 1, 20, 24, NULL, 96, NULL, NULL));
    assert_int_not_equal(
        0, iv_gpu_activate_backward(&iv_silu, IV_BF16, NULL, NULL, NULL, 1, 40, 16, NULL, 64, NULL, NULL));
}

/* ---- rotation and head norms ------------------------------------------------------------------------------------ */

enum { POSITIONS = 50, HEAD_DIM = 512 };

/* Host pointers; the results in place. */
typedef iv_gpu_rotate_backward_args rotation;

/* h of one norm, from the gradients after rope' and the inputs: leaves of heads, added in the tree. */
static void want_terms(const rotation *a, size_t row, bool q, const float *d, const void *raw, float *out) {
    size_t dim = a->head_dim, heads = q ? a->heads : a->kv_heads;
    float leaf[IV_LEAVES_MAX][HEAD_DIM] = {{0}}, x[HEAD_DIM];
    for (size_t h = 0; h < heads; h++) {
        for (size_t i = 0; i < dim; i++) x[i] = iv_element(a->type, raw, (row * heads + h) * dim + i);
        iv_ref_norm_weight_backward(d + h * dim, x, iv_ref_rms_factor(x, a->eps, dim), dim,
                                    leaf[h / (heads / a->leaves)]);
    }
    for (size_t stride = 1; stride < a->leaves; stride *= 2)
        for (size_t l = 0; l < a->leaves; l += 2 * stride)
            for (size_t i = 0; i < dim; i++) leaf[l][i] = leaf[l][i] + leaf[l + stride][i];
    memcpy(out, leaf[0], dim * sizeof *out);
}

static void want_row(const rotation *a, size_t row) {
    size_t dim = a->head_dim, position = (size_t)a->positions[row], run = 0;
    float *d = a->dqkv + row * (a->heads + 2 * a->kv_heads) * dim, sine[HEAD_DIM], x[HEAD_DIM];
    for (size_t i = 0; i < dim / 2; i++) sine[i] = -a->sine[position * (dim / 2) + i];
    for (size_t h = 0; h < a->heads + a->kv_heads && !a->norms_behind; h++)
        iv_ref_rope(d + h * dim, a->cosine + position * (dim / 2), sine, dim / 2);
    if (a->q_norm) {
        want_terms(a, row, true, d, a->q_raw, a->terms + row * 2 * dim);
        want_terms(a, row, false, d + a->heads * dim, a->k_raw, a->terms + (row * 2 + 1) * dim);
    }
    for (size_t h = 0; a->q_norm && h < a->heads + a->kv_heads; h++) {
        bool q = h < a->heads;
        size_t from = q ? (row * a->heads + h) * dim : (row * a->kv_heads + h - a->heads) * dim;
        for (size_t i = 0; i < dim; i++) x[i] = iv_element(a->type, q ? a->q_raw : a->k_raw, from + i);
        iv_ref_rmsnorm_backward(x, q ? a->q_norm : a->k_norm, a->eps, dim, d + h * dim, NULL, d + h * dim);
    }
    for (size_t h = 0; h < a->heads + a->kv_heads && a->norms_behind; h++)
        iv_ref_rope(d + h * dim, a->cosine + position * (dim / 2), sine, dim / 2);
    size_t parts[3] = {a->heads * dim / a->leaves, a->kv_heads * dim / a->leaves, a->kv_heads * dim / a->leaves};
    for (size_t l = 0; l < a->leaves; l++)
        for (size_t p = 0, first = 0; p < 3; first += parts[p] * a->leaves, run += iv_padded_k(parts[p]), p++)
            for (size_t i = 0; i < parts[p]; i++)
                put_type(a->type, a->dy, row * a->dy_stride + run + l * a->behind + i,
                         iv_canonical(d[first + l * parts[p] + i]));
}

/* Columns behind each leaf hold what another op has put there. */
static void fill_behind(const rotation *a) {
    size_t bytes = iv_dtype_bytes(a->type), q = iv_padded_k(a->heads * a->head_dim / a->leaves),
           kv = iv_padded_k(a->kv_heads * a->head_dim / a->leaves), run = q + 2 * kv + a->behind;
    for (size_t i = 0; i < a->rows; i++)
        for (size_t l = 0; l < a->leaves; l++)
            memset((char *)a->dy + (i * a->dy_stride + (l + 1) * run - a->behind) * bytes, 0xa5, a->behind * bytes);
}

static void rotation_trial(rng *r, size_t trial) {
    static const size_t dims[] = {2, 6, 64, 80, 96, 128, 128, 192, 256, 512};
    size_t d = dims[rng_below(r, 10)], rows = 1 + rng_below(r, 20), leaves = (size_t)1 << rng_below(r, 4);
    size_t kv_heads = leaves * (1 + rng_below(r, leaves > 2 ? 1 : 3)), heads = kv_heads * (1 + rng_below(r, 3));
    if (trial % 400 == 7) d = 128;
    size_t width = (heads + 2 * kv_heads) * d;
    iv_dtype type = types[trial % 3];
    size_t bytes = iv_dtype_bytes(type);
    if (width > 4000) rows = 1 + rng_below(r, 3);
    if (trial % 400 == 7) rows = 1100; /* blocks of any GPU have several */
    bool norms = rng_below(r, 2);
    int32_t *positions = malloc(rows * sizeof *positions);
    for (size_t i = 0; i < rows; i++) positions[i] = rng_below(r, 6) ? (int32_t)rng_below(r, POSITIONS) : -1;
    float *table = random_values(r, NORMAL, IV_F32, POSITIONS * d), *norm = random_values(r, NORMAL, IV_F32, 2 * d);
    rotation t = {.dqkv = random_values(r, random_family(r), IV_F32, rows * width),
                  .rows = rows,
                  .heads = heads,
                  .kv_heads = kv_heads,
                  .head_dim = d,
                  .leaves = leaves,
                  .cosine = table,
                  .sine = table + POSITIONS * (d / 2),
                  .positions = positions,
                  .q_norm = norms ? norm : NULL,
                  .k_norm = norms ? norm + d : NULL,
                  .norms_behind = rng_below(r, 2),
                  .eps = rng_below(r, 2) ? 1e-6f : 0.0f,
                  .q_raw = random_values(r, random_family(r), type, rows * heads * d),
                  .k_raw = random_values(r, random_family(r), type, rows * kv_heads * d),
                  .terms = calloc(rows * 2 * d, sizeof(float)),
                  .type = type};
    size_t run = leaves * (iv_padded_k(heads * d / leaves) + 2 * iv_padded_k(kv_heads * d / leaves));
    t.behind = rng_below(r, 2) ? 16 * rng_below(r, 5) : 0, run += leaves * t.behind;
    t.dy_stride = run + rng_below(r, 2) * rng_below(r, 40), t.dy = calloc(rows * t.dy_stride, bytes);
    fill_behind(&t);
    rotation a = t;
    a.dqkv = gpu_copy(t.dqkv, rows * width * sizeof *t.dqkv), a.cosine = gpu_copy(table, POSITIONS * d * sizeof *table);
    a.sine = a.cosine + POSITIONS * (d / 2), a.positions = gpu_copy(positions, rows * sizeof *positions);
    float *gpu_norm = gpu_copy(norm, 2 * d * sizeof *norm);
    if (norms) a.q_norm = gpu_norm, a.k_norm = gpu_norm + d;
    a.q_raw = gpu_copy(t.q_raw, rows * heads * d * bytes), a.k_raw = gpu_copy(t.k_raw, rows * kv_heads * d * bytes);
    a.terms = gpu_room(rows * 2 * d * sizeof *a.terms), a.dy = gpu_room(rows * t.dy_stride * bytes);
    float *before = host_copy(a.dqkv, rows * width * sizeof *before);
    a.keeps = rng_below(r, 2);
    for (size_t i = 0; i < rows; i++)
        if (positions[i] >= 0) want_row(&t, i);
    GPU_OK(iv_gpu_rotate_backward(&a, NULL));
    assert_gpu_has("dqkv", a.keeps ? t.dqkv : before, a.dqkv, rows * width, sizeof *t.dqkv, false);
    assert_gpu_has("dy", t.dy, a.dy, rows * t.dy_stride, bytes, false);
    if (norms) assert_gpu_has("terms", t.terms, a.terms, rows * 2 * d, sizeof *t.terms, true);
    cudaFree(a.dqkv), cudaFree((void *)a.cosine), cudaFree((void *)a.positions), cudaFree(gpu_norm);
    cudaFree((void *)a.q_raw), cudaFree((void *)a.k_raw), cudaFree(a.terms), cudaFree(a.dy);
    free(before), free(t.dqkv), free(table), free(norm), free((void *)t.q_raw), free((void *)t.k_raw), free(t.terms),
        free(t.dy), free(positions);
}

static void rotations_backward(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("rotations backward");
    for (size_t trial = 0; trial < trials(120, 2000); trial++) rotation_trial(&r, trial);
    rotation none = {.heads = 4, .kv_heads = 2, .head_dim = 64, .leaves = 2, .dy_stride = 8 * 64, .type = IV_BF16};
    GPU_OK(iv_gpu_rotate_backward(&none, NULL));
    none.rows = 1, none.leaves = 4;
    assert_int_not_equal(0, iv_gpu_rotate_backward(&none, NULL));
    none.leaves = 2, none.dy_stride--;
    assert_int_not_equal(0, iv_gpu_rotate_backward(&none, NULL));
}

#define ROWS_BACKWARD_CASES(test)                                                                    \
    test(rounded_rows), test(cleared_and_gathered_rows), test(scattered_rows), test(norms_backward), \
        test(activation_tapes), test(activations_backward), test(rotations_backward)

#endif
