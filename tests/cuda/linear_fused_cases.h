/* linear_fused_cases.h: linear layers with the epilogues of training steps against the same layers without, followed by
 * the ops that the epilogues replace; shared by test_linear_fused.c and test_emulated_linear_fused.c. */
#ifndef IV_TESTS_CUDA_LINEAR_FUSED_CASES_H
#define IV_TESTS_CUDA_LINEAR_FUSED_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/learn.h"

typedef enum fused_kind { ADDEND, GATES, ROUND, LOGITS, FUSED_KINDS } fused_kind;

static const char *const kind_names[] = {"addend", "gates and ups", "rounded", "gradients of logits"};
static size_t fused_compared[FUSED_KINDS];

typedef struct fused_case {
    fused_kind kind;
    iv_gpu_linear_args a; /* the fused layer, of the GPU */
    size_t out_bytes, part_bytes;
    int32_t *targets;
    float *coefficients, *max, *sum;
    void *want, *want_gate, *want_up; /* GPU */
} fused_case;

static void *random_on_gpu(rng *r, family f, iv_dtype type, size_t n) {
    void *host = random_values(r, f, type, n), *gpu = gpu_copy(host, n * iv_dtype_bytes(type));
    free(host);
    return gpu;
}

/* Rows of predictions, some of them padding. */
static void make_logits(rng *r, fused_case *c) {
    size_t rows = c->a.rows;
    int32_t *targets = malloc(rows * sizeof *targets);
    float *sum = random_values(r, NORMAL, IV_F32, rows);
    c->a.fused.first = 16 * rng_below(r, 5);
    for (size_t i = 0; i < rows; i++) {
        targets[i] = rng_below(r, 5) ? (int32_t)(c->a.fused.first + rng_below(r, c->a.w.n)) : -1;
        sum[i] = 1.0f + sum[i] * sum[i];
    }
    c->targets = gpu_copy(targets, rows * sizeof *targets), c->sum = gpu_copy(sum, rows * sizeof *sum);
    c->coefficients = random_on_gpu(r, NORMAL, IV_F32, rows), c->max = random_on_gpu(r, NORMAL, IV_F32, rows);
    iv_gpu_logit_row *all = gpu_room(rows * sizeof *all);
    GPU_OK(iv_gpu_logit_rows(c->targets, c->coefficients, c->max, c->sum, rows, all, NULL));
    c->a.fused.logits = all, c->a.fused.temperature = rng_below(r, 2) ? 1.0f : 0.7f;
    free(targets), free(sum);
}

/* k_max: at least 128. */
static void make_case(rng *r, fused_case *c, fused_kind kind, size_t rows_max, size_t n_max, size_t k_max) {
    static const iv_dtype halves[] = {IV_BF16, IV_F16};
    iv_dtype type = halves[rng_below(r, 2)];
    int leaves = 1 << rng_below(r, 4);
    size_t rows = 1 + rng_below(r, rows_max), n = 16 * (1 + rng_below(r, n_max / 16)),
           k = 16 * (size_t)leaves * (1 + rng_below(r, k_max / 16 / (size_t)leaves));
    family f = rng_below(r, 3) ? NORMAL : (family)rng_below(r, FAMILIES);
    *c = (fused_case){.kind = kind};
    c->a = (iv_gpu_linear_args){
        .arithmetic = IV_TC16,
        .w = {.format = iv_weight_plain(type), .type = type, .n = n, .k_padded = k, .leaves = leaves},
        .type = type,
        .x_stride = k + 8 * rng_below(r, 3),
        .rows = rows};
    c->a.w.data = random_on_gpu(r, f, type, n * k), c->a.x = random_on_gpu(r, f, type, rows * c->a.x_stride);
    size_t columns = kind == GATES ? n / 2 : n, element = kind == ADDEND ? 4 : 2;
    c->a.out_stride = columns + 8 * rng_below(r, 4), c->out_bytes = rows * c->a.out_stride * element;
    c->part_bytes = rows * (n / 2) * 2;
    c->a.out = gpu_room(c->out_bytes), c->want = gpu_room(c->out_bytes);
    if (kind != GATES && rng_below(r, 2)) c->a.bias = random_on_gpu(r, NORMAL, IV_F32, n);
    c->a.epilogue = kind == ADDEND  ? IV_GPU_RESIDUAL
                    : kind == GATES ? IV_GPU_SWIGLU
                    : kind == ROUND ? IV_GPU_ROUND
                                    : IV_GPU_LOGITS;
    if (kind == ADDEND) c->a.fused.addend = random_on_gpu(r, NORMAL, IV_F32, rows * c->a.out_stride);
    if (kind == GATES) c->a.fused.gate = gpu_room(c->part_bytes), c->a.fused.up = gpu_room(c->part_bytes);
    if (kind == GATES) c->want_gate = gpu_room(c->part_bytes), c->want_up = gpu_room(c->part_bytes);
    if (kind == LOGITS) make_logits(r, c);
}

static void free_case(fused_case *c) {
    cudaFree((void *)c->a.w.data), cudaFree((void *)c->a.x), cudaFree(c->a.out), cudaFree(c->want);
    cudaFree((void *)c->a.bias), cudaFree((void *)c->a.fused.addend), cudaFree(c->a.fused.gate);
    cudaFree(c->a.fused.up), cudaFree(c->want_gate), cudaFree(c->want_up), cudaFree((void *)c->a.fused.logits);
    cudaFree(c->targets), cudaFree(c->coefficients), cudaFree(c->max), cudaFree(c->sum);
}

