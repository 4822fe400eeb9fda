/* Sampling on a GPU against the host's sampler: tokens, the bits of their log-probabilities, and the likeliest. */
#include "cuda/on_gpu.h"
#include "kernels/cuda/ops.h"
#include "numerics/rows.h"
#include "sample/sampler.h"

enum { VOCAB = 151936, ROWS = 70, SORTED = 4096 };

static float one_of(rng *r, const float *values, size_t n) { return values[rng_below(r, n)]; }
#define ONE_OF(r, ...) one_of(r, (const float[]){__VA_ARGS__}, sizeof(float[]){__VA_ARGS__} / sizeof(float))

static iv_gpu_sampling random_sampling(rng *r, size_t vocab) {
    iv_gpu_sampling p = {.seed = rng_next(r), .position = rng_below(r, 2) ? rng_below(r, 5000) : rng_next(r)};
    p.temperature = ONE_OF(r, 0.0f, 1.0f, 1.0f, 0.6f, 0.01f, 1e-4f, 2.5f, 100.0f);
    p.top_p = ONE_OF(r, 1.0f, 1.0f, 0.95f, 0.5f, 0.1f, 1e-6f, 0.9999999f, 0.99999f, 0.999f);
    p.min_p = ONE_OF(r, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-6f);
    p.top_k = (int32_t)(rng_below(r, 2) ? 0 : 1 + rng_below(r, rng_below(r, 2) ? 20 : 2 * vocab));
    p.likely = rng_below(r, 3) ? 0 : (int32_t)(1 + rng_below(r, vocab < 20 ? vocab : 20));
    p.share = rng_below(r, 2);
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
        case 5: x[i] = (u + v + w) * 1.5f; break; /* as a model's */
        default: x[i] = (u + v + w) * 3.0f; break;
        }
    }
    x[rng_below(r, n)] = kind == 1 ? 2e37f : kind == 3 ? 0.0f : 5.0f;
    if (kind == 7) x[rng_below(r, n)] = 30.0f;
}

