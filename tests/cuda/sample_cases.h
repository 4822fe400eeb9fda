/* sample_cases.h: rows of logits, the host's sampler and the comparison, shared by test_sample.c and
 * test_emulated_sample.c. */
#ifndef IV_TESTS_CUDA_SAMPLE_CASES_H
#define IV_TESTS_CUDA_SAMPLE_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/ops.h"
#include "numerics/rows.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"
#include "sample/sampler.h"

enum { VOCAB = 151936, ROWS = 70, SORTED = 4096 };

static float one_of(rng *r, const float *values, size_t n) { return values[rng_below(r, n)]; }
#define ONE_OF(r, ...) one_of(r, (const float[]){__VA_ARGS__}, sizeof(float[]){__VA_ARGS__} / sizeof(float))

static iv_row_sampling random_sampling(rng *r, size_t vocab) {
    iv_row_sampling p = {.seed = rng_next(r), .position = rng_below(r, 2) ? rng_below(r, 5000) : rng_next(r)};
    p.temperature = ONE_OF(r, 0.0f, 1.0f, 1.0f, 0.6f, 0.01f, 1e-4f, 2.5f, 100.0f);
    p.top_p = ONE_OF(r, 1.0f, 1.0f, 0.95f, 0.5f, 0.1f, 1e-6f, 0.9999999f, 0.99999f, 0.999f);
    p.min_p = ONE_OF(r, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-6f);
    p.top_k = (int32_t)(rng_below(r, 2) ? 0 : 1 + rng_below(r, rng_below(r, 2) ? 20 : 2 * vocab));
    p.top_logprobs = rng_below(r, 3) ? 0 : (int32_t)(1 + rng_below(r, vocab < 20 ? vocab : 20));
    p.sampling_logprob = rng_below(r, 2);
    if (rng_below(r, 6) == 0) p.temperature = 0.0f, p.given = true, p.token = (int32_t)rng_below(r, vocab);
    return p;
}

static void random_row(rng *r, float *x, size_t n) {
    size_t kind = rng_below(r, 9);
    for (size_t i = 0; i < n; i++) {
        float u = random_float(r, NORMAL), v = random_float(r, NORMAL), w = random_float(r, NORMAL);
        switch (kind) {
        case 0: x[i] = (float)rng_below(r, 4); break;                 /* ties */
        case 1: x[i] = u * 3e37f; break;                              /* huge */
        case 2: x[i] = rng_below(r, 3) ? -INFINITY : u * 4.0f; break; /* forbidden tokens */
        case 3: x[i] = i % 2 ? 0.0f : -0.0f; break;
        case 4: x[i] = u * 1e-6f; break;
        case 5: x[i] = (u + v + w) * 1.5f; break; /* like a model's */
        default: x[i] = (u + v + w) * 3.0f; break;
        }
    }
    x[rng_below(r, n)] = kind == 1 ? 2e37f : kind == 3 ? 0.0f : 5.0f;
    if (kind == 7) x[rng_below(r, n)] = 30.0f;
}

/* May more tokens be kept than the GPU sorts at once? An estimate; such rows take the slower path there. */
static bool keeps_many(const float *x, size_t vocab, const iv_row_sampling *p) {
    float max = x[0];
    for (size_t i = 1; i < vocab; i++) max = x[i] > max ? x[i] : max;
    bool top_k = p->top_k > 0 && (size_t)p->top_k < vocab;
    if (vocab <= SORTED || p->temperature == 0.0f || (!top_k && p->top_p >= 1.0f)) return false;
    double total = 0, depth = top_k ? 88.0 : -log(1.0 - p->top_p + 1e-9);
    for (size_t i = 0; i < vocab; i++) total += exp(((double)x[i] - max) / p->temperature);
    size_t n = 0;
    for (size_t i = 0; i < vocab; i++) n += ((double)x[i] - max) / p->temperature > -depth;
    return n > SORTED && (!top_k || p->top_k > SORTED) && total > SORTED / 4.0;
}

static size_t many, compared, moved, sampling_logprobs, top_logprobs, given, barred;

