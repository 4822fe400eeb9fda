/* sampler.c: filters and Gumbel-max. A shortcut skips only tokens that cannot win. */
#include "sample/sampler.h"
#include "numerics/philox.h"
#include "numerics/rows.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

#include <stdlib.h>
#include <string.h>

iv_status iv_sampler_open(iv_sampler *s, size_t vocab, iv_error *err) {
    *s = (iv_sampler){.vocab = vocab,
                      .work = malloc(vocab * sizeof(float)),
                      .order = malloc(vocab * sizeof(int32_t)),
                      .mask = calloc(vocab / 64 + 1, sizeof(uint64_t))};
    if (s->work && s->order && s->mask) return IV_OK;
    iv_sampler_close(s);
    return iv_fail(err, IV_NO_MEMORY, "sampler: no memory for a vocabulary of %zu", vocab);
}

void iv_sampler_close(iv_sampler *s) {
    free(s->work);
    free(s->order);
    free(s->mask);
    *s = (iv_sampler){0};
}

/* ---- the total order ----------------------------------------------------------------------------------- */

static bool before(const float *x, int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); }

/* A heap whose root is the last in order. */
static void sift_down(const float *x, int32_t *heap, size_t n, size_t i) {
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(x, heap[child], heap[child + 1])) child++;
        if (!before(x, heap[i], heap[child])) return;
        int32_t t = heap[i];
        heap[i] = heap[child], heap[child] = t;
    }
}

static void sort_in_order(const float *x, int32_t *ids, size_t n) { /* heap sort: no recursion, no allocation */
    for (size_t i = n / 2; i-- > 0;) sift_down(x, ids, n, i);
    for (size_t left = n; left > 1; left--) {
        int32_t t = ids[0];
        ids[0] = ids[left - 1], ids[left - 1] = t;
        sift_down(x, ids, left - 1, 0);
    }
}

/* Puts the first k in order of n tokens into out, sorted. */
static void select_first(const iv_kernels *kernels, const float *x, size_t n, int32_t *out, size_t k) {
    for (size_t i = 0; i < k; i++) out[i] = (int32_t)i;
    for (size_t i = k / 2; i-- > 0;) sift_down(x, out, k, i);
    for (size_t i = k; (i = kernels->find_above(x, i, n, x[out[0]])) < n;
         i++) { /* of equal logits the smaller id is kept */
        out[0] = (int32_t)i;
        sift_down(x, out, k, 0);
    }
    sort_in_order(x, out, k);
}

/* ---- filters ------------------------------------------------------------------------------------------- */

static void adjust(const iv_sampling *p, float *x, size_t vocab, const iv_seen *seen, size_t seen_count) {
    for (size_t i = 0; i < p->bias_count; i++)
        if (p->bias[i].id >= 0 && (size_t)p->bias[i].id < vocab) x[p->bias[i].id] = x[p->bias[i].id] + p->bias[i].bias;
    for (size_t i = 0; i < seen_count; i++) {
        float *y = &x[seen[i].id];
        if (p->repetition_penalty != 1.0f) *y = *y > 0.0f ? *y / p->repetition_penalty : *y * p->repetition_penalty;
        if (seen[i].generated == 0) continue;
        *y = *y - p->frequency_penalty * (float)seen[i].generated;
        *y = *y - p->presence_penalty;
    }
}

static int32_t first_allowed(const uint64_t *allowed) {
    size_t word = 0;
    while (allowed[word] == 0) word++;
    return (int32_t)(64 * word) + __builtin_ctzll(allowed[word]);
}

static int by_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* The sum of exp(x - max) over n tokens, in lanes by id: as the law sums a row in which the others are -infinity. */
static float sum_of(const float *x, const int32_t *ids, size_t n, float max) {
    float lanes[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < n; i++) lanes[ids[i] % IV_ROW_LANES] += v_exp(x[ids[i]] - max);
    return iv_ref_fold_lanes(lanes);
}