/* May more tokens be kept than the GPU sorts at once? By an estimate; such rows take another way there. */
static bool keeps_many(const float *x, size_t vocab, const iv_gpu_sampling *p) {
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

static size_t many, compared, moved, shares, likely;

static void compare_row(iv_sampler *s, const iv_kernels *k, const float *x, size_t vocab, const iv_gpu_sampling *p,
                        const iv_gpu_sampled *got, const iv_gpu_likely *got_likely) {
    float max, log_sum;
    iv_ref_log_sum_exp(x, vocab, &max, &log_sum);
    assert_same_bits("max", &max, &got->max, 1, 4, true);
    assert_same_bits("log_sum", &log_sum, &got->log_sum, 1, 4, true);
    if (!(log_sum >= 0.0f && log_sum < 1e30f)) return; /* the request fails: any token */
    iv_sampling q = {.temperature = p->temperature,
                     .top_p = p->top_p,
                     .min_p = p->min_p,
                     .top_k = p->top_k,
                     .repetition_penalty = 1.0f,
                     .seed = p->seed};
    float share, *share_wanted = p->share ? &share : NULL;
    int32_t token = iv_sample_with_logprob(s, k, &q, x, NULL, 0, p->position, share_wanted);
    if (token != got->token)
        fail_msg("token: wanted %d, got %d: vocabulary %zu, temperature %g, top_p %g, min_p %g, top_k %d, logits %g %g",
                 token, got->token, vocab, p->temperature, p->top_p, p->min_p, p->top_k, x[token],
                 got->token < 0 ? NAN : x[got->token]);
    float logprob = (x[token] - max) - log_sum;
    assert_same_bits("logprob", &logprob, &got->logprob, 1, 4, false);
    if (!p->share) share = 0.0f;
    if (iv_bits(share) != iv_bits(got->share_logprob))
        fail_msg("share: wanted %a, got %a: vocabulary %zu, temperature %g, top_p %g, min_p %g, top_k %d", share,
                 got->share_logprob, vocab, p->temperature, p->top_p, p->min_p, p->top_k);
    iv_logprob top[IV_GPU_LIKELY_MAX];
    iv_top_logprobs(k, x, vocab, max, log_sum, top, (size_t)p->likely);
    for (int i = 0; i < p->likely; i++) {
        if (top[i].id != got_likely[i].id)
            fail_msg("likeliest %d of %d: wanted %d, got %d: vocabulary %zu", i, p->likely, top[i].id, got_likely[i].id,
                     vocab);
        assert_same_bits("likeliest", &top[i].logprob, &got_likely[i].logprob, 1, 4, false);
    }
    moved += iv_sample(s, k, &q, x, NULL, 0, p->position + 1) != token;
    compared++, many += keeps_many(x, vocab, p), shares += share != 0.0f, likely += p->likely > 0;
}

static void sample_trial(rng *r, size_t vocab, size_t rows, bool spoil) {
    float *x = malloc(rows * vocab * sizeof *x);
    iv_gpu_sampling p[ROWS];
    iv_sampler s;
    iv_error err;
    ASSERT_OK(iv_sampler_open(&s, vocab, &err), &err);
    for (size_t i = 0; i < rows; i++) {
        random_row(r, x + i * vocab, vocab);
        if (spoil) x[i * vocab + rng_below(r, vocab)] = ONE_OF(r, NAN, INFINITY, -INFINITY);
        if (spoil && i == 1)
            for (size_t j = 0; j < vocab; j++) x[i * vocab + j] = -INFINITY;
        p[i] = random_sampling(r, vocab);
    }
    float *gpu_x = gpu_copy(x, rows * vocab * sizeof *x);
    iv_gpu_sampling *gpu_p = gpu_copy(p, rows * sizeof *p);
    void *scratch = gpu_room(iv_gpu_sample_scratch(rows, vocab));
    iv_gpu_sampled *gpu_out = gpu_room(rows * sizeof *gpu_out);
    iv_gpu_likely *gpu_likely = gpu_room(rows * IV_GPU_LIKELY_MAX * sizeof *gpu_likely);
    GPU_OK(iv_gpu_sample(gpu_x, rows, vocab, gpu_p, scratch, gpu_out, gpu_likely, NULL));
    iv_gpu_sampled *out = host_copy(gpu_out, rows * sizeof *out);
    iv_gpu_likely *top = host_copy(gpu_likely, rows * IV_GPU_LIKELY_MAX * sizeof *top);
    for (size_t i = 0; i < rows; i++)
        compare_row(&s, iv_kernels_select(IV_ISA_AVX512), x + i * vocab, vocab, &p[i], &out[i],
                    top + i * IV_GPU_LIKELY_MAX);
    cudaFree(gpu_x), cudaFree(gpu_p), cudaFree(scratch), cudaFree(gpu_out), cudaFree(gpu_likely);
    iv_sampler_close(&s), free(out), free(top), free(x);
}

static void report(void) {
    printf("%zu rows compared, %zu keep many tokens, %zu with their share, %zu with the likeliest; the next position has "
           "another token in %zu\n",
           compared, many, shares, likely, moved);
    assert_true(moved > 0 && shares > 0 && likely > 0);
}

static void samples(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("samples");
    many = compared = moved = shares = likely = 0;
    for (size_t trial = 0; trial < trials(250, 5000); trial++) {
        static const size_t around[] = {1, 120, 255, 4096, 5000, 9000, 32000};
        size_t vocab = 1 + rng_below(&r, around[rng_below(&r, 7)]);
        sample_trial(&r, vocab, 1 + rng_below(&r, 12), rng_below(&r, 10) == 0);
    }
    sample_trial(&r, VOCAB, ROWS, false);
    sample_trial(&r, 262144, 5, false);
    report();
    assert_true(compared > 100 && many > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