/* By the layer without fusion and the op that follows it. Columns beyond the layer's keep the bytes of gpu_room. */
static void want_case(const fused_case *c) {
    size_t n = c->a.w.n, rows = c->a.rows, columns = c->kind == GATES ? n / 2 : n, element = c->kind == ADDEND ? 4 : 2;
    iv_gpu_linear_args a = c->a;
    float *wide = gpu_room(rows * n * sizeof *wide);
    void *packed = gpu_room(rows * columns * element);
    a.fused = (iv_gpu_fused){0}, a.epilogue = c->kind == ADDEND ? IV_GPU_RESIDUAL : IV_GPU_STORE;
    a.out = c->kind == ADDEND ? c->want : wide, a.out_stride = c->kind == ADDEND ? c->a.out_stride : n;
    if (c->kind == ADDEND) {
        size_t pitch = c->a.out_stride * sizeof(float);
        GPU_OK(cudaMemcpy2DAsync(c->want, pitch, c->a.fused.addend, pitch, n * sizeof(float), rows,
                                 cudaMemcpyDeviceToDevice, NULL));
    }
    GPU_OK(iv_gpu_linear(&a, NULL));
    const iv_gpu_fused *f = &c->a.fused;
    if (c->kind == GATES)
        GPU_OK(iv_gpu_activate_tape(&iv_silu, wide, true, rows, columns, a.type, c->want_gate, c->want_up, packed,
                                    columns, (iv_gpu_row_scales){0}, NULL));
    if (c->kind == ROUND) GPU_OK(iv_gpu_round_rows(wide, n, 0, n, rows, a.type, packed, n, NULL));
    if (c->kind == LOGITS)
        GPU_OK(iv_gpu_logits_backward(wide, n, f->first, n, rows, f->temperature, c->targets, c->coefficients, c->max,
                                      c->sum, (iv_logit_shape){1.0f, 0.0f}, a.type, packed, n, NULL));
    if (c->kind != ADDEND)
        GPU_OK(cudaMemcpy2DAsync(c->want, c->a.out_stride * 2, packed, columns * 2, columns * 2, rows,
                                 cudaMemcpyDeviceToDevice, NULL));
    GPU_OK(cudaDeviceSynchronize());
    cudaFree(wide), cudaFree(packed);
}

static size_t bytes_that_differ(const void *a, const void *b, size_t n) {
    unsigned char *x = host_copy(a, n), *y = host_copy(b, n);
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) bad += x[i] != y[i];
    free(x), free(y);
    return bad;
}

static size_t differences(const fused_case *c) {
    size_t bad = bytes_that_differ(c->want, c->a.out, c->out_bytes);
    if (c->kind != GATES) return bad;
    return bad + bytes_that_differ(c->want_gate, c->a.fused.gate, c->part_bytes) +
           bytes_that_differ(c->want_up, c->a.fused.up, c->part_bytes);
}

static void run_case(const fused_case *c) {
    iv_gpu_linear_config config[64];
    size_t count = iv_gpu_linear_configs(&c->a, config, 64);
    want_case(c);
    for (size_t i = 0; i <= count && i <= 64; i++) { /* the last time as chosen */
        if (i < count && (config[i].family != IV_GPU_WGMMA)) continue;
        GPU_OK(cudaMemset(c->a.out, 0xa5, c->out_bytes));
        if (c->kind == GATES) GPU_OK(cudaMemset(c->a.fused.gate, 0xa5, c->part_bytes));
        if (c->kind == GATES) GPU_OK(cudaMemset(c->a.fused.up, 0xa5, c->part_bytes));
        GPU_OK(i < count ? iv_gpu_linear_with(&c->a, &config[i], NULL) : iv_gpu_linear(&c->a, NULL));
        size_t bad = differences(c);
        if (bad)
            fail_msg("%s: %zu rows, %zu outputs of %zu, %d leaves: %zu bytes differ", kind_names[c->kind], c->a.rows,
                     c->a.w.n, c->a.w.k_padded, c->a.w.leaves, bad);
        fused_compared[c->kind]++;
    }
}

static void check_fused(const char *name, size_t count, size_t rows_max, size_t n_max, size_t k_max) {
    rng r = rng_start(name);
    for (size_t trial = 0; trial < count; trial++) {
        fused_case c;
        make_case(&r, &c, (fused_kind)(trial % FUSED_KINDS), rows_max, n_max, k_max);
        assert_true(iv_gpu_linear_fuses(&c.a));
        run_case(&c);
        free_case(&c);
    }
    for (int i = 0; i < FUSED_KINDS; i++) assert_true(fused_compared[i] > 0);
}

/* The comparison sees a changed weight; what cannot be fused is refused. */
static void fused_controls(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("fused control");
    fused_case c;
    for (int kind = 0; kind < FUSED_KINDS; kind++) {
        size_t caught = 0;
        for (int turn = 0; turn < 20 && !caught; turn++) {
            make_case(&r, &c, (fused_kind)kind, 40, 64, 128);
            run_case(&c);
            GPU_OK(cudaMemset((void *)c.a.w.data, 0x3c, 16));
            want_case(&c);
            caught += differences(&c) != 0;
            iv_gpu_linear_args odd = c.a;
            odd.out = (char *)odd.out + 4;
            assert_false(iv_gpu_linear_fuses(&odd));
            assert_int_not_equal(0, iv_gpu_linear(&odd, NULL));
            odd = c.a, odd.arithmetic = IV_FMA32;
            assert_false(iv_gpu_linear_fuses(&odd));
            assert_int_not_equal(0, iv_gpu_linear(&odd, NULL));
            free_case(&c);
        }
        assert_true(caught);
    }
}

#endif