static void compare_row(iv_sampler *s, const iv_kernels *k, const float *x, size_t vocab, const uint64_t *ids,
                        const iv_row_sampling *p, const iv_row_result *got, const iv_logprob *got_top_logprobs) {
    float max, log_sum;
    iv_ref_log_sum_exp(x, vocab, &max, &log_sum);
    assert_same_bits("max", &max, &got->max, 1, 4, true);
    assert_same_bits("log_sum", &log_sum, &got->log_sum, 1, 4, true);
    if (!(log_sum >= 0.0f && log_sum < 1e30f)) return; /* the request fails; any token is accepted */
    iv_sampling q = {.temperature = p->temperature,
                     .top_p = p->top_p,
                     .min_p = p->min_p,
                     .top_k = p->top_k,
                     .repetition_penalty = 1.0f,
                     .seed = p->seed,
                     .allowed = ids};
    float sampling_logprob, *want = p->sampling_logprob ? &sampling_logprob : NULL;
    int32_t drawn = iv_sample_with_logprob(s, k, &q, x, NULL, 0, p->position, want),
            token = p->given ? p->token : drawn;
    if (token != got->token)
        fail_msg("token: wanted %d, got %d: vocabulary %zu, temperature %g, top_p %g, min_p %g, top_k %d, logits %g %g",
                 token, got->token, vocab, p->temperature, p->top_p, p->min_p, p->top_k, x[token],
                 got->token < 0 ? NAN : x[got->token]);
    float logprob = (x[token] - max) - log_sum;
    assert_same_bits("logprob", &logprob, &got->logprob, 1, 4, false);
    if (!p->sampling_logprob) sampling_logprob = 0.0f;
    if (iv_bits(sampling_logprob) != iv_bits(got->sampling_logprob))
        fail_msg(
            "sampling log-probability: wanted %a, got %a: vocabulary %zu, temperature %g, top_p %g, min_p %g, top_k %d",
            sampling_logprob, got->sampling_logprob, vocab, p->temperature, p->top_p, p->min_p, p->top_k);
    iv_logprob top[IV_TOP_LOGPROBS_MAX];
    iv_top_logprobs(k, x, vocab, max, log_sum, top, (size_t)p->top_logprobs);
    for (int i = 0; i < p->top_logprobs; i++) {
        if (top[i].id != got_top_logprobs[i].id)
            fail_msg("top token %d of %d: wanted %d, got %d: vocabulary %zu", i, p->top_logprobs, top[i].id,
                     got_top_logprobs[i].id, vocab);
        assert_same_bits("top log-probability", &top[i].logprob, &got_top_logprobs[i].logprob, 1, 4, false);
    }
    moved += iv_sample(s, k, &q, x, NULL, 0, p->position + 1) != drawn;
    compared++, many += keeps_many(x, vocab, p), sampling_logprobs += sampling_logprob != 0.0f,
        top_logprobs += p->top_logprobs > 0;
    given += p->given && token != drawn;
    if (!ids) return;
    assert_true(ids[drawn / 64] >> (drawn % 64) & 1);
    q.allowed = NULL;
    barred += iv_sample(s, k, &q, x, NULL, 0, p->position) != drawn;
}

/* Ids that may be drawn: all (NULL), without a tail, with holes, all but the largest, a few, one. */
static uint64_t *random_ids(rng *r, const float *x, size_t vocab) {
    size_t kind = rng_below(r, 7), words = (vocab + 63) / 64, largest = 0;
    if (kind < 2) return NULL;
    uint64_t *ids = calloc(words, sizeof *ids);
    size_t end = kind == 2 ? 1 + rng_below(r, vocab) : vocab, some = rng_below(r, vocab);
    for (size_t i = 0; i < vocab; i++) {
        if (x[i] > x[largest]) largest = i;
        bool one = i < end && (kind != 3 || rng_below(r, 8)) && (kind != 5 || rng_below(r, 16) == 0) && kind != 6;
        if (one) ids[i / 64] |= (uint64_t)1 << (i % 64);
    }
    if (kind == 4) ids[largest / 64] &= ~((uint64_t)1 << (largest % 64));
    bool any = false;
    for (size_t i = 0; i < words; i++) any |= ids[i] != 0;
    if (!any) ids[some / 64] |= (uint64_t)1 << (some % 64);
    return ids;
}

/* Samples rows on the GPU, this many at once, the first rows last: their logits and the scratch are overwritten, as
 * in a step of the engine. Compares. */