/* How many of the sorted tokens reach the fraction top_p of `total`; n, and *enough is false, if they do not. */
static size_t nucleus(const float *x, const int32_t *sorted, size_t n, float max, float total, float top_p,
                      bool *enough) {
    double target = (double)top_p * (double)total, sum = 0.0;
    *enough = true;
    for (size_t i = 0; i < n; i++) {
        sum += (double)v_exp(x[sorted[i]] - max);
        if (sum >= target) return i + 1;
    }
    *enough = false;
    return n;
}

/* The nucleus of the whole vocabulary; sorts only tokens near the maximum, more of them until they suffice. */
static size_t nucleus_of_all(iv_sampler *s, const iv_kernels *k, float max, float top_p) {
    float total, unused;
    k->sum_exp(s->work, s->vocab, &unused, &total);
    for (float depth = 6.0f;; depth *= 2.0f) {
        size_t n = 0;
        for (size_t i = 0; i < s->vocab; i++)
            if (s->work[i] >= max - depth) s->order[n++] = (int32_t)i;
        sort_in_order(s->work, s->order, n);
        bool enough;
        size_t kept = nucleus(s->work, s->order, n, max, total, top_p, &enough);
        if (enough || n == s->vocab || depth > 1e6f) return kept;
    }
}

static size_t top_k_then_p(iv_sampler *s, const iv_kernels *kernels, const iv_sampling *p, size_t k) {
    bool enough;
    select_first(kernels, s->work, s->vocab, s->order, k);
    if (p->top_p >= 1.0f) return k;
    float max = s->work[s->order[0]];
    int32_t *ascending = s->order + k; /* a second list of k ids fits: k < vocab / 2, see narrow */
    memcpy(ascending, s->order, k * sizeof *ascending);
    qsort(ascending, k, sizeof *ascending, by_id);
    return nucleus(s->work, s->order, k, max, sum_of(s->work, ascending, k, max), p->top_p, &enough);
}

/* ---- noise --------------------------------------------------------------------------------------------- */

float iv_gumbel_of(uint32_t bits) {
    float v = (float)bits * 0x1p-32f + 0x1p-33f; /* each rounded once; may reach 1 */
    if (v > 0x1.fffffep-1f) v = 0x1.fffffep-1f;
    float e = v < 0x1p-12f ? iv_fma(v * 0.5f, v, v) : -v_log(1.0f - v); /* -log(1 - v) */
    return -v_log(e);
}

