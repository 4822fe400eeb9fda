/* latent.c: the two forms of latent attention, compared: absorbed (NUMERICS.md 18), where queries are taken to the
 * latent, and expanded, where keys and values of all heads are made from it for every row that a step reads.
 *
 *     bench_latent [--heads H] [--tokens N] [--threads T]     errors and times on stdout
 *
 * Heads of DeepSeek V3 (128 + 64 over 128, rank 512) with random weights and rows, in bfloat16. Errors are of a head's
 * output before o_proj, against float64 from the same unrounded rows. Times are of one layer without the projections
 * that both forms share. */
#include "measure.h"

#include "device/memory.h"
#include "kernels/attention.h"
#include "kernels/head_products.h"
#include "kernels/linear.h"
#include "numerics/floats.h"

#include <math.h>

enum { RANK = 512, TURNS = 64, KEEPS = 128, VALUE = 128, HEAD = KEEPS + TURNS, KEY = RANK + TURNS, B = 64 };
enum { CHECKED = 24 }; /* rows whose errors are counted */

typedef struct problem {
    size_t heads, tokens;
    float *q, *latent, *turned; /* [tokens][heads][HEAD], [tokens][RANK], [tokens][TURNS] */
    float *up;                  /* [heads][KEEPS + VALUE][RANK], values of bfloat16 */
    float scale;
    iv_compute c;
} problem;

