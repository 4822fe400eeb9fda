/* The sampler against a naive one that sorts everything and has no shortcut, against the probabilities of its
 * distribution, and at its limits. */
#include "random.h"
#include "numerics/philox.h"
#include "numerics/rows.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"
#include "sample/sampler.h"

enum { VOCAB_MAX = 151936, SEEN_MAX = 40, BIAS_MAX = 6, DRAWS = 200000 };

/* ---- the naive sampler: the law in plain loops --------------------------------------------------------- */

static const float *sorted_by; /* qsort has no context */

static int in_order(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorted_by[x] != sorted_by[y]) return sorted_by[x] > sorted_by[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void naive_penalties(const iv_sampling *p, float *x, const iv_seen *seen, size_t n) {
    for (size_t i = 0; i < p->bias_count; i++) x[p->bias[i].id] += p->bias[i].bias;
    for (size_t i = 0; i < n; i++) {
        float y = x[seen[i].id];
        if (p->repetition_penalty != 1.0f && y > 0.0f)
            y = y / p->repetition_penalty;
        else if (p->repetition_penalty != 1.0f)
            y = y * p->repetition_penalty;
        if (seen[i].generated > 0) {
            float times = p->frequency_penalty * (float)seen[i].generated;
            y = y - times;
            y = y - p->presence_penalty;
        }
        x[seen[i].id] = y;
    }
}

static bool is_allowed(const iv_sampling *p, size_t id) {
    return !p->allowed || (p->allowed[id / 64] >> (id % 64) & 1);
}

static float naive_noise(uint64_t seed, uint64_t position, int32_t id) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
    uint32_t counter[4] = {(uint32_t)id / 4, (uint32_t)position, (uint32_t)(position >> 32), 0};
    iv_philox4x32(counter, key, out);
    return iv_gumbel_of(out[id % 4]);
}

/* The first of `order` that top-p keeps, of n. */
static size_t naive_top_p(const float *x, const int32_t *order, size_t n, float top_p, size_t vocab) {
    float lanes[IV_ROW_LANES] = {0}, max = x[order[0]];
    char *kept = calloc(vocab, 1);
    for (size_t i = 0; i < n; i++) kept[order[i]] = 1;
    for (size_t id = 0; id < vocab; id++)
        if (kept[id]) lanes[id % IV_ROW_LANES] += v_exp(x[id] - max);
    free(kept);
    double target = (double)top_p * (double)iv_ref_fold_lanes(lanes), sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)v_exp(x[order[i]] - max);
        if (sum >= target) return i + 1;
    }
    return n;
}

/* The log-probability of a kept token, as a row of section 4 in which the others are -infinity. */
static float naive_sampling_logprob(const float *x, const char *kept, size_t vocab, float max, int32_t id) {
    float lanes[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < vocab; i++)
        if (kept[i]) lanes[i % IV_ROW_LANES] += v_exp(x[i] - max);
    return (x[id] - max) - v_log(iv_ref_fold_lanes(lanes));
}

static int32_t naive_sample(const iv_sampling *p, const float *logits, size_t vocab, const iv_seen *seen,
                            size_t seen_count, uint64_t position, float *logprob) {
    float *x = malloc(vocab * sizeof *x), best_value = 0;
    char *kept = calloc(vocab, 1);
    int32_t *order = malloc(vocab * sizeof *order), best = -1;
    memcpy(x, logits, vocab * sizeof *x);
    naive_penalties(p, x, seen, seen_count);
    for (size_t i = 0; i < vocab; i++)
        if (!is_allowed(p, i)) x[i] = -INFINITY;
    for (size_t i = 0; p->temperature > 0.0f && i < vocab; i++) x[i] = x[i] / p->temperature;
    for (size_t i = 0; i < vocab; i++) order[i] = (int32_t)i;
    sorted_by = x;
    qsort(order, vocab, sizeof *order, in_order);
    float max = x[order[0]];
    for (size_t i = 0; max == -INFINITY && i < vocab; i++)
        if (is_allowed(p, i)) { /* every allowed logit is -infinity */
            order[0] = (int32_t)i;
            break;
        }
    size_t n = p->temperature == 0.0f || isinf(max) ? 1 : vocab;
    if (p->top_k > 0 && (size_t)p->top_k < n) n = (size_t)p->top_k;
    if (p->top_p < 1.0f && n > 1) n = naive_top_p(x, order, n, p->top_p, vocab);
    for (size_t i = 0; i < n; i++) {
        int32_t id = order[i];
        if (n > 1 && p->min_p > 0.0f && v_exp(x[id] - max) < p->min_p) continue;
        kept[id] = 1;
        float value = x[id] + naive_noise(p->seed, position, id);
        if (best < 0 || value > best_value || (value == best_value && id < best)) best = id, best_value = value;
    }
    *logprob = p->temperature == 0.0f || isinf(max) ? 0.0f : naive_sampling_logprob(x, kept, vocab, max, best);
    free(x), free(order), free(kept);
    return best;
}