static void compare_slices(rng *r, const float *x, size_t vocab, size_t rows, const iv_row_sampling *p, size_t slice) {
    iv_sampler s;
    iv_error err;
    uint64_t *ids = random_ids(r, x, vocab), *gpu_ids = ids ? gpu_copy(ids, (vocab + 63) / 64 * sizeof *ids) : NULL;
    ASSERT_OK(iv_sampler_open(&s, vocab, &err), &err);
    float *gpu_x = gpu_copy(x, rows * vocab * sizeof *x);
    iv_row_sampling *gpu_p = gpu_copy(p, rows * sizeof *p);
    void *scratch = gpu_room(iv_gpu_sample_scratch(slice, vocab));
    float *logits = gpu_room(slice * vocab * sizeof *logits);
    iv_row_result *gpu_out = gpu_room(rows * sizeof *gpu_out);
    iv_logprob *gpu_top_logprobs = gpu_room(rows * IV_TOP_LOGPROBS_MAX * sizeof *gpu_top_logprobs);
    for (size_t first = (rows - 1) / slice * slice;; first -= slice) {
        size_t n = slice < rows - first ? slice : rows - first;
        GPU_OK(iv_gpu_copy_columns(IV_F32, gpu_x + first * vocab, vocab, 0, vocab, n, logits, vocab, NULL));
        GPU_OK(iv_gpu_sample(logits, n, vocab, gpu_ids, gpu_p + first, scratch, gpu_out + first,
                             gpu_top_logprobs + first * IV_TOP_LOGPROBS_MAX, NULL));
        if (first == 0) break;
    }
    iv_row_result *out = host_copy(gpu_out, rows * sizeof *out);
    iv_logprob *top = host_copy(gpu_top_logprobs, rows * IV_TOP_LOGPROBS_MAX * sizeof *top);
    for (size_t i = 0; i < rows; i++)
        compare_row(&s, iv_kernels_select(IV_ISA_AVX512), x + i * vocab, vocab, ids, &p[i], &out[i],
                    top + i * IV_TOP_LOGPROBS_MAX);
    cudaFree(gpu_x), cudaFree(gpu_p), cudaFree(scratch), cudaFree(logits), cudaFree(gpu_out),
        cudaFree(gpu_top_logprobs), cudaFree(gpu_ids);
    iv_sampler_close(&s), free(out), free(top), free(ids);
}

static void compare_rows(rng *r, const float *x, size_t vocab, size_t rows, const iv_row_sampling *p) {
    compare_slices(r, x, vocab, rows, p, rows);
}

/* ---- the exact cut of a filter
 * ------------------------------------------------------------------------------------ */

typedef struct token_at {
    float x;
    int32_t id;
} token_at;

static int in_order(const void *a, const void *b) {
    const token_at *p = a, *q = b;
    return p->x != q->x ? (p->x < q->x) - (p->x > q->x) : (p->id > q->id) - (p->id < q->id);
}

/* Sorts a row and cuts it according to the law; returns how many top-k and top-p keep, and in *total the sum over
 * all tokens they see. */
static size_t cut_row(const float *x, size_t vocab, const iv_row_sampling *p, token_at *t, float *total) {
    size_t k = p->top_k > 0 && (size_t)p->top_k < vocab ? (size_t)p->top_k : vocab;
    float lanes[IV_ROW_LANES] = {0}, *e = calloc(vocab, sizeof *e);
    for (size_t i = 0; i < vocab; i++) t[i] = (token_at){x[i] / p->temperature, (int32_t)i};
    qsort(t, vocab, sizeof *t, in_order);
    for (size_t i = 0; i < k; i++) e[t[i].id] = v_exp(t[i].x - t[0].x);
    for (size_t i = 0; i < vocab; i++) lanes[i % IV_ROW_LANES] += e[i];
    *total = iv_ref_fold_lanes(lanes);
    double target = (double)p->top_p * (double)*total, sum = 0.0;
    size_t kept = p->top_p < 1.0f ? 0 : k;
    while (kept < k && sum < target) sum += (double)e[t[kept++].id];
    free(e);
    return kept > 0 ? kept : 1;
}

static size_t aimed;

/* Finds a seed whose noise makes the last token kept, or the first one dropped, win if it is kept: the answer then
 * shows where the row was cut. */
static void aim(rng *r, const float *x, size_t vocab, iv_row_sampling *p) {
    token_at *t = malloc(vocab * sizeof *t);
    float total, best = -INFINITY;
    if (p->temperature > 0.0f && (p->top_p < 1.0f || (p->top_k > 0 && (size_t)p->top_k < vocab))) {
        size_t kept = cut_row(x, vocab, p, t, &total);
        if (kept < vocab && rng_below(r, 2)) kept++;
        const token_at *c = &t[kept - 1];
        float wanted = t[0].x - c->x + logf(total) + 2.0f;
        for (size_t tries = 0; tries < 300000 && best < wanted && wanted < 23.0f; tries++) {
            uint64_t seed = rng_next(r);
            float g = iv_gumbel(seed, p->position, c->id);
            if (g > best) best = g, p->seed = seed;
        }
        aimed += best >= wanted;
    }
    free(t);
}

