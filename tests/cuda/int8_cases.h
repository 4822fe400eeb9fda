/* int8_cases.h: random int8 layers, their reference and the comparison, shared by test_int8.c and
 * test_emulated_int8.c. */
#ifndef IV_TESTS_CUDA_INT8_CASES_H
#define IV_TESTS_CUDA_INT8_CASES_H

#include "cuda/linear_problem.h"
#include "kernels/cuda/int8.h"
#include "kernels/tree_allreduce.h"

typedef struct int8_shape {
    iv_dtype type;
    size_t rows, n, k;
    int terms;
    iv_gpu_epilogue epilogue;
    bool bias, weighted, packed, extreme; /* extreme: codes of the largest size, with one sign */
    size_t experts, first, count, experts_per_token;
    family fx;
    size_t samples; /* 0: all */
} int8_shape;

typedef struct int8_problem {
    problem p;
    int8_shape s;
    iv_gpu_int8_args a;
    int8_t *w; /* [matrix]: codes, then scales */
    size_t matrix;
    int8_t *codes; /* of x: [x_rows][terms][code_stride] */
    float *scales;
    iv_gpu_int8_rows rows;
    int32_t *want_sums; /* [rows][terms][n] at sampled outputs */
} int8_problem;

static const float *scales_of_matrix(const int8_problem *q, size_t expert) {
    return (const float *)(const void *)(q->w + expert * q->matrix + q->s.n * q->a.l.w.k_padded);
}

static void int8_sums(const int8_problem *q, size_t expert, size_t x_row, size_t n, int32_t sums[2]) {
    const int8_t *x = q->codes + x_row * (size_t)q->s.terms * q->a.code_stride;
    const int8_t *w = q->w + expert * q->matrix + n * q->a.l.w.k_padded;
    for (int t = 0; t < q->s.terms; t++) sums[t] = iv_ref_int8_sum(x + (size_t)t * q->a.code_stride, w, q->s.k);
}

/* One output by the law, with bias. */
static float int8_reference(const int8_problem *q, size_t expert, size_t x_row, size_t n) {
    int32_t sums[2];
    int8_sums(q, expert, x_row, n, sums);
    float y = iv_ref_int8_result(sums, q->s.terms, q->scales[x_row], scales_of_matrix(q, expert)[n]);
    return q->p.bias ? iv_canonical(y + q->p.bias[n]) : y;
}

static void int8_refer(const int8_problem *q, size_t expert, size_t x_row, size_t out_row, size_t column,
                       float weight) {
    const problem *p = &q->p;
    size_t at = GUARD + out_row * p->a.out_stride + column;
    if (p->a.epilogue == IV_GPU_SWIGLU) {
        size_t gate = column / 8 * 16 + column % 8;
        float g = int8_reference(q, expert, x_row, gate), u = int8_reference(q, expert, x_row, gate + 8), y;
        iv_ref_activate(&iv_silu, &g, &u, 1, &y);
        put_type(p->a.type, p->want, at, iv_canonical(y));
        return;
    }
    float *out = (float *)(void *)p->want + at, y = int8_reference(q, expert, x_row, column);
    if (p->a.weighted) y = iv_canonical(weight * y);
    *out = p->a.epilogue == IV_GPU_RESIDUAL ? iv_canonical(*out + y) : y;
}

static void int8_sample(void *context, size_t index, size_t worker) {
    (void)worker;
    const int8_problem *q = context;
    const problem *p = &q->p;
    size_t column = p->sample[index];
    if (!p->a.groups) {
        for (size_t row = 0; row < p->a.rows; row++) {
            int32_t sums[2];
            int8_refer(q, 0, row, row, column, 1.0f);
            int8_sums(q, 0, row, column, sums);
            for (size_t t = 0; t < (size_t)q->s.terms; t++)
                q->want_sums[(row * (size_t)q->s.terms + t) * q->s.n + column] = sums[t];
        }
        return;
    }
    for (size_t e = 0; e < p->g.count; e++)
        for (int32_t i = p->offsets[p->g.first + e]; i < p->offsets[p->g.first + e + 1]; i++) {
            size_t slot = (size_t)p->slots[i];
            if (p->a.weighted)
                int8_refer(q, e, (size_t)i, slot, column, p->weights[slot]);
            else
                int8_refer(q, e, p->g.packed ? (size_t)i : slot / p->g.experts_per_token, (size_t)i, column, 1.0f);
        }
}

