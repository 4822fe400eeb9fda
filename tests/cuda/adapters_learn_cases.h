/* adapters_learn_cases.h: ops of an adapter that learns against the scalar reference: factors from master weights,
 * scaled columns of random concatenations, and the gradient of inputs. Shared by test_adapters_learn.c and
 * test_emulated_adapters_learn.c. */
#ifndef IV_TESTS_CUDA_ADAPTERS_LEARN_CASES_H
#define IV_TESTS_CUDA_ADAPTERS_LEARN_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/adapters_learn.h"
#include "numerics/adapter.h"

typedef struct learn_kind {
    iv_arithmetic arithmetic;
    iv_dtype type;
} learn_kind;

static const learn_kind learn_kinds[] = {
    {IV_TC16, IV_BF16}, {IV_TC16, IV_F16}, {IV_FMA32, IV_BF16}, {IV_FMA32, IV_F16}, {IV_FMA32, IV_F32}};

/* ---- factors ----------------------------------------------------------------------------------------------------- */

enum { FACTORS_MAX = 6 };

/* Some factors in one launch, by rows or by columns of the masters, in both forms. */
static void some_factors(rng *r, const learn_kind *kind) {
    size_t width = iv_dtype_bytes(kind->type), count = 1 + rng_below(r, FACTORS_MAX), masters = 0, bytes = 0;
    iv_gpu_learned_factor f[FACTORS_MAX];
    size_t of[FACTORS_MAX];
    for (size_t i = 0; i < count; i++) {
        size_t n = 1 + rng_below(r, 70), leaves = (size_t)1 << rng_below(r, 4), k = 1 + rng_below(r, 200);
        bool plain = rng_below(r, 3) == 0;
        if (leaves > 1) k = (k + 16 * leaves - 1) / (16 * leaves) * 16 * leaves - rng_below(r, 16);
        bool turned = rng_below(r, 2);
        f[i] = (iv_gpu_learned_factor){.from = (int64_t)masters,
                                       .row = turned ? 1 : (int64_t)k,
                                       .column = turned ? (int64_t)n : 1,
                                       .to = (int64_t)bytes,
                                       .n = (int32_t)n,
                                       .k = (int32_t)k,
                                       .leaves = plain ? 0 : (int32_t)leaves,
                                       .stride = (int32_t)(k + rng_below(r, 20))};
        masters += n * k + rng_below(r, 5);
        of[i] = plain ? n * (size_t)f[i].stride * width
                      : iv_gpu_factor_bytes(kind->arithmetic, kind->type, n, k, (int)leaves);
        bytes += (of[i] + 255) / 256 * 256;
    }
    float *m = random_values(r, rng_below(r, 2) ? NORMAL : SPECIAL, IV_F32, masters);
    float *on = gpu_copy(m, masters * sizeof *m);
    void *there = gpu_copy(f, sizeof f), *out = gpu_room(bytes);
    char *before = host_copy(out, bytes), *got;
    GPU_OK(iv_gpu_pack_learned(kind->arithmetic, kind->type, on, there, count, out, NULL));
    got = host_copy(out, bytes);
    for (size_t i = 0; i < count; i++) {
        size_t n = (size_t)f[i].n, k = (size_t)f[i].k, stride = (size_t)f[i].stride;
        char *rows = calloc(n * k, width), *want = calloc(1, of[i]);
        for (size_t a = 0; a < n; a++)
            for (size_t b = 0; b < k; b++)
                put_type(kind->type, rows, a * k + b, m[f[i].from + (int64_t)a * f[i].row + (int64_t)b * f[i].column]);
        memcpy(want, before + f[i].to, of[i]);
        for (size_t a = 0; !f[i].leaves && a < n; a++)
            memcpy(want + a * stride * width, rows + a * k * width, k * width);
        if (f[i].leaves) iv_gpu_pack_factor(kind->arithmetic, kind->type, rows, k, n, k, f[i].leaves, want);
        assert_same_bits("factor", want, got + f[i].to, of[i] / width, width, true);
        free(rows), free(want);
    }
    free(m), free(before), free(got);
    cudaFree(on), cudaFree(there), cudaFree(out);
}