static uint64_t state = 7;
static float uniform(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static float gaussian(void) {
    float x = 0;
    for (int i = 0; i < 12; i++) x += uniform();
    return x * 0.5f;
}

static void *memory(size_t n, size_t each) {
    void *p = iv_memory_alloc(n * each);
    if (!p) abort();
    return p;
}

static float *values(size_t n, float scale, bool rounded) {
    float *x = memory(n, sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = gaussian() * scale;
        if (rounded) x[i] = iv_bf16_to_f32(iv_bf16_from_f32(x[i]));
    }
    return x;
}

static uint16_t *rounded(const float *x, size_t n) {
    uint16_t *y = memory(n, sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = iv_bf16_from_f32(x[i]);
    return y;
}

/* One row's output of one head in float64. */
static void exact(const problem *p, size_t row, size_t head, double *out) {
    const float *q = p->q + (row * p->heads + head) * HEAD, *up = p->up + head * (KEEPS + VALUE) * RANK;
    double z[RANK] = {0}, o[RANK] = {0}, max = -INFINITY, sum = 0, *score = memory(p->tokens, sizeof *score);
    for (size_t i = 0; i < KEEPS; i++)
        for (size_t j = 0; j < RANK; j++) z[j] += (double)q[i] * (double)up[i * RANK + j];
    for (size_t t = 0; t <= row; t++) {
        double s = 0;
        for (size_t j = 0; j < RANK; j++) s += z[j] * (double)p->latent[t * RANK + j];
        for (size_t j = 0; j < TURNS; j++) s += (double)q[KEEPS + j] * (double)p->turned[t * TURNS + j];
        score[t] = s / sqrt(HEAD), max = fmax(max, score[t]);
    }
    for (size_t t = 0; t <= row; t++) {
        double w = exp(score[t] - max);
        sum += w;
        for (size_t j = 0; j < RANK; j++) o[j] += w * (double)p->latent[t * RANK + j];
    }
    for (size_t i = 0; i < VALUE; i++) {
        double y = 0;
        for (size_t j = 0; j < RANK; j++) y += o[j] / sum * (double)up[(KEEPS + i) * RANK + j];
        out[i] = y;
    }
    iv_memory_free(score, p->tokens * sizeof *score);
}

static double error_of(const problem *p, const uint16_t *got) {
    double errors[CHECKED], want[VALUE];
    for (size_t i = 0; i < CHECKED; i++) {
        size_t row = p->tokens - 1 - i * (p->tokens / CHECKED), head = i % p->heads;
        double d = 0, all = 0;
        exact(p, row, head, want);
        for (size_t k = 0; k < VALUE; k++) {
            double x = (double)iv_bf16_to_f32(got[(row * p->heads + head) * VALUE + k]) - want[k];
            d += x * x, all += want[k] * want[k];
        }
        errors[i] = sqrt(d / all);
    }
    return iv_bench_median(errors, CHECKED);
}

static void attend(const problem *p, const iv_kv_layout *l, const unsigned char *kv, const void *q, size_t first,
                   size_t rows, void *out) {
    size_t blocks = p->tokens / B;
    uint32_t *pages = memory(blocks, sizeof *pages);
    for (size_t b = 0; b < blocks; b++) pages[b] = (uint32_t)b;
    iv_attention_span span = {0, rows, (int64_t)first, pages};
    iv_attention(&p->c, &(iv_attention_args){.layout = l,
                                             .kv = kv,
                                             .heads = p->heads,
                                             .group = p->heads / l->heads,
                                             .scale_log2e = p->scale,
                                             .q = q,
                                             .out = out,
                                             .spans = &span,
                                             .span_count = 1});
    iv_memory_free(pages, blocks * sizeof *pages);
}

/* ---- absorbed ------------------------------------------------------------------------------------------------- */

typedef struct absorbed {
    iv_kv_layout l;
    unsigned char *kv;
    iv_matrix *keys, *values; /* [heads] */
    uint16_t *q;              /* [tokens][heads][KEY] */
} absorbed;

static iv_matrix packed(const float *rows, size_t n, size_t k, size_t stride, size_t step) {
    iv_matrix m;
    float *own = memory(n * k, sizeof *own);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++) own[i * k + j] = rows[i * step + j * stride];
    if (!iv_matrix_shape(&m, IV_BF16, n, k)) abort();
    m.data = memory(iv_matrix_bytes(&m), 1);
    iv_matrix_pack(&m, IV_F32, own, k, 0, n);
    iv_memory_free(own, n * k * sizeof *own);
    return m;
}

static void absorbed_open(const problem *p, absorbed *a) {
    if (!iv_kv_layout_make_shared(&a->l, IV_BF16, 1, KEY, RANK)) abort();
    a->kv = memory(p->tokens / B, a->l.page_bytes);
    a->keys = memory(p->heads, sizeof *a->keys), a->values = memory(p->heads, sizeof *a->values);
    a->q = memory(p->tokens * p->heads * KEY, sizeof *a->q);
    for (size_t h = 0; h < p->heads; h++) {
        const float *up = p->up + h * (KEEPS + VALUE) * RANK;
        a->keys[h] = packed(up, RANK, KEEPS, RANK, 1), a->values[h] = packed(up + KEEPS * RANK, VALUE, RANK, 1, RANK);
    }
    for (size_t t = 0; t < p->tokens; t++) {
        uint16_t key[KEY];
        for (size_t i = 0; i < KEY; i++)
            key[i] = iv_bf16_from_f32(i < RANK ? p->latent[t * RANK + i] : p->turned[t * TURNS + i - RANK]);
        iv_kv_write(&a->l, a->kv + t / B * a->l.page_bytes, 0, t % B, key, NULL);
    }
}

/* q: R of the rows' queries. */
static void absorbed_run(const problem *p, const absorbed *a, const uint16_t *q, size_t first, size_t rows,
                         uint16_t *between, uint16_t *out) {
    for (size_t i = 0; i < rows * p->heads; i++) memcpy(a->q + i * KEY + RANK, q + i * HEAD + KEEPS, TURNS * sizeof *q);
    iv_head_products(&p->c, &(iv_head_products_args){a->keys, p->heads, rows, IV_BF16, q, p->heads * HEAD, HEAD, a->q,
                                                     p->heads * KEY, KEY});
    attend(p, &a->l, a->kv, a->q, first, rows, between);
    iv_head_products(&p->c, &(iv_head_products_args){a->values, p->heads, rows, IV_BF16, between, p->heads * RANK, RANK,
                                                     out, p->heads * VALUE, VALUE});
}

/* ---- expanded ------------------------------------------------------------------------------------------------- */

typedef struct expanded {
    iv_kv_layout l;
    unsigned char *kv;
    iv_matrix up; /* of all heads, as kv_b_proj has them */
    float *made;  /* [tokens][heads][KEEPS + VALUE] */
} expanded;

static void expanded_open(const problem *p, expanded *x) {
    if (!iv_kv_layout_make(&x->l, IV_BF16, p->heads, HEAD, VALUE)) abort();
    x->kv = memory(p->tokens / B, x->l.page_bytes);
    x->up = packed(p->up, p->heads * (KEEPS + VALUE), RANK, 1, RANK);
    x->made = memory(p->tokens * p->heads * (KEEPS + VALUE), sizeof *x->made);
}

static const problem *making;
static const expanded *target;

static void write_row(void *context, size_t t, size_t worker) {
    (void)context, (void)worker;
    const problem *p = making;
    for (size_t h = 0; h < p->heads; h++) {
        const float *made = target->made + (t * p->heads + h) * (KEEPS + VALUE);
        uint16_t key[HEAD], value[VALUE];
        p->c.kernels->round(made, KEEPS, IV_BF16, key);
        p->c.kernels->round(p->turned + t * TURNS, TURNS, IV_BF16, key + KEEPS);
        p->c.kernels->round(made + KEEPS, VALUE, IV_BF16, value);
        iv_kv_write(&target->l, target->kv + t / B * target->l.page_bytes, h, t % B, key, value);
    }
}

/* Keys and values of all rows up to the step's last are made from their latents: the cache holds these alone. */
static void expanded_run(const problem *p, const expanded *x, const uint16_t *latent, const uint16_t *q, size_t first,
                         size_t rows, uint16_t *out) {
    iv_linear(&p->c, &(iv_linear_args){.weight = &x->up,
                                       .type = IV_BF16,
                                       .x = latent,
                                       .x_stride = RANK,
                                       .rows = first + rows,
                                       .out = x->made,
                                       .out_stride = x->up.n});
    making = p, target = x;
    iv_pool_run(p->c.pool, first + rows, write_row, NULL);
    attend(p, &x->l, x->kv, q, first, rows, out);
}

int main(int argc, char **argv) {
    problem p = {.heads = (size_t)iv_bench_argument(argc, argv, "--heads", 16, 1, 128),
                 .tokens = (size_t)iv_bench_argument(argc, argv, "--tokens", 2048, 64, 1 << 15) / B * B,
                 .scale = iv_attention_scale_log2e(HEAD)};
    size_t threads = (size_t)iv_bench_argument(argc, argv, "--threads", 1, 1, IV_BENCH_THREADS_MAX), most, linear;
    iv_error err;
    absorbed a;
    expanded x;
    p.c = (iv_compute){.kernels = iv_kernels_select(iv_isa_detect()), .arithmetic = IV_FMA32};
    if (iv_pool_open(threads, &p.c.pool, &err) != IV_OK) abort();
    p.q = values(p.tokens * p.heads * HEAD, 1.0f, false), p.latent = values(p.tokens * RANK, 1.0f, false);
    p.turned = values(p.tokens * TURNS, 1.0f, false);
    p.up = values(p.heads * (KEEPS + VALUE) * RANK, 1.0f / sqrtf(RANK), true);
    absorbed_open(&p, &a), expanded_open(&p, &x);
    if (!iv_attention_scratch(&a.l, &most) || !iv_linear_scratch(p.tokens, RANK, &linear)) abort();
    p.c.scratch_bytes = most * threads + linear;
    p.c.scratch = memory(p.c.scratch_bytes, 1);
    uint16_t *q = rounded(p.q, p.tokens * p.heads * HEAD), *latent = rounded(p.latent, p.tokens * RANK);
    uint16_t *between = memory(p.tokens * p.heads * RANK, 2), *out = memory(p.tokens * p.heads * VALUE, 2);
    absorbed_run(&p, &a, q, 0, p.tokens, between, out);
    printf("error of a head's output, median: absorbed %.2e", error_of(&p, out));
    expanded_run(&p, &x, latent, q, 0, p.tokens, out);
    printf(", expanded %.2e\n", error_of(&p, out));
    printf("%zu heads, %zu threads, seconds:\n\n| step | absorbed | expanded |\n|---|---|---|\n", p.heads, threads);
    const size_t steps[][2] = {{p.tokens, p.tokens}, {p.tokens / 4, p.tokens}, {1, p.tokens}}; /* rows, positions */
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        size_t rows = steps[s][0], first = steps[s][1] - rows;
        double seconds[2][3];
        for (int i = 0; i < 3; i++) {
            double begin = iv_bench_seconds();
            absorbed_run(&p, &a, q + first * p.heads * HEAD, first, rows, between, out);
            seconds[0][i] = iv_bench_seconds() - begin, begin = iv_bench_seconds();
            expanded_run(&p, &x, latent, q + first * p.heads * HEAD, first, rows, out);
            seconds[1][i] = iv_bench_seconds() - begin;
        }
        printf("| %zu rows behind %zu | %.4f | %.4f |\n", rows, first, iv_bench_median(seconds[0], 3),
               iv_bench_median(seconds[1], 3));
    }
    return 0;
}
