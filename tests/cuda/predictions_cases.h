/* predictions_cases.h: the head's row ops of a training step and the embedding's gradient against the scalar reference,
 * shared by test_predictions.c and test_emulated_predictions.c. */
#ifndef IV_TESTS_CUDA_PREDICTIONS_CASES_H
#define IV_TESTS_CUDA_PREDICTIONS_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/learn.h"
#include "numerics/backward.h"
#include "numerics/fma32.h"
#include "numerics/rows.h"

enum { ROWS_MAX = 100 };

static const iv_dtype types[3] = {IV_BF16, IV_F16, IV_F32};

static size_t random_vocab(rng *r) {
    static const size_t usual[] = {1, 2, 10, 255, 256, 257, 512, 1000, 2047, 2048, 2049, 4096, 5003, 8000};
    return usual[rng_below(r, sizeof usual / sizeof *usual)];
}

/* Half of the time 1. */
static float random_temperature(rng *r) {
    static const float usual[] = {0.6f, 0.7f, 1.3f, 2.0f, 0.001f};
    return rng_below(r, 2) ? 1.0f : usual[rng_below(r, sizeof usual / sizeof *usual)];
}

/* Logits; in some rows all are -infinity, or NaN, or zeros of both signs. */
static float *random_logits(rng *r, size_t rows, size_t stride) {
    family f = rng_below(r, 2) ? NORMAL : (family)rng_below(r, FAMILIES);
    float *x = random_values(r, f, IV_F32, rows * stride);
    for (size_t i = 0; i < rows; i++) {
        size_t kind = rng_below(r, 12);
        for (size_t c = 0; c < stride && kind < 3; c++)
            x[i * stride + c] = kind == 0 ? -INFINITY : kind == 1 ? (rng_below(r, 2) ? 0.0f : -0.0f) : NAN;
        if (kind > 2)
            for (size_t c = 0; c < stride; c++) x[i * stride + c] *= 4.0f;
    }
    return x;
}

/* ---- logits ---------------------------------------------------------------------------------------------------- */

/* Gradients that come with statistics; want NULL: none are asked for. */
typedef struct leaves_case {
    iv_gpu_logit_leaves a;
    void *want;
    size_t elements;
} leaves_case;

static leaves_case leaves_make(rng *r, const float *x, size_t rows, size_t vocab, size_t x_stride, const float *max,
                               const float *sum, const int32_t *targets, iv_dtype type) {
    leaves_case l = {.want = NULL};
    if (rng_below(r, 3) == 0 || rows == 0) return l;
    size_t leaves = (size_t)1 << rng_below(r, 4), each = (vocab + leaves - 1) / leaves, width = iv_dtype_bytes(type);
    if (rng_below(r, 2)) each = (each + 15) / 16 * 16;
    size_t stride = rng_below(r, 2) ? (each + 63) / 64 * 64 : each + rng_below(r, 5);
    size_t leaf = rows * stride + (rng_below(r, 2) ? 16 : rng_below(r, 9));
    float c[ROWS_MAX];
    leaves = (vocab + each - 1) / each, l.elements = leaves * leaf;
    void *out = malloc(l.elements * width);
    memset(out, 0xab, l.elements * width);
    l.a = (iv_gpu_logit_leaves){
        .type = type, .out = gpu_copy(out, l.elements * width), .each = each, .stride = stride, .leaf = leaf};
    l.want = out;
    for (size_t i = 0; i < rows; i++) {
        c[i] = random_float(r, rng_below(r, 5) ? NORMAL : SPECIAL);
        for (size_t k = 0; k < leaves; k++) {
            size_t n = each < vocab - k * each ? each : vocab - k * each;
            char *to = (char *)out + (k * leaf + i * stride) * width;
            memset(to, 0, stride * width);
            if (targets[i] >= 0)
                iv_ref_logits_backward(x + i * x_stride + k * each, k * each, n, max[i], sum[i], c[i],
                                       (size_t)targets[i], type, to);
        }
    }
    l.a.coefficients = gpu_copy(c, rows * sizeof *c);
    return l;
}

static void leaves_check(leaves_case *l) {
    if (!l->want) return;
    assert_gpu_has("gradients of logits", l->want, l->a.out, l->elements, iv_dtype_bytes(l->a.type), false);
    cudaFree(l->a.out), cudaFree((void *)(uintptr_t)l->a.coefficients), free(l->want);
}