/* ---- random cases -------------------------------------------------------------------------------------- */

static size_t random_vocab(rng *r) {
    switch (rng_below(r, 12)) {
    case 0: return 1 + rng_below(r, 4);
    case 1: return 250 + rng_below(r, 12);
    case 2: return 1000 + rng_below(r, 2000);
    case 3: return rng_below(r, 64) ? 500 : VOCAB_MAX;
    default: return 1 + rng_below(r, 120);
    }
}

static void random_logits(rng *r, float *x, size_t n) {
    size_t kind = rng_below(r, 7);
    for (size_t i = 0; i < n; i++) {
        float u = random_float(r, NORMAL);
        switch (kind) {
        case 0: x[i] = (float)rng_below(r, 4); break;                 /* ties */
        case 1: x[i] = u * 3e37f; break;                              /* huge */
        case 2: x[i] = rng_below(r, 3) ? -INFINITY : u * 4.0f; break; /* forbidden tokens */
        case 3: x[i] = 0.0f; break;
        case 4: x[i] = u * 1e-6f; break;
        default: x[i] = u * 8.0f; break;
        }
    }
    x[rng_below(r, n)] = kind == 1 ? 2e37f : 5.0f; /* at least one is finite */
}

static float one_of(rng *r, const float *values, size_t n) { return values[rng_below(r, n)]; }
#define ONE_OF(r, ...) one_of(r, (const float[]){__VA_ARGS__}, sizeof(float[]){__VA_ARGS__} / sizeof(float))

/* Few, most or all tokens; sometimes only tokens whose logits are -infinity. */
static const uint64_t *random_allowed(rng *r, size_t vocab) {
    static uint64_t mask[VOCAB_MAX / 64 + 1];
    size_t kind = rng_below(r, 8);
    if (kind > 3) return NULL;
    for (size_t i = 0; i <= vocab / 64; i++) {
        mask[i] = kind == 0 ? 0 : rng_next(r);
        if (kind == 1) mask[i] |= rng_next(r) | rng_next(r);
        if (kind == 2 && rng_below(r, 2)) mask[i] = rng_below(r, 2) ? ~(uint64_t)0 : 0;
    }
    size_t id = rng_below(r, vocab);
    mask[id / 64] |= (uint64_t)1 << (id % 64);
    return mask;
}

static iv_sampling random_sampling(rng *r, size_t vocab, iv_logit_bias *bias) {
    iv_sampling p = {.seed = rng_next(r), .bias = bias};
    p.temperature = ONE_OF(r, 0.0f, 1.0f, 1.0f, 0.6f, 0.01f, 1e-4f, 2.5f, 100.0f);
    p.top_p = ONE_OF(r, 1.0f, 1.0f, 0.95f, 0.5f, 0.1f, 1e-6f, 0.9999999f);
    p.min_p = ONE_OF(r, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-6f);
    p.top_k = (int32_t)(rng_below(r, 2) ? 0 : 1 + rng_below(r, rng_below(r, 2) ? 20 : 2 * vocab));
    p.repetition_penalty = ONE_OF(r, 1.0f, 1.0f, 1.3f, 0.5f, 100.0f);
    p.presence_penalty = ONE_OF(r, 0.0f, 0.0f, 0.7f, -2.0f);
    p.frequency_penalty = ONE_OF(r, 0.0f, 0.0f, 0.3f, -1.1f, 2.0f);
    p.bias_count = rng_below(r, 3) ? 0 : rng_below(r, BIAS_MAX);
    for (size_t i = 0; i < p.bias_count; i++)
        bias[i] = (iv_logit_bias){(int32_t)rng_below(r, vocab), ONE_OF(r, 100.0f, -100.0f, 1.5f, -0.1f)};
    return p;
}