static void noise_block(uint64_t seed, uint64_t position, uint32_t block, uint32_t out[4]) {
    const uint32_t counter[4] = {block, (uint32_t)position, (uint32_t)(position >> 32), 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    iv_philox4x32(counter, key, out);
}

float iv_gumbel(uint64_t seed, uint64_t position, int32_t id) {
    uint32_t r[4];
    noise_block(seed, position, (uint32_t)id >> 2, r);
    return iv_gumbel_of(r[id & 3]);
}

typedef struct choice {
    float value;
    int32_t id;
} choice;

static void consider(choice *best, float x, float noise, int32_t id) {
    float value = x + noise;
    if (best->id < 0 || value > best->value || (value == best->value && id < best->id)) *best = (choice){value, id};
}

/* The noise of `bits` is at most -log(bits / 2^32), as -log(1 - v) >= v; 0.25 covers all roundings. Computed from the
 * exponent of the upper 24 bits, which are exact as a float; 0 gives a bound above any noise. */
static float noise_bound(uint32_t bits) {
    int32_t exponent = (int32_t)(iv_bits((float)(int32_t)(bits >> 8)) >> 23) - 127;
    return (float)(24 - exponent) * 0.6931472f + 0.25f;
}

enum { NOISE_BLOCKS = 32, NOISE_IDS = 4 * NOISE_BLOCKS };

/* The next float below x, so that a value above it is at least x. */
static float just_below(float x) {
    if (x == 0.0f) return -0x1p-149f;
    return iv_float(x > 0.0f ? iv_bits(x) - 1 : iv_bits(x) + 1);
}

/* Over x[0..vocab), where -infinity is a dropped token. Works in chunks: if no token of a chunk could win with the
 * largest possible noise, its noise is not computed. (A token below best - 23.2, rounded, cannot reach best
 * with 22.8739 and another rounding: each error is at most half an ulp, and floats are an ulp apart.) */
static int32_t gumbel_max_of_all(const iv_kernels *k, const iv_sampling *p, const float *x, size_t vocab,
                                 uint64_t position) {
    static const float noise_most = 23.2f; /* of bits 0: 22.8739, and roundings */
    int32_t first = (int32_t)k->largest(x, vocab);
    choice best = {0, -1};
    consider(&best, x[first], iv_gumbel(p->seed, position, first), first);
    for (size_t from = 0; from < vocab; from += NOISE_IDS) {
        uint32_t bits[NOISE_IDS];
        float bound[NOISE_IDS];
        size_t n = vocab - from < NOISE_IDS ? vocab - from : NOISE_IDS;
        if (k->find_above(x, from, from + n, just_below(best.value - noise_most)) == from + n) continue;
        k->random(p->seed, position, (uint32_t)(from / 4), (n + 3) / 4, bits);
        for (size_t i = 0; i < n; i++) bound[i] = x[from + i] + noise_bound(bits[i]);
        for (size_t i = 0; (i = k->find_above(bound, i, n, just_below(best.value))) < n; i++)
            consider(&best, x[from + i], iv_gumbel_of(bits[i]), (int32_t)(from + i));
    }
    return best.id;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

/* exp(x - max) >= min_p is tested directly for each token, without a logarithm. */
static bool passes_min_p(float x, float max, float min_p) { return v_exp(x - max) >= min_p; }

/* Does any bias or penalty change the row? */
static bool adjusts(const iv_sampling *p) {
    return p->bias_count || p->repetition_penalty != 1.0f || p->frequency_penalty != 0.0f ||
           p->presence_penalty != 0.0f;
}

/* The row to choose from: adjusted and divided in `work`, or the logits themselves. */
static const float *prepare(iv_sampler *s, const iv_sampling *p, const float *logits, const iv_seen *seen,
                            size_t seen_count) {
    const float *x = logits;
    if (adjusts(p) || p->allowed) {
        memcpy(s->work, logits, s->vocab * sizeof *x);
        if (adjusts(p)) adjust(p, s->work, s->vocab, seen, seen_count);
        if (p->allowed) iv_ref_forbid(s->work, 0, s->vocab, p->allowed);
        x = s->work;
    }
    if (p->temperature == 0.0f || p->temperature == 1.0f) return x;
    for (size_t i = 0; i < s->vocab; i++) s->work[i] = x[i] / p->temperature;
    return s->work;
}

/* 10.7: (x[id] - max) - log(sum of exp(x - max) over a row in which dropped tokens are -infinity). */
static float log_softmax_at(const iv_kernels *kernels, const float *x, size_t vocab, float max, int32_t id) {
    float unused, sum;
    kernels->sum_exp(x, vocab, &unused, &sum);
    return (x[id] - max) - iv_ref_log(sum);
}

/* Drops all tokens except those up to `last` in order that pass min-p. */
static void drop_others(float *x, size_t vocab, int32_t last, float max, float min_p) {
    float end = x[last];
    for (size_t i = 0; i < vocab; i++) {
        bool kept = x[i] > end || (x[i] == end && (int32_t)i <= last);
        if (!kept || (min_p > 0.0f && !passes_min_p(x[i], max, min_p))) x[i] = -INFINITY;
    }
}

/* Applies top-k and top-p to s->work; the kept tokens are in s->order. Returns how many. */
static size_t narrow(iv_sampler *s, const iv_kernels *kernels, const iv_sampling *p, float max) {
    float *x = s->work;
    size_t k = p->top_k > 0 ? (size_t)p->top_k : s->vocab;
    if (k < s->vocab / 2) return top_k_then_p(s, kernels, p, k);
    if (k < s->vocab) {
        select_first(kernels, x, s->vocab, s->order, k);
        for (size_t i = 0; i < s->vocab; i++) /* tokens that top-k drops become -infinity: sums then skip them */
            if (before(x, s->order[k - 1], (int32_t)i)) x[i] = -INFINITY;
        if (p->top_p >= 1.0f) return k;
    }
    return nucleus_of_all(s, kernels, max, p->top_p);
}

/* Nothing is drawn: one token is left. */
static int32_t keep_one(iv_sampler *s, int32_t id) {
    s->order[0] = id, s->kept = 1;
    return id;
}

/* Min-p alone, over the whole vocabulary: drops tokens of x, and lists the others. */
static void keep_by_min_p(iv_sampler *s, float *x, float max, float min_p) {
    s->kept = 0;
    for (size_t i = 0; i < s->vocab; i++)
        if (passes_min_p(x[i], max, min_p))
            s->order[s->kept++] = (int32_t)i;
        else
            x[i] = -INFINITY;
    sort_in_order(x, s->order, s->kept);
}

int32_t iv_sample_with_logprob(iv_sampler *s, const iv_kernels *kernels, const iv_sampling *p, const float *logits,
                               const iv_seen *seen, size_t seen_count, uint64_t position, float *sampling_logprob) {
    const float *row = prepare(s, p, logits, seen, seen_count);
    int32_t first = (int32_t)kernels->largest(row, s->vocab);
    float max = row[first];
    if (sampling_logprob) *sampling_logprob = 0.0f;
    if (max == -INFINITY && p->allowed) return keep_one(s, first_allowed(p->allowed));
    if (p->temperature == 0.0f) return keep_one(s, first);
    if (!(max > -INFINITY && max < INFINITY)) return keep_one(s, first); /* a division overflowed: no probabilities */
    bool cut = (p->top_k > 0 && (size_t)p->top_k < s->vocab) || p->top_p < 1.0f; /* top-k or top-p */
    float *x = s->work;
    if ((cut || p->min_p > 0.0f) && row != x) row = memcpy(x, row, s->vocab * sizeof *x);
    choice best = {0, -1};
    if (!cut) {
        s->kept = 0;
        if (p->min_p > 0.0f) keep_by_min_p(s, x, max, p->min_p);
        best.id = gumbel_max_of_all(kernels, p, row, s->vocab, position);
    } else {
        size_t kept = narrow(s, kernels, p, max);
        int32_t last = s->order[kept - 1];
        s->kept = 0;
        for (size_t i = 0; i < kept; i++) {
            int32_t id = s->order[i];
            if (p->min_p > 0.0f && !passes_min_p(x[id], max, p->min_p)) continue;
            consider(&best, x[id], iv_gumbel(p->seed, position, id), id);
            s->order[s->kept++] = id;
        }
        if (sampling_logprob) drop_others(x, s->vocab, last, max, p->min_p);
    }
    if (sampling_logprob) *sampling_logprob = log_softmax_at(kernels, row, s->vocab, max, best.id);
    return best.id;
}

int32_t iv_sample(iv_sampler *s, const iv_kernels *kernels, const iv_sampling *p, const float *logits,
                  const iv_seen *seen, size_t seen_count, uint64_t position) {
    return iv_sample_with_logprob(s, kernels, p, logits, seen, seen_count, position, NULL);
}

void iv_top_logprobs(const iv_kernels *kernels, const float *logits, size_t vocab, float max, float log_sum,
                     iv_logprob *out, size_t n) {
    int32_t heap[IV_TOP_MAX];
    IV_ASSERT(n <= IV_TOP_MAX && n <= vocab);
    if (n == 0) return;
    select_first(kernels, logits, vocab, heap, n);
    for (size_t i = 0; i < n; i++) out[i] = (iv_logprob){heap[i], (logits[heap[i]] - max) - log_sum};
}