static void make_int8_weights(rng *r, int8_problem *q) {
    size_t kp = q->a.l.w.k_padded, matrices = q->s.experts ? q->s.count : 1, n = q->s.n;
    q->matrix = (n * (kp + sizeof(float)) + 15) / 16 * 16 + 16 * rng_below(r, 3);
    q->w = calloc(matrices, q->matrix);
    for (size_t e = 0; e < matrices; e++) {
        int8_t *codes = q->w + e * q->matrix;
        float *scales = (float *)(void *)(codes + n * kp);
        for (size_t i = 0; i < n; i++) {
            for (size_t k = 0; k < q->s.k; k++) codes[i * kp + k] = q->s.extreme ? -128 : (int8_t)rng_next(r);
            scales[i] = random_float(r, rng_below(r, 4) ? NORMAL : WIDE);
        }
    }
    q->a.l.w.data = device(q->w, matrices * q->matrix);
    q->a.l.w.expert_bytes = q->s.experts ? q->matrix : 0;
}

/* x and what becomes of it; one row may be of zeros, tiny, or not finite. */
static void make_int8_rows(rng *r, int8_problem *q) {
    problem *p = &q->p;
    size_t e = iv_dtype_bytes(q->s.type), kp = q->a.l.w.k_padded;
    bool whole = rng_below(r, 4) != 0; /* aligned rows */
    size_t stride = whole ? kp + 8 * rng_below(r, 3) : q->s.k + rng_below(r, 5);
    p->x_rows = q->s.weighted || q->s.packed ? q->s.rows * q->s.experts_per_token : q->s.rows;
    unsigned char *x = random_values(r, q->s.fx, q->s.type, p->x_rows * stride);
    for (size_t row = 0; row < p->x_rows; row++)
        for (size_t i = 0; i < q->s.k; i++) {
            if (q->s.extreme) put_type(q->s.type, x, row * stride + i, 3.0f);
            if (row % 7 == 3) put_type(q->s.type, x, row * stride + i, row % 2 ? 0.0f : -0.0f);
        }
    if (rng_below(r, 3) == 0)
        put_type(q->s.type, x, rng_below(r, p->x_rows) * stride, rng_below(r, 2) ? NAN : INFINITY);
    q->a.code_stride = kp + 16 * rng_below(r, 3);
    q->codes = calloc(p->x_rows * (size_t)q->s.terms, q->a.code_stride);
    q->scales = calloc(p->x_rows, sizeof *q->scales);
    for (size_t row = 0; row < p->x_rows; row++) {
        const unsigned char *from = x + row * stride * e;
        int8_t *to = q->codes + row * (size_t)q->s.terms * q->a.code_stride;
        iv_int8_scale s = iv_ref_int8_scale(iv_ref_int8_magnitude(q->s.type, from, q->s.k), q->s.terms);
        q->scales[row] = s.scale;
        iv_ref_int8_codes(q->s.type, from, q->s.k, s.inverse, q->s.terms, to, to + q->a.code_stride);
    }
    p->x = x;
    void *codes = NULL, *scales = NULL;
    size_t code_bytes = (p->x_rows * (size_t)q->s.terms + 256) * q->a.code_stride; /* tiles read behind the last row */
    CUDA(cudaMalloc(&codes, code_bytes));
    CUDA(cudaMalloc(&scales, (p->x_rows + 1) * sizeof(float)));
    CUDA(cudaMemset(codes, 0x5a, code_bytes));
    q->rows = (iv_gpu_int8_rows){.type = q->s.type,
                                 .x = device(x, p->x_rows * stride * e),
                                 .x_stride = stride,
                                 .k = q->s.k,
                                 .rows = p->x_rows,
                                 .terms = q->s.terms,
                                 .codes = codes,
                                 .code_stride = q->a.code_stride,
                                 .scales = scales};
    q->a.codes = codes, q->a.scales = scales;
}