static size_t random_seen(rng *r, iv_seen *seen, size_t vocab) {
    size_t n = 0, step = 1 + vocab / SEEN_MAX;
    if (rng_below(r, 2)) return 0;
    for (size_t id = rng_below(r, step); id < vocab && n < SEEN_MAX; id += 1 + rng_below(r, 2 * step))
        seen[n++] = (iv_seen){(int32_t)id, (uint32_t)rng_below(r, 4)};
    return n;
}

static void same_as_the_naive_sampler(void **state) {
    (void)state;
    rng r = rng_start("sampler");
    float *logits = malloc(VOCAB_MAX * sizeof *logits);
    iv_seen seen[SEEN_MAX];
    iv_logit_bias bias[BIAS_MAX];
    iv_error err;
    size_t drawn = 0, masked = 0;
    for (size_t trial = 0; trial < trials(20000, 400000); trial++) {
        size_t vocab = random_vocab(&r);
        iv_sampler s;
        ASSERT_OK(iv_sampler_open(&s, vocab, &err), &err);
        random_logits(&r, logits, vocab);
        iv_sampling p = random_sampling(&r, vocab, bias);
        p.allowed = random_allowed(&r, vocab);
        masked += p.allowed != NULL;
        size_t seen_count = random_seen(&r, seen, vocab);
        uint64_t position = rng_below(&r, 3) ? rng_below(&r, 5000) : rng_next(&r);
        float logprob, got_logprob;
        int32_t want = naive_sample(&p, logits, vocab, seen, seen_count, position, &logprob);
        drawn += p.temperature > 0.0f && logprob < 0.0f;
        const iv_kernels *k = iv_kernels_select((iv_isa)rng_below(&r, (size_t)iv_isa_detect() + 1));
        for (int again = 0; again < 2; again++) { /* the second time on what the first left behind */
            int32_t got = iv_sample(&s, k, &p, logits, seen, seen_count, position);
            assert_true(is_allowed(&p, (size_t)got));
            if (got != want)
                fail_msg("trial %zu: vocab %zu T %g k %d p %g min_p %g seen %zu on %s: wanted %d, got %d", trial, vocab,
                         (double)p.temperature, (int)p.top_k, (double)p.top_p, (double)p.min_p, seen_count,
                         iv_isa_name(k->isa), (int)want, (int)got);
            got = iv_sample_with_logprob(&s, k, &p, logits, seen, seen_count, position, &got_logprob);
            assert_int_equal(got, want);
            if (iv_bits(got_logprob) != iv_bits(logprob) || !(got_logprob <= 0.0f))
                fail_msg("trial %zu: vocab %zu T %g k %d p %g min_p %g on %s: wanted logprob %a, got %a", trial, vocab,
                         (double)p.temperature, (int)p.top_k, (double)p.top_p, (double)p.min_p, iv_isa_name(k->isa),
                         (double)logprob, (double)got_logprob);
        }
        iv_sampler_close(&s);
    }
    assert_true(masked > 1000 && drawn > 1000); /* of tokens that were not the only ones */
    free(logits);
}

/* ---- statistics ---------------------------------------------------------------------------------------- */

enum { SMALL = 10 };
static const float small_logits[SMALL] = {1.0f, -0.5f, 2.0f, 0.0f, 1.5f, -3.0f, 0.7f, 2.0f, -1.2f, 0.3f};

/* Draws and compares with the softmax of the kept tokens. For 9 degrees of freedom chi-square passes 46.0
 * with probability 6e-7; the seeds are fixed, so a pass stays a pass. */