static void factors_of_masters(void **state) {
    (void)state;
    rng r = rng_start("factors of masters");
    for (size_t i = 0; i < trials(60, 3000); i++) some_factors(&r, &learn_kinds[i % 5]);
}

/* ---- scaled columns ---------------------------------------------------------------------------------------------- */

/* A concatenation of up to three slices, of which a module has some. */
static void some_columns(rng *r, const learn_kind *kind) {
    size_t width = iv_dtype_bytes(kind->type), slices = 1 + rng_below(r, 3), rows = 1 + rng_below(r, 40);
    size_t leaf[3], all[3];
    iv_gpu_scale_columns_args a = {
        .type = kind->type, .columns = {.leaves = (size_t)1 << rng_below(r, 4)}, .rows = rows};
    static const float scales[] = {2.0f, 0.5f, -1.0f, 1.7f, 1e-30f, 1e30f};
    a.scale = scales[rng_below(r, 6)];
    size_t from[3], at = 0;
    for (size_t p = 0; p < slices; p++) {
        leaf[p] = 1 + rng_below(r, 60);
        if (a.columns.leaves > 1 && rng_below(r, 3)) leaf[p] = (leaf[p] + 15) / 16 * 16;
        all[p] = rng_below(r, 4) ? leaf[p] * a.columns.leaves - rng_below(r, leaf[p]) : 1 + rng_below(r, leaf[p]);
        from[p] = at, at += (leaf[p] + 15) / 16 * 16;
    }
    a.columns.from_leaf = at;
    for (size_t p = 0; p < slices; p++) {
        if (rng_below(r, 2) && (a.columns.runs || p + 1 < slices)) continue;
        size_t run = a.columns.runs++;
        a.columns.run[run].from = (uint32_t)from[p], a.columns.run[run].to = (uint32_t)a.columns.to_leaf;
        a.columns.run[run].n = (uint32_t)leaf[p], a.columns.run[run].all = (uint32_t)all[p];
        a.columns.to_leaf += (leaf[p] + 15) / 16 * 16;
    }
    size_t n = a.columns.leaves * a.columns.to_leaf;
    a.dy_stride = a.columns.leaves * at + 16 * rng_below(r, 2);
    char *dy = calloc(rows * a.dy_stride, width), *want = calloc(rows * n + 16, width); /* the reference pads */
    int32_t *row = calloc(rows, sizeof *row);
    for (size_t i = 0; i < rows * a.dy_stride; i++)
        put_type(kind->type, dy, i, random_float(r, rng_below(r, 4) ? NORMAL : SPECIAL));
    for (size_t i = 0; i < rows; i++) row[i] = rng_below(r, 5) ? (int32_t)i : -1;
    bool listed = rng_below(r, 2);
    for (size_t i = 0; i < rows; i++)
        for (size_t l = 0; l < a.columns.leaves; l++)
            for (size_t p = 0; p < a.columns.runs; p++)
                for (size_t c = 0; c < a.columns.run[p].n && l * a.columns.run[p].n + c < a.columns.run[p].all; c++) {
                    iv_ref_adapter ref = {.type = kind->type, .scale = a.scale};
                    char *to = want + (i * n + l * a.columns.to_leaf + a.columns.run[p].to + c) * width;
                    if (listed && row[i] < 0) continue;
                    iv_ref_adapter_scaled(&ref, dy + (i * a.dy_stride + l * at + a.columns.run[p].from + c) * width, 1,
                                          to);
                }
    void *on = gpu_copy(dy, rows * a.dy_stride * width), *list = gpu_copy(row, rows * sizeof *row);
    a.dy = on, a.row = listed ? list : NULL, a.dz = gpu_room(rows * n * width);
    GPU_OK(iv_gpu_scale_columns(&a, NULL));
    char *got = host_copy(a.dz, rows * n * width);
    assert_same_bits("dz", want, got, rows * n, width, false);
    free(dy), free(want), free(row), free(got);
    cudaFree(on), cudaFree(list), cudaFree(a.dz);
}