static void make_int8_problem(rng *r, const int8_shape *s, int8_problem *q) {
    *q = (int8_problem){.s = *s};
    problem *p = &q->p;
    iv_gpu_linear_args *a = &p->a;
    a->type = s->type, a->rows = s->rows, a->epilogue = s->epilogue;
    a->w = (iv_gpu_matrix){.format = IV_WEIGHT_INT8,
                           .type = s->type,
                           .n = s->n,
                           .k_padded = iv_padded_k(s->k),
                           .leaves = 1,
                           .terms = s->terms};
    q->a.l = *a;
    make_int8_weights(r, q);
    make_int8_rows(r, q);
    a->w = q->a.l.w;
    if (s->bias) p->bias = random_values(r, NORMAL, IV_F32, s->n), a->bias = device(p->bias, s->n * sizeof(float));
    p->out_rows = s->experts ? s->rows * s->experts_per_token : s->rows;
    p->out_columns = s->epilogue == IV_GPU_SWIGLU ? s->n / 2 : s->n;
    if (s->experts) {
        p->g = (iv_gpu_groups){.experts = s->experts,
                               .first = s->first,
                               .count = s->count,
                               .experts_per_token = s->experts_per_token,
                               .packed = s->packed};
        route(r, p, s->rows, s->rows - rng_below(r, 2));
        a->groups = &p->g, a->weighted = s->weighted;
    }
    shape adjacent = {.adjacent = rng_below(r, 2) != 0};
    make_output(r, &adjacent, p);
    p->samples = s->samples && s->samples < p->out_columns ? s->samples : p->out_columns;
    p->sample = malloc(p->samples * sizeof *p->sample);
    for (size_t i = 0; i < p->samples; i++)
        p->sample[i] = i * p->out_columns / p->samples + rng_below(r, p->out_columns / p->samples);
    q->want_sums = calloc(s->rows * (size_t)s->terms * s->n, sizeof *q->want_sums);
    iv_pool_run(pool, p->samples, int8_sample, q);
    q->a.l = *a;
}

static void free_int8_problem(int8_problem *q) {
    free(q->w), free(q->codes), free(q->scales), free(q->want_sums);
    CUDA(cudaFree((void *)(uintptr_t)q->rows.x));
    CUDA(cudaFree(q->rows.codes));
    CUDA(cudaFree(q->rows.scales));
    q->p.a.w.data = q->a.l.w.data; /* free_problem has w as its own */
    q->p.w = NULL, q->p.a.x = NULL;
    free_problem(&q->p);
}

/* ---- comparing ------------------------------------------------------------------------------------------------ */

static void describe_int8(const int8_problem *q, const iv_gpu_int8_config *c, char *text, size_t bytes) {
    char config[120] = "rows";
    const int8_shape *s = &q->s;
    if (c) iv_gpu_int8_describe(c, config, sizeof config);
    snprintf(text, bytes, "%s: %s, %d terms, rows %zu n %zu k %zu epilogue %d bias %d experts %zu of %zu weighted %d",
             config, iv_dtype_name(s->type), s->terms, s->rows, s->n, s->k, (int)s->epilogue, s->bias, s->count,
             s->experts, s->weighted);
}

static void compare_codes(const int8_problem *q, const char *what) {
    size_t bytes = q->p.x_rows * (size_t)q->s.terms * q->a.code_stride, of_scales = q->p.x_rows * sizeof(float);
    int8_t *codes = malloc(bytes);
    float *scales = malloc(of_scales);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(codes, q->rows.codes, bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(scales, q->rows.scales, of_scales, cudaMemcpyDeviceToHost));
    assert_same_bits(what, q->scales, scales, q->p.x_rows, sizeof *scales, false);
    assert_same_bits(what, q->codes, codes, bytes, 1, false);
    free(codes), free(scales);
}

/* Rows become codes: at once, and from magnitudes of parts. */
static void try_int8_rows(rng *r, int8_problem *q) {
    char text[300];
    describe_int8(q, NULL, text, sizeof text);
    CUDA(iv_gpu_int8_quantize(&q->rows, NULL));
    compare_codes(q, text);
    size_t cut = rng_below(r, q->s.k + 1), bytes = q->p.x_rows * sizeof(uint32_t), e = iv_dtype_bytes(q->s.type);
    iv_gpu_int8_rows parts = q->rows;
    uint32_t *part[2];
    for (int i = 0; i < 2; i++) {
        CUDA(cudaMalloc((void **)&part[i], bytes));
        CUDA(iv_gpu_int8_magnitudes(q->s.type, (const char *)q->rows.x + (i ? cut * e : 0), q->rows.x_stride,
                                    i ? q->s.k - cut : cut, q->p.x_rows, part[i], NULL));
        parts.part[i] = part[i];
    }
    parts.parts = 2;
    CUDA(cudaMemset(q->rows.codes, 0x5a, q->p.x_rows * (size_t)q->s.terms * q->a.code_stride));
    CUDA(iv_gpu_int8_quantize(&parts, NULL));
    compare_codes(q, text);
    CUDA(cudaFree(part[0]));
    CUDA(cudaFree(part[1]));
}