static void draw(const char *name, const iv_sampling *p, const char *kept) {
    iv_sampler s;
    iv_error err;
    double weight[SMALL], total = 0, chi = 0;
    size_t count[SMALL] = {0};
    ASSERT_OK(iv_sampler_open(&s, SMALL, &err), &err);
    const iv_kernels *k = iv_kernels_select(iv_isa_detect());
    for (size_t i = 0; i < SMALL; i++)
        total += weight[i] = kept[i] == '1' ? exp((double)small_logits[i] / (double)p->temperature) : 0.0;
    for (size_t n = 0; n < DRAWS; n++) {
        iv_sampling q = *p;
        q.seed = 1000 + n / 1000; /* both the seed and the position move */
        count[iv_sample(&s, k, &q, small_logits, NULL, 0, n % 1000)]++;
    }
    for (size_t i = 0; i < SMALL; i++) {
        double expected = DRAWS * weight[i] / total;
        if (expected == 0)
            assert_int_equal(count[i], 0);
        else
            chi += ((double)count[i] - expected) * ((double)count[i] - expected) / expected;
    }
    printf("%-16s chi-square %.2f\n", name, chi);
    assert_true(chi < 46.0);
    iv_sampler_close(&s);
}

static void draws_follow_the_softmax(void **state) {
    (void)state;
    const iv_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    iv_sampling p = plain;
    draw("softmax", &p, "1111111111");
    p.temperature = 0.5f;
    draw("temperature 0.5", &p, "1111111111");
    p = plain, p.temperature = 3.0f;
    draw("temperature 3", &p, "1111111111");
    p = plain, p.top_k = 4;
    draw("top-k 4", &p, "1010100100");
    p = plain, p.top_p = 0.6f; /* 2.0, 2.0 and 1.5 hold 0.68 of it, the first two 0.53 */
    draw("top-p 0.6", &p, "0010100100");
    p = plain, p.min_p = 0.2f; /* exp(0.7 - 2) = 0.27 stays, exp(0.3 - 2) = 0.18 goes */
    draw("min-p 0.2", &p, "1010101100");
    p = plain, p.top_k = 6, p.top_p = 0.9f, p.min_p = 0.3f;
    draw("all three", &p, "1010100100");
}

static void control_statistics_can_fail(void **state) {
    (void)state;
    double chi = 0, expected = DRAWS / 2.0; /* a coin of 0.51 would be seen */
    for (int i = 0; i < 2; i++) {
        double d = (i ? 0.49 : 0.51) * DRAWS - expected;
        chi += d * d / expected;
    }
    assert_true(chi > 46.0);
}

/* ---- noise --------------------------------------------------------------------------------------------- */