static void sample_trial(rng *r, size_t vocab, size_t rows, bool spoil) {
    float *x = malloc(rows * vocab * sizeof *x);
    iv_row_sampling p[ROWS];
    for (size_t i = 0; i < rows; i++) {
        random_row(r, x + i * vocab, vocab);
        if (spoil) x[i * vocab + rng_below(r, vocab)] = ONE_OF(r, NAN, INFINITY, -INFINITY);
        if (spoil && i == 1)
            for (size_t j = 0; j < vocab; j++) x[i * vocab + j] = -INFINITY;
        p[i] = random_sampling(r, vocab);
        if (!spoil && rng_below(r, 2)) aim(r, x + i * vocab, vocab, &p[i]);
    }
    compare_rows(r, x, vocab, rows, p);
    free(x);
}

/* ---- rows and parameters that are hard to filter -------------------------------------------------------------- */

enum { HARD_ROWS = 10, HARD_FILTERS = 15 };

static void hard_row(rng *r, size_t kind, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float u = random_float(r, NORMAL) + random_float(r, NORMAL), way = (float)i / (float)n;
        switch (kind) {
        case 0: x[i] = 1.5f; break;         /* all tie */
        case 1: x[i] = -10.0f * way; break; /* descending: the first ones are all in one group */
        case 2: x[i] = 10.0f * way; break;  /* ascending */
        case 3: x[i] = u * 0.25f; break;    /* flat */
        case 4: x[i] = u * 2.0f; break;     /* broad */
        case 5: x[i] = (float)(i % 3 == 0) - (float)(i % 7 == 0); break;   /* a few values */
        case 6: x[i] = i % 5 == 0 ? -30.0f * way * way : -INFINITY; break; /* most are forbidden */
        case 7: x[i] = -14.0f - 0.5f * way; break;                         /* one token above a wide tail */
        case 8: x[i] = -19.0f - 30.0f * way + u * 0.01f; break;            /* so deep that doubles round the sum */
        default: x[i] = -20.2f + u * 0.002f; break;                        /* the same with more tokens */
        }
    }
    if (kind >= 7) x[n / 3] = 0.0f;
}

static iv_row_sampling hard_filter(rng *r, size_t kind, size_t vocab) {
    static const struct {
        float temperature, top_p, min_p;
        int above; /* top_k exceeds the sort capacity by this much, if the vocabulary allows; -1: unchanged */
        int32_t top_k;
    } filters[HARD_FILTERS] = {
        {1.0f, 0.95f, 0.0f, -1, 0},        {1.0f, 0.9f, 0.0f, -1, 20},      {0.6f, 0.95f, 0.0f, -1, 20},
        {0.6f, 0.99999f, 0.0f, -1, 0},     {1.3f, 0.9999999f, 0.0f, -1, 0}, {1.0f, 1.0f, 0.0f, 1, 0},
        {0.9f, 1.0f, 0.3f, 3000, 0},       {1.0f, 0.5f, 0.0f, 2000, 0},     {1.0f, 0.9999999f, 0.0f, 4000, 0},
        {1.0f, 1e-6f, 0.0f, -1, 0},        {1.0f, 0.7f, 0.5f, -1, 0},       {0.3f, 0.95f, 0.1f, -1, 300},
        {100.0f, 0.9999999f, 0.0f, -1, 0}, {0.05f, 1.0f, 0.2f, -1, 0},      {1.0f, 1.0f, 0.0f, -1, 1},
    };
    int32_t most = (int32_t)vocab - 1, above = (int32_t)SORTED + filters[kind].above;
    return (iv_row_sampling){.temperature = filters[kind].temperature,
                             .top_p = filters[kind].top_p,
                             .min_p = filters[kind].min_p,
                             .top_k = filters[kind].above < 0 ? filters[kind].top_k
                                      : above < most          ? above
                                                              : most,
                             .seed = rng_next(r),
                             .position = rng_below(r, 9999),
                             .top_logprobs = (int32_t)rng_below(r, IV_TOP_LOGPROBS_MAX + 1),
                             .sampling_logprob = rng_below(r, 3) > 0};
}

/* One row with all of these filters, in another order of rows each time. */
static void hard_trial(rng *r, size_t kind, size_t vocab, size_t filters) {
    float *x = malloc(filters * vocab * sizeof *x);
    iv_row_sampling p[HARD_FILTERS];
    size_t first = rng_below(r, HARD_FILTERS);
    hard_row(r, kind, x, vocab);
    for (size_t i = 0; i < filters; i++) {
        if (i) memcpy(x + i * vocab, x, vocab * sizeof *x);
        p[i] = hard_filter(r, (first + i) % HARD_FILTERS, vocab);
        aim(r, x, vocab, &p[i]);
    }
    compare_rows(r, x, vocab, filters, p);
    free(x);
}