/* A configuration, NULL: the chosen one. Its outputs, or its sums. */
static void try_int8_config(int8_problem *q, const iv_gpu_int8_config *c) {
    problem *p = &q->p;
    iv_gpu_int8_config chosen = iv_gpu_int8_choose(&q->a);
    char text[300];
    if (!c) c = &chosen;
    describe_int8(q, c, text, sizeof text);
    CUDA(cudaMemcpy((char *)p->a.out - GUARD * p->out_element, p->before, p->out_bytes, cudaMemcpyHostToDevice));
    CUDA(iv_gpu_int8_linear_with(&q->a, c, NULL));
    int code = (int)cudaDeviceSynchronize();
    if (code) fail_msg("%s: %s", text, cudaGetErrorString((cudaError_t)code));
    CUDA(cudaMemcpy(p->got, (char *)p->a.out - GUARD * p->out_element, p->out_bytes, cudaMemcpyDeviceToHost));
    if (differences(p, text)) fail_msg("%s: outputs differ", text);
    if (!guards_stand(p)) fail_msg("%s: it wrote outside of its rows", text);
    configurations_run++;
}

static void try_int8_sums(int8_problem *q, const iv_gpu_int8_config *c) {
    size_t count = q->s.rows * (size_t)q->s.terms * q->s.n;
    iv_gpu_int8_args a = q->a;
    char text[300];
    int32_t *got = malloc(count * sizeof *got);
    if (q->s.experts) return free(got);
    describe_int8(q, c, text, sizeof text);
    CUDA(cudaMalloc((void **)&a.sums, count * sizeof *got));
    a.l.epilogue = IV_GPU_STORE, a.l.bias = NULL, a.l.out = NULL;
    CUDA(iv_gpu_int8_linear_with(&a, c, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(got, a.sums, count * sizeof *got, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < q->p.samples && q->s.epilogue != IV_GPU_SWIGLU; i++)
        for (size_t row = 0; row < q->s.rows * (size_t)q->s.terms; row++) {
            size_t at = row * q->s.n + q->p.sample[i];
            if (got[at] != q->want_sums[at])
                fail_msg("%s: sum %zu of row %zu: wanted %d, got %d", text, q->p.sample[i], row, q->want_sums[at],
                         got[at]);
        }
    CUDA(cudaFree(a.sums));
    free(got);
}

static int8_shape random_int8_shape(rng *r) {
    int8_shape s = {.type = (iv_dtype[]){IV_BF16, IV_F16, IV_F32}[rng_below(r, 3)]};
    s.terms = 1 + (int)rng_below(r, 2);
    s.rows = rng_below(r, 3) ? 1 + rng_below(r, 20) : 1 + rng_below(r, 150);
    s.epilogue = (iv_gpu_epilogue)rng_below(r, 3);
    s.n = s.epilogue == IV_GPU_SWIGLU ? 16 * (1 + rng_below(r, 12)) : 1 + rng_below(r, 200);
    s.k = rng_below(r, 2) ? 128 * (1 + rng_below(r, 6)) : 1 + rng_below(r, 700);
    s.bias = rng_below(r, 3) == 0, s.extreme = rng_below(r, 8) == 0;
    s.fx = (family)rng_below(r, FAMILIES);
    if (rng_below(r, 40) == 0) s.k = 65536 - rng_below(r, 40), s.n = s.n > 48 ? 48 : s.n, s.rows = 1 + s.rows % 9;
    if (rng_below(r, 4) == 0) {
        s.experts = 1 + rng_below(r, 9), s.count = 1 + rng_below(r, s.experts);
        s.first = rng_below(r, s.experts - s.count + 1),
        s.experts_per_token = 1 + rng_below(r, s.experts < 4 ? s.experts : 4);
        s.weighted = s.epilogue == IV_GPU_STORE && rng_below(r, 2), s.packed = !s.weighted && rng_below(r, 2);
        s.epilogue = s.epilogue == IV_GPU_RESIDUAL ? IV_GPU_STORE : s.epilogue, s.bias = false;
    }
    return s;
}

/* ---- norms and the sums of ranks -------------------------------------------------------------------------------- */

/* A norm that writes codes is the norm, then its rows' codes. */
static void norm_has_the_codes_of_its_rows(rng *r) {
    iv_dtype type = (iv_dtype[]){IV_BF16, IV_F16, IV_F32}[rng_below(r, 3)];
    size_t rows = 1 + rng_below(r, 9), k = rng_below(r, 2) ? 8 * (1 + rng_below(r, 120)) : 1 + rng_below(r, 900),
           stride = iv_padded_k(k), e = iv_dtype_bytes(type);
    int terms = 1 + (int)rng_below(r, 2);
    size_t bytes = rows * (size_t)terms * stride;
    float *x = random_values(r, (family)rng_below(r, SPECIAL), IV_F32, rows * k),
          *w = random_values(r, NORMAL, IV_F32, k);
    float *gx = device(x, rows * k * sizeof *x), *gw = device(w, k * sizeof *w);
    void *normed[2], *out[2], *scales[2], *got[2][3];
    const size_t sizes[3] = {rows * stride * e, bytes, rows * sizeof(float)};
    for (int i = 0; i < 2; i++) {
        CUDA(cudaMalloc(&normed[i], sizes[0]));
        CUDA(cudaMalloc(&out[i], bytes));
        CUDA(cudaMalloc(&scales[i], sizes[2]));
        iv_gpu_int8_rows q = {.type = type,
                              .x = normed[i],
                              .x_stride = stride,
                              .k = k,
                              .rows = rows,
                              .terms = terms,
                              .codes = out[i],
                              .code_stride = stride,
                              .scales = scales[i]};
        if (i) {
            CUDA(iv_gpu_int8_rmsnorm(gx, gw, 1e-6f, normed[i], stride, &q, NULL));
        } else {
            CUDA(iv_gpu_rmsnorm(gx, k, NULL, gw, 1e-6f, rows, type, normed[i], stride, NULL));
            CUDA(iv_gpu_int8_quantize(&q, NULL));
        }
        CUDA(cudaDeviceSynchronize());
        const void *from[3] = {normed[i], out[i], scales[i]};
        for (int j = 0; j < 3; j++) {
            got[i][j] = malloc(sizes[j]);
            CUDA(cudaMemcpy(got[i][j], from[j], sizes[j], cudaMemcpyDeviceToHost));
        }
        CUDA(cudaFree(normed[i]));
        CUDA(cudaFree(out[i]));
        CUDA(cudaFree(scales[i]));
    }
    for (int j = 0; j < 3; j++) {
        assert_same_bits("norm with codes", got[0][j], got[1][j], sizes[j], 1, false);
        free(got[0][j]), free(got[1][j]);
    }
    free(x), free(w);
    CUDA(cudaFree(gx));
    CUDA(cudaFree(gw));
}

/* Sums of ranks, which wrap modulo 2^32 where they do not fit, as the reference's do. */
static void ranks_have_the_law_of_one(rng *r) {
    size_t rows = 1 + rng_below(r, 7), n = 1 + rng_below(r, 90), parts = 1 + rng_below(r, 8);
    size_t terms = 1 + rng_below(r, 2), each = rows * terms * n;
    float *scales = random_values(r, NORMAL, IV_F32, n), *of_rows = random_values(r, NORMAL, IV_F32, rows);
    float *bias = rng_below(r, 2) ? random_values(r, NORMAL, IV_F32, n) : NULL;
    float *x = random_values(r, NORMAL, IV_F32, rows * n), *got = malloc(rows * n * sizeof *got);
    uint32_t *total = calloc(each, sizeof *total);
    float *gx = device(x, rows * n * sizeof *x);
    iv_gpu_int8_reduction a = {.parts = (int)parts, .terms = (int)terms, .rows = rows, .n = n, .x = gx};
    a.scales = device(scales, n * sizeof *scales), a.row_scales = device(of_rows, rows * sizeof *of_rows);
    a.bias = bias ? device(bias, n * sizeof *bias) : NULL;
    for (size_t i = 0; i < parts; i++) {
        int32_t *part = malloc(each * sizeof *part);
        for (size_t j = 0; j < each; j++)
            part[j] = (int32_t)rng_next(r) >> rng_below(r, 30), total[j] += (uint32_t)part[j];
        a.part[i] = device(part, each * sizeof *part);
        free(part);
    }
    CUDA(iv_gpu_int8_reduce(&a, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(got, gx, rows * n * sizeof *got, cudaMemcpyDeviceToHost));
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < n; i++) {
            int32_t sums[2] = {(int32_t)total[row * terms * n + i], (int32_t)total[(row * terms + terms - 1) * n + i]};
            float y = iv_ref_int8_result(sums, (int)terms, of_rows[row], scales[i]);
            iv_residual_add(&y, bias ? bias + i : NULL, 1, x + row * n + i);
        }
    assert_same_bits("sums of ranks", x, got, rows * n, sizeof *x, false);
    for (size_t i = 0; i < parts; i++) CUDA(cudaFree((void *)(uintptr_t)a.part[i]));
    CUDA(cudaFree((void *)(uintptr_t)a.scales));
    CUDA(cudaFree((void *)(uintptr_t)a.row_scales));
    CUDA(cudaFree((void *)(uintptr_t)a.bias));
    CUDA(cudaFree(gx));
    free(scales), free(of_rows), free(bias), free(x), free(got), free(total);
}

#endif