static void philox_known_answers(void **state) {
    (void)state; /* from the authors' Random123 distribution */
    static const uint32_t ones[4] = {~0u, ~0u, ~0u, ~0u}, zero[4] = {0};
    static const uint32_t of_zero[4] = {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
    static const uint32_t of_ones[4] = {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu};
    uint32_t out[4];
    iv_philox4x32(zero, zero, out);
    assert_memory_equal(out, of_zero, sizeof out);
    iv_philox4x32(ones, ones, out);
    assert_memory_equal(out, of_ones, sizeof out);
    for (int32_t id = 0; id < 4; id++) /* seed 0, position 0: the four words of one block, in order */
        assert_int_equal(iv_bits(iv_gumbel(0, 0, id)), iv_bits(iv_gumbel_of(of_zero[id])));
    for (uint64_t far = 1; far < 40; far++) { /* nothing of seed, position or id is lost */
        assert_int_not_equal(iv_bits(iv_gumbel(far << 40, 0, 0)), iv_bits(iv_gumbel(0, 0, 0)));
        assert_int_not_equal(iv_bits(iv_gumbel(0, far << 40, 0)), iv_bits(iv_gumbel(0, 0, 0)));
        assert_int_not_equal(iv_bits(iv_gumbel(0, 0, (int32_t)far * 4)), iv_bits(iv_gumbel(0, 0, 0)));
    }
}

/* bits -> -log(-log(1 - v)) in double, v as the law rounds it. */
static double gumbel_in_double(uint32_t bits) {
    float v = (float)bits * 0x1p-32f + 0x1p-33f;
    if (v >= 1.0f) v = 0x1.fffffep-1f;
    return -log(-log1p(-(double)v));
}

typedef struct noise_walk {
    double before, error, rise; /* the last value and the worst seen */
} noise_walk;

static void walk_on(noise_walk *w, uint32_t bits) {
    double g = (double)iv_gumbel_of(bits), error = fabs(gumbel_in_double(bits) - g);
    if (!(g < 22.9 && g > -2.9)) fail_msg("bits %08x: %a is out of range", bits, g);
    if (error > w->error) w->error = error;
    if (g - w->before > w->rise) w->rise = g - w->before;
    w->before = g;
}

/* More bits, less noise; the error is the rounding of 1 - v, 2^-25, over v, which is at least 2^-12 there. */
static void gumbel_falls_and_is_finite(void **state) {
    (void)state;
    noise_walk w = {.before = INFINITY};
    uint32_t step = (uint32_t)(getenv("INVAR_TEST_LONG") ? 7 : 1009);
    for (uint64_t b = 0; b <= UINT32_MAX; b += step) walk_on(&w, (uint32_t)b);
    for (int power = 0; power < 32; power++) { /* neighbours, where the formula or the spacing changes */
        int64_t middle = (int64_t)1 << power, from = middle > 2000 ? middle - 2000 : 0;
        w.before = INFINITY;
        for (int64_t b = from; b < middle + 2000; b++) walk_on(&w, (uint32_t)b);
    }
    w.before = INFINITY;
    for (uint32_t b = UINT32_MAX - 100000; b != 0; b++) walk_on(&w, b);
    printf("gumbel: %.9g at bits 0, %.9g at bits ffffffff; error at most %.3g, rises by at most %.3g\n",
           (double)iv_gumbel_of(0), (double)iv_gumbel_of(UINT32_MAX), w.error, w.rise);
    assert_true(w.error < 0x1.01p-13 && w.rise == 0);
    w = (noise_walk){.before = INFINITY}; /* below 2^-12 nothing is lost */
    for (uint32_t b = 0; b < 1u << 20; b++) walk_on(&w, b);
    assert_true(w.error < 2e-6 && w.rise == 0);
}

/* ---- edges --------------------------------------------------------------------------------------------- */

static int32_t sample_of(const iv_sampling *p, const float *logits, size_t vocab, uint64_t position) {
    iv_sampler s;
    iv_error err;
    ASSERT_OK(iv_sampler_open(&s, vocab, &err), &err);
    int32_t id = iv_sample(&s, iv_kernels_select(iv_isa_detect()), p, logits, NULL, 0, position);
    iv_sampler_close(&s);
    return id;
}

static void greedy_takes_the_smaller_id(void **state) {
    (void)state;
    const float x[6] = {1.0f, 3.0f, 2.0f, 3.0f, -INFINITY, 3.0f}, zeros[3] = {-0.0f, 0.0f, 0.0f};
    iv_sampling p = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    assert_int_equal(sample_of(&p, x, 6, 0), 1);
    assert_int_equal(sample_of(&p, zeros, 3, 0), 0);
    p.temperature = 1, p.top_k = 1; /* the same token by another way */
    for (uint64_t position = 0; position < 100; position++) assert_int_equal(sample_of(&p, x, 6, position), 1);
}

static unsigned ids_drawn(const iv_sampling *p, const float *logits, size_t vocab) {
    unsigned drawn = 0;
    for (uint64_t position = 0; position < 400; position++) drawn |= 1u << sample_of(p, logits, vocab, position);
    return drawn;
}

static void top_p_at_the_boundary(void **state) {
    (void)state;
    const float x[4] = {0, 0, 0, 0};
    iv_sampling p = {.temperature = 1, .repetition_penalty = 1};
    const struct {
        float top_p;
        unsigned drawn;
    } cases[] = {{0.25f, 1}, {0.5f, 3}, {0x1.000002p-1f, 7}, {0.75f, 7}, {0x1.800002p-1f, 15}, {1e-30f, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        p.top_p = cases[i].top_p;
        assert_int_equal(ids_drawn(&p, x, 4), cases[i].drawn);
        p.top_k = 4; /* that is: off */
        assert_int_equal(ids_drawn(&p, x, 4), cases[i].drawn);
        p.top_k = 0;
    }
}

static void min_p_at_the_boundary(void **state) {
    (void)state;
    const float x[4] = {0, -1, 0, -2};
    iv_sampling p = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .min_p = v_exp(-1.0f)};
    assert_int_equal(ids_drawn(&p, x, 4), 7);
    p.min_p = nextafterf(p.min_p, 1.0f);
    assert_int_equal(ids_drawn(&p, x, 4), 5);
    p.top_k = 1; /* filters add up */
    assert_int_equal(ids_drawn(&p, x, 4), 1);
}

static void overflow_by_temperature_is_greedy(void **state) {
    (void)state;
    const float x[4] = {-3e38f, 1e37f, 2e37f, 3e-38f};
    iv_sampling p = {.temperature = 1e-4f, .top_p = 1, .repetition_penalty = 1};
    for (int filter = 0; filter < 4; filter++) {
        p.top_k = filter == 1 ? 1 : 0, p.top_p = filter == 2 ? 0.9f : 1.0f, p.min_p = filter == 3 ? 0.1f : 0.0f;
        assert_int_equal(ids_drawn(&p, x, 4), 2); /* both of 1e37 and more are infinite now */
    }
}

/* The engine refuses logits that are not finite; the sampler returns a token for any logits. */
static void nonsense_gives_a_token(void **state) {
    (void)state;
    rng r = rng_start("nonsense");
    float x[64];
    iv_logit_bias bias[BIAS_MAX];
    for (size_t trial = 0; trial < 20000; trial++) {
        size_t vocab = 1 + rng_below(&r, 64);
        for (size_t i = 0; i < vocab; i++) x[i] = rng_below(&r, 3) ? NAN : random_float(&r, SPECIAL);
        iv_sampling p = random_sampling(&r, vocab, bias);
        int32_t id = sample_of(&p, x, vocab, trial);
        assert_in_range(id, 0, vocab - 1);
    }
}

static void top_logprobs_are_a_sort(void **state) {
    (void)state;
    rng r = rng_start("top logprobs");
    for (size_t trial = 0; trial < 2000; trial++) {
        size_t vocab = 1 + rng_below(&r, rng_below(&r, 10) ? 300 : 5000), n = rng_below(&r, IV_TOP_MAX + 1);
        float *x = malloc(vocab * sizeof *x), max, log_sum;
        int32_t *order = malloc(vocab * sizeof *order);
        iv_logprob top[IV_TOP_MAX];
        random_logits(&r, x, vocab);
        if (n > vocab) n = vocab;
        for (size_t i = 0; i < vocab; i++) order[i] = (int32_t)i;
        sorted_by = x;
        qsort(order, vocab, sizeof *order, in_order);
        iv_ref_log_sum_exp(x, vocab, &max, &log_sum);
        iv_top_logprobs(iv_kernels_select(iv_isa_detect()), x, vocab, max, log_sum, top, n);
        for (size_t i = 0; i < n; i++) {
            float want = (x[order[i]] - max) - log_sum;
            assert_int_equal(top[i].id, order[i]);
            assert_int_equal(iv_bits(top[i].logprob), iv_bits(want));
        }
        free(x), free(order);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_the_naive_sampler),
                                       cmocka_unit_test(draws_follow_the_softmax),
                                       cmocka_unit_test(control_statistics_can_fail),
                                       cmocka_unit_test(philox_known_answers),
                                       cmocka_unit_test(gumbel_falls_and_is_finite),
                                       cmocka_unit_test(greedy_takes_the_smaller_id),
                                       cmocka_unit_test(top_p_at_the_boundary),
                                       cmocka_unit_test(min_p_at_the_boundary),
                                       cmocka_unit_test(overflow_by_temperature_is_greedy),
                                       cmocka_unit_test(nonsense_gives_a_token),
                                       cmocka_unit_test(top_logprobs_are_a_sort)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