static void statistics_of_logits(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("statistics of logits");
    static const size_t large[] = {8192, 8193, 9000, 12345, 20480, 33001};
    static const size_t huge[] = {151936, 160000, 250000, 250001}; /* with three, two and one rows at once */
    size_t other_order = 0;
    for (size_t trial = 0; trial < trials(60, 800); trial++) {
        bool is_large = rng_below(&r, 5) == 0;                      /* in clusters, where a GPU has them */
        bool is_huge = trial % 16 == 7, is_long = trial % 16 == 11; /* long: clusters have many rows */
        size_t vocab = is_huge               ? huge[rng_below(&r, 4)]
                       : is_large || is_long ? large[rng_below(&r, is_long ? 3 : 6)]
                                             : random_vocab(&r);
        size_t rows = is_long ? 50 + rng_below(&r, 50) : rng_below(&r, is_huge ? 5 : 10);
        size_t stride = vocab + rng_below(&r, 2) * rng_below(&r, 20);
        float t = random_temperature(&r), *x = random_logits(&r, rows, stride);
        float max[ROWS_MAX], sum[ROWS_MAX], logprob[ROWS_MAX];
        int32_t targets[ROWS_MAX];
        float *gpu_x = gpu_copy(x, rows * stride * sizeof *x);
        for (size_t i = 0; i < rows; i++) {
            float *row = x + i * stride, plain = 0.0f;
            targets[i] = rng_below(&r, 5) ? (int32_t)rng_below(&r, vocab) : -1;
            for (size_t c = 0; c < vocab && t != 1.0f; c++) row[c] = row[c] / t;
            iv_ref_sum_exp(row, vocab, &max[i], &sum[i]);
            logprob[i] = targets[i] < 0 ? 0.0f : (row[targets[i]] - max[i]) - iv_ref_log(sum[i]);
            for (size_t c = 0; c < vocab; c++) plain += iv_ref_exp(row[c] - max[i]);
            other_order += isfinite(plain) && plain != sum[i];
        }
        int32_t *gpu_targets = gpu_copy(targets, rows * sizeof *targets);
        float *out = gpu_room(3 * rows * sizeof *out);
        leaves_case l = leaves_make(&r, x, rows, vocab, stride, max, sum, targets, types[trial % 3]);
        GPU_OK(iv_gpu_logit_statistics(gpu_x, rows, vocab, stride, t, gpu_targets, out, out + rows, out + 2 * rows,
                                       l.want ? &l.a : NULL, NULL));
        leaves_check(&l);
        assert_gpu_has("divided logits", x, gpu_x, rows * stride, sizeof *x, true);
        assert_gpu_has("maxima", max, out, rows, sizeof *max, false);
        assert_gpu_has("sums", sum, out + rows, rows, sizeof *sum, true);
        assert_gpu_has("log-probabilities", logprob, out + 2 * rows, rows, sizeof *logprob, true);
        cudaFree(gpu_x), cudaFree(gpu_targets), cudaFree(out), free(x);
    }
    assert_true(other_order > 0); /* sums in plain order differ: the comparison can fail */
    assert_int_not_equal(0, iv_gpu_logit_statistics(NULL, 1, 8, 8, 0.0f, NULL, NULL, NULL, NULL, NULL, NULL));
    assert_int_not_equal(0, iv_gpu_logit_statistics(NULL, 1, 8, 7, 1.0f, NULL, NULL, NULL, NULL, NULL, NULL));
}