static void scaled_columns(void **state) {
    (void)state;
    rng r = rng_start("scaled columns");
    for (size_t i = 0; i < trials(100, 5000); i++) some_columns(&r, &learn_kinds[i % 5]);
}

/* ---- the gradient of inputs -------------------------------------------------------------------------------------- */

/* Several modules in one pass over dx. */
static void several_terms(rng *r, const learn_kind *kind) {
    size_t width = iv_dtype_bytes(kind->type), rows = 1 + rng_below(r, 70), k = 8 * (1 + rng_below(r, 40)), stride = 0,
           count = 1 + rng_below(r, IV_GPU_INPUT_TERMS_MAX), rank[IV_GPU_INPUT_TERMS_MAX];
    float *dx = random_values(r, rng_below(r, 3) ? NORMAL : SPECIAL, IV_F32, rows * k), *got;
    char *a[IV_GPU_INPUT_TERMS_MAX];
    iv_gpu_input_terms_args x = {.type = kind->type, .terms = count, .rows = rows, .k = k};
    for (size_t i = 0; i < rows * k; i++) dx[i] = iv_canonical(dx[i]);
    for (size_t m = 0; m < count; m++) {
        rank[m] = 1 + rng_below(r, 70), a[m] = calloc(rank[m] * iv_padded_k(k), width);
        char *turned = calloc(k * rank[m], width);
        for (size_t i = 0; i < rank[m] * k; i++) {
            float value = random_float(r, NORMAL);
            put_type(kind->type, a[m], i / k * iv_padded_k(k) + i % k, value);
            put_type(kind->type, turned, i % k * rank[m] + i / k, value);
        }
        size_t bytes = iv_gpu_factor_bytes(kind->arithmetic, kind->type, k, rank[m], 1);
        void *packed = malloc(bytes);
        iv_gpu_pack_factor(kind->arithmetic, kind->type, turned, rank[m], k, rank[m], 1, packed);
        x.term[m].factor = gpu_copy(packed, bytes);
        x.term[m].rank = (int32_t)rank[m], x.term[m].first = (int32_t)stride, stride += iv_padded_k(rank[m]);
        free(turned), free(packed);
    }
    char *dt = calloc(rows * stride, width);
    for (size_t i = 0; i < rows; i++)
        for (size_t m = 0; m < count; m++)
            for (size_t j = 0; j < rank[m]; j++)
                put_type(kind->type, dt, i * stride + (size_t)x.term[m].first + j,
                         random_float(r, rng_below(r, 5) ? NORMAL : SPECIAL));
    x.dt = gpu_copy(dt, rows * stride * width), x.dt_stride = stride, x.dx = gpu_copy(dx, rows * k * sizeof *dx);
    if (rng_below(r, 2)) x.rounded = gpu_room(rows * k * width);
    assert_true(iv_gpu_input_terms_takes(kind->arithmetic, &x));
    GPU_OK(iv_gpu_input_terms(&x, NULL));
    for (size_t i = 0; i < rows; i++)
        for (size_t m = 0; m < count; m++) {
            iv_ref_adapter ref = {
                .arithmetic = kind->arithmetic, .type = kind->type, .rank = rank[m], .inputs = k, .a = a[m]};
            for (size_t j = 0; j < k; j++)
                dx[i * k + j] = iv_ref_adapter_input_gradient(&ref, dt + (i * stride + (size_t)x.term[m].first) * width,
                                                              j, dx[i * k + j]);
        }
    if (x.rounded) {
        char *want = calloc(rows * k, width), *found = host_copy(x.rounded, rows * k * width);
        for (size_t i = 0; i < rows * k; i++) put_type(kind->type, want, i, dx[i]);
        assert_same_bits("R(dx)", want, found, rows * k, width, false);
        free(want), free(found);
    } else {
        got = host_copy(x.dx, rows * k * sizeof *got);
        assert_same_bits("dx", dx, got, rows * k, sizeof *dx, false);
        free(got);
    }
    for (size_t m = 0; m < count; m++) free(a[m]), cudaFree((void *)(uintptr_t)x.term[m].factor);
    cudaFree((void *)(uintptr_t)x.dt), cudaFree(x.dx), cudaFree(x.rounded);
    free(dx), free(dt);
}