/* ---- tokens of a prompt ------------------------------------------------------------------------------------------ */

enum { SCORED_ROWS = 24 };

/* Rows of all kinds with a given token, between rows that draw; with as many top tokens as a request may ask for,
 * and tokens at both ends of the vocabulary and of the order; in slices of any size. */
static void score_trial(rng *r, size_t vocab) {
    static const int32_t wanted[] = {0, 1, 5, IV_TOP_LOGPROBS_MAX};
    float *x = malloc(SCORED_ROWS * vocab * sizeof *x);
    iv_row_sampling p[SCORED_ROWS];
    for (size_t i = 0; i < SCORED_ROWS; i++) {
        float *row = x + i * vocab;
        size_t largest = 0, least = 0;
        i % 2 ? random_row(r, row, vocab) : hard_row(r, rng_below(r, HARD_ROWS), row, vocab);
        for (size_t t = 1; t < vocab; t++) {
            if (row[t] > row[largest]) largest = t;
            if (row[t] < row[least]) least = t;
        }
        const size_t tokens[] = {0, vocab - 1, largest, least, rng_below(r, vocab), rng_below(r, vocab)};
        p[i] = (iv_row_sampling){.top_p = 1.0f, .top_logprobs = wanted[i % 4], .given = true};
        p[i].token = (int32_t)tokens[rng_below(r, 6)];
        if ((size_t)p[i].top_logprobs > vocab) p[i].top_logprobs = (int32_t)vocab;
        if (i % 5 == 3) p[i] = random_sampling(r, vocab);
    }
    compare_slices(r, x, vocab, SCORED_ROWS, p, 1 + rng_below(r, SCORED_ROWS));
    free(x);
}

/* The score of a row depends on the given token and on no other parameter of a request. */
static void score_control(rng *r, size_t vocab) {
    enum { N = 40 };
    float *x = malloc(N * vocab * sizeof *x), logprob = 0.0f;
    iv_row_sampling p[N];
    size_t differ = 0;
    hard_row(r, 4, x, vocab);
    for (size_t i = 0; i < N; i++) {
        if (i) memcpy(x + i * vocab, x, vocab * sizeof *x);
        p[i] = (iv_row_sampling){.top_p = 1.0f, .given = true, .token = 3};
        if (i >= N / 2) p[i].token += (int32_t)(i - N / 2) + 1;
        if (i % 2) p[i].top_p = 0.5f, p[i].top_k = 3, p[i].min_p = 0.5f, p[i].seed = i, p[i].sampling_logprob = true;
    }
    float *gpu_x = gpu_copy(x, N * vocab * sizeof *x);
    iv_row_sampling *gpu_p = gpu_copy(p, sizeof p);
    void *scratch = gpu_room(iv_gpu_sample_scratch(N, vocab));
    iv_row_result *gpu_out = gpu_room(N * sizeof *gpu_out);
    GPU_OK(iv_gpu_sample(gpu_x, N, vocab, NULL, gpu_p, scratch, gpu_out, NULL, NULL));
    iv_row_result *out = host_copy(gpu_out, N * sizeof *out);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(out[i].token, p[i].token);
        if (i == 0) logprob = out[0].logprob;
        if (i < N / 2) assert_memory_equal(&out[i], &out[0], sizeof *out);
        differ += out[i].logprob != logprob;
    }
    printf("%zu of %d rows differ by their token\n", differ, N / 2);
    assert_true(differ > N / 2 - 4);
    cudaFree(gpu_x), cudaFree(gpu_p), cudaFree(scratch), cudaFree(gpu_out), free(x), free(out);
}

static void report_scores(void) {
    printf("%zu rows compared, %zu of a token that would not have been drawn\n", compared, given);
    assert_true(given > compared / 10);
}

static void report(void) {
    printf("%zu rows compared, %zu keep many tokens, %zu with their sampling log-probability, %zu with top tokens; the "
           "next position has "
           "another token in %zu; %zu aimed at a cut; ids that are not drawn change %zu\n",
           compared, many, sampling_logprobs, top_logprobs, moved, aimed, barred);
    assert_true(moved > 0 && sampling_logprobs > 0 && top_logprobs > 0 && barred > 0);
}

#endif