static void logits_backward_trial(rng *r, iv_dtype type) {
    size_t vocab = random_vocab(r), rows = rng_below(r, 10), first = rng_below(r, vocab), width = iv_dtype_bytes(type);
    if (rng_below(r, 2)) first = first / 16 * 16;
    size_t n = 1 + rng_below(r, vocab - first), x_stride = rng_below(r, 2) ? (n + 3) / 4 * 4 : n + rng_below(r, 7);
    size_t stride = rng_below(r, 2) ? (n + 31) / 16 * 16 : n + rng_below(r, 9);
    float t = random_temperature(r), *x = random_logits(r, rows, vocab), c[10], max[10], sum[10];
    float *block = random_values(r, NORMAL, IV_F32, rows * x_stride);
    int32_t targets[10];
    iv_logit_shape shape = {1.0f, 0.0f};
    if (rng_below(r, 3) == 0) shape = (iv_logit_shape){rng_below(r, 2) ? 8.0f : 1.0f, rng_below(r, 2) ? 30.0f : 0.0f};
    void *want = calloc(rows * stride + 1, width);
    float *d = malloc(vocab * sizeof *d);
    for (size_t i = 0; i < rows; i++) {
        float *row = x + i * vocab;
        memcpy(block + i * x_stride, row + first, n * sizeof *block);
        targets[i] =
            rng_below(r, 5) == 0 ? -1 : (int32_t)(rng_below(r, 3) ? first + rng_below(r, n) : rng_below(r, vocab));
        c[i] = random_float(r, rng_below(r, 5) ? NORMAL : SPECIAL);
        for (size_t k = 0; k < vocab && t != 1.0f; k++) row[k] = row[k] / t;
        iv_ref_sum_exp(row, vocab, &max[i], &sum[i]);
        if (targets[i] < 0) continue;
        iv_ref_logits_backward(row + first, first, n, max[i], sum[i], c[i], (size_t)targets[i], IV_F32, d);
        for (size_t k = 0; k < n; k++)
            put_type(type, want, i * stride + k,
                     iv_canonical(iv_ref_shape_gradient(shape, block[i * x_stride + k], d[k])));
    }
    float *gpu_x = gpu_copy(block, rows * x_stride * sizeof *block), *gpu_c = gpu_copy(c, rows * sizeof *c);
    float *gpu_max = gpu_copy(max, rows * sizeof *max), *gpu_sum = gpu_copy(sum, rows * sizeof *sum);
    int32_t *gpu_targets = gpu_copy(targets, rows * sizeof *targets);
    void *out = gpu_room(rows * stride * width);
    GPU_OK(iv_gpu_logits_backward(gpu_x, x_stride, first, n, rows, t, gpu_targets, gpu_c, gpu_max, gpu_sum, shape, type,
                                  out, stride, NULL));
    assert_gpu_has("gradients of logits", want, out, rows * stride, width, false);
    cudaFree(gpu_x), cudaFree(gpu_c), cudaFree(gpu_max), cudaFree(gpu_sum), cudaFree(gpu_targets), cudaFree(out);
    free(d), free(x), free(block), free(want);
}

static void logits_backward(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("logits backward");
    for (size_t trial = 0; trial < trials(80, 1000); trial++) logits_backward_trial(&r, types[trial % 3]);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static void added_nodes(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("added nodes");
    size_t flushed = 0;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        size_t n = rng_below(&r, 3) ? 4 * rng_below(&r, 1500) : rng_below(&r, 5000);
        bool fma32 = trial % 2, flushes = trial % 4 == 1, result = rng_below(&r, 2);
        bool alone = result && !flushes && rng_below(&r, 2);
        float *a = random_values(&r, flushes ? SUBNORMAL : (family)rng_below(&r, FAMILIES), IV_F32, n);
        float *b = random_values(&r, flushes ? SUBNORMAL : (family)rng_below(&r, FAMILIES), IV_F32, n);
        float *gpu_a = gpu_copy(a, n * sizeof *a), *gpu_b = gpu_copy(b, n * sizeof *b);
        for (size_t i = 0; i < n; i++) {
            float sum = alone ? b[i] : fma32 ? iv_add_ftz(a[i], b[i]) : a[i] + b[i];
            flushed += !alone && fma32 && isfinite(sum) && sum != a[i] + b[i];
            b[i] = result ? iv_canonical(sum) : sum;
        }
        GPU_OK(iv_gpu_add_nodes(fma32 ? IV_FMA32 : IV_TC16, alone ? NULL : gpu_a, gpu_b, n, result, NULL));
        assert_gpu_has("nodes", b, gpu_b, n, sizeof *b, !result);
        cudaFree(gpu_a), cudaFree(gpu_b), free(a), free(b);
    }
    assert_true(flushed > 0);
}

/* ---- look-ups --------------------------------------------------------------------------------------------------- */

enum { IDS = 40 };