/* dx gains dt A: the term of an adapter with scale 1, whose B is A transposed. */
static void one_input_gradient(rng *r, const learn_kind *kind) {
    size_t width = iv_dtype_bytes(kind->type), rows = 1 + rng_below(r, 70), k = 1 + rng_below(r, 300),
           rank = 1 + rng_below(r, 40), padded = iv_padded_k(rank);
    float *masters = random_values(r, NORMAL, IV_F32, rank * k);
    float *dx = random_values(r, rng_below(r, 3) ? NORMAL : SPECIAL, IV_F32, rows * k), *got;
    char *a = calloc(rank * iv_padded_k(k), width), *dt = calloc(rows * padded, width);
    for (size_t i = 0; i < rank * k; i++) put_type(kind->type, a, i / k * iv_padded_k(k) + i % k, masters[i]);
    for (size_t i = 0; i < rows * padded; i++)
        if (i % padded < rank) put_type(kind->type, dt, i, random_float(r, rng_below(r, 5) ? NORMAL : SPECIAL));
    for (size_t i = 0; i < rows * k; i++) dx[i] = iv_canonical(dx[i]);
    iv_gpu_learned_factor f = {.row = 1, .column = (int64_t)k, .n = (int32_t)k, .k = (int32_t)rank, .leaves = 1};
    void *factor = gpu_room(iv_gpu_factor_bytes(kind->arithmetic, kind->type, k, rank, 1));
    void *on = gpu_copy(masters, rank * k * sizeof *masters), *there = gpu_copy(&f, sizeof f);
    GPU_OK(iv_gpu_pack_learned(kind->arithmetic, kind->type, on, there, 1, factor, NULL));
    iv_gpu_adapted_part part[2] = {{0}, {.b = factor, .scale = 1.0f, .rank = (int32_t)rank}};
    iv_gpu_adapter_args x = {.arithmetic = kind->arithmetic,
                             .type = kind->type,
                             .parts = gpu_copy(part, sizeof part),
                             .slots = 2,
                             .pieces = 1,
                             .rank_max = padded,
                             .rows = {.plain = rows},
                             .sms = 2,
                             .t = gpu_copy(dt, rows * padded * width),
                             .t_stride = padded,
                             .piece = {{0, (uint32_t)k}},
                             .n = k,
                             .y = gpu_copy(dx, rows * k * sizeof *dx),
                             .y_stride = k};
    GPU_OK(cudaDeviceSynchronize());
    GPU_OK(iv_gpu_adapter_outer(&x, NULL));
    got = host_copy(x.y, rows * k * sizeof *got);
    iv_ref_adapter ref = {.arithmetic = kind->arithmetic, .type = kind->type, .rank = rank, .inputs = k, .a = a};
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < k; j++)
            dx[i * k + j] = iv_ref_adapter_input_gradient(&ref, dt + i * padded * width, j, dx[i * k + j]);
    assert_same_bits("dx", dx, got, rows * k, sizeof *dx, false);
    free(masters), free(dx), free(got), free(a), free(dt);
    cudaFree(factor), cudaFree(on), cudaFree(there), cudaFree((void *)(uintptr_t)x.parts), cudaFree(x.t), cudaFree(x.y);
}

static void gradients_of_inputs(void **state) {
    (void)state;
    rng r = rng_start("gradients of inputs");
    for (size_t i = 0; i < trials(60, 3000); i++) one_input_gradient(&r, &learn_kinds[i % 5]);
    for (size_t i = 0; i < trials(60, 3000); i++) several_terms(&r, &learn_kinds[i % 2]);
}

#endif