/* The sum over an id's rows, per virtual rank and in the tree; in `plain` without ranks. */
static void want_lookups(const iv_gpu_lookups_args *a, size_t id, float *out, float *plain) {
    float *node = calloc(a->ranks * a->hidden, sizeof *node);
    memset(plain, 0, a->hidden * sizeof *plain);
    for (int32_t i = a->first[id]; i < a->first[id + 1]; i++)
        for (size_t c = 0; c < a->hidden; c++) {
            float x = a->dx[(size_t)a->order[i] * a->hidden + c], *s = &node[a->rank[a->order[i]] * a->hidden + c];
            *s = iv_canonical(*s + x), plain[c] = plain[c] + x;
        }
    for (size_t stride = 1; stride < a->ranks; stride *= 2)
        for (size_t v = 0; v < a->ranks; v += 2 * stride)
            for (size_t c = 0; c < a->hidden; c++)
                node[v * a->hidden + c] = node[v * a->hidden + c] + node[(v + stride) * a->hidden + c];
    memcpy(out, node, a->hidden * sizeof *out);
    free(node);
}

static size_t lookup_trial(rng *r) {
    static const size_t widths[] = {1, 3, 64, 66, 128, 516, 700, 1024};
    size_t hidden = widths[rng_below(r, 8)], count = rng_below(r, 8), entries = 0, differ = 0;
    size_t ranks = (size_t)1 << rng_below(r, IV_VIRTUAL_LEVELS_MAX + 1);
    int32_t ids[IDS], first[IDS + 1];
    for (size_t i = 0; i < IDS; i++) ids[i] = (int32_t)i;
    for (size_t i = 0; i < count; i++) { /* distinct, in any order */
        size_t j = i + rng_below(r, IDS - i);
        int32_t t = ids[i];
        ids[i] = ids[j], ids[j] = t, first[i] = (int32_t)entries;
        entries += rng_below(r, 4) ? rng_below(r, 9) : rng_below(r, 150);
    }
    first[count] = (int32_t)entries;
    size_t rows = entries + 1;
    int32_t *order = malloc(rows * sizeof *order);
    uint8_t *rank = malloc(rows);
    bool sorted = rng_below(r, 2);
    for (size_t i = 0; i < rows; i++) {
        order[i] = (int32_t)i;
        rank[i] = (uint8_t)(sorted ? i * ranks / rows : rng_below(r, ranks));
    }
    for (size_t i = 0; i < entries && !sorted; i++) {
        size_t j = i + rng_below(r, entries - i);
        int32_t t = order[i];
        order[i] = order[j], order[j] = t;
    }
    float *dx = random_values(r, rng_below(r, 3) ? NORMAL : (family)rng_below(r, FAMILIES), IV_F32, rows * hidden);
    float *out = malloc(IDS * hidden * sizeof *out), *plain = malloc(hidden * sizeof *plain);
    memset(out, 0xa5, IDS * hidden * sizeof *out);
    iv_gpu_lookups_args want = {dx, hidden, ids, first, order, count, rank, ranks, out}, a = want;
    a.dx = gpu_copy(dx, rows * hidden * sizeof *dx), a.ids = gpu_copy(ids, sizeof ids);
    a.first = gpu_copy(first, (count + 1) * sizeof *first), a.order = gpu_copy(order, rows * sizeof *order);
    a.rank = gpu_copy(rank, rows), a.out = gpu_room(IDS * hidden * sizeof *out);
    for (size_t i = 0; i < count; i++) {
        float *to = out + (size_t)ids[i] * hidden;
        want_lookups(&want, i, to, plain);
        differ += memcmp(to, plain, hidden * sizeof *to) != 0;
    }
    GPU_OK(iv_gpu_lookups(&a, NULL));
    assert_gpu_has("look-ups", out, a.out, IDS * hidden, sizeof *out, true);
    cudaFree((void *)a.dx), cudaFree((void *)a.ids), cudaFree((void *)a.first), cudaFree((void *)a.order);
    cudaFree((void *)a.rank), cudaFree(a.out), free(order), free(rank), free(dx), free(out), free(plain);
    return differ;
}

static void summed_lookups(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("look-ups");
    size_t differ = 0;
    for (size_t trial = 0; trial < trials(80, 1000); trial++) differ += lookup_trial(&r);
    assert_true(differ > 0); /* sums without virtual ranks differ */
}

#define PREDICTIONS_CASES(test) \
    test(statistics_of_logits), test(logits_backward), test(added_nodes), test(summed_lookups)

#endif
