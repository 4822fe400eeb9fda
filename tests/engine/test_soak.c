/* 600 requests (with INVAR_TEST_LONG 20,000) through engines with too few pages, slots and tokens in a step.
 * Requests arrive at random, share prefixes, are cancelled and preempted, run in a batch and from cached prefixes, with
 * and without speculation. Each that finishes must have the bits of its quiet run: alone, in one chunk, without a
 * cache.
 *
 * INVAR_DEVICE=cuda: on GPUs, with as many ranks as there are GPUs; INVAR_SOAK_REQUESTS=N: so many requests, in fewer
 * engines if they are few. */
#include "client.h"
#include "device/gpu.h"
#include "base/clock.h"
#include "engine/state.h"

enum { VOCAB = 1024, MODEL_LEN = 256, PROMPT_MAX = 170, TEXTS = 4, PAGE_BYTES = 64 * 3072 };

typedef struct spec {
    int32_t prompt[PROMPT_MAX];
    iv_request request; /* but for ids */
    bool keeps_logits;
} spec;

typedef struct soak {
    rng r;
    size_t count;
    spec *specs;
    answer *quiet;
    int32_t texts[TEXTS][PROMPT_MAX];
    size_t cancelled, preemptions, cached, drafted, accepted, compared_rows, forced, reported;
} soak;

static const char *const stops[] = {"so", "=", "12"};

/* Prompts begin with one of a few texts and diverge at a random position. */
static void make_spec(soak *k, spec *s) {
    rng *r = &k->r;
    const int32_t *text = k->texts[rng_below(r, TEXTS)];
    size_t n = 1 + rng_below(r, rng_below(r, 2) ? 30 : PROMPT_MAX), own = rng_below(r, 4) ? rng_below(r, 12) : n;
    bool grows = rng_below(r, 4) == 0; /* soon into another page */
    if (grows) n = 64 - 1 - rng_below(r, 12);
    for (size_t i = 0; i < n; i++) s->prompt[i] = i + own < n ? text[i] : (int32_t)rng_below(r, 600);
    iv_request *q = &s->request;
    *q = (iv_request){.size = sizeof *q};
    q->id_count = n, q->max_tokens = 1 + rng_below(r, rng_below(r, 8) ? 8 : 70) + (grows ? 20 : 0);
    q->temperature = (float[]){0, 0.6f, 1, 1.4f}[rng_below(r, 4)], q->top_p = 1, q->repetition_penalty = 1;
    if (rng_below(r, 3) == 0) q->top_k = 20, q->top_p = 0.95f;
    if (rng_below(r, 5) == 0) q->min_p = 0.05f;
    if (rng_below(r, 5) == 0) q->repetition_penalty = 1.2f, q->presence_penalty = 0.3f, q->frequency_penalty = -0.2f;
    if (rng_below(r, 6) == 0) q->stop = stops, q->stop_count = 3;
    q->has_seed = true, q->seed = rng_next(r) >> 1, q->ignore_eos = grows || rng_below(r, 2), q->logprobs = -1;
    q->priority = (int32_t)rng_below(r, 3);
    q->sampling_logprobs = rng_below(r, 3) == 0;
    q->prompt_logprobs = (int)rng_below(r, 6) - 4; /* most: none */
    if (q->prompt_logprobs < 0) q->prompt_logprobs = -1;
    q->prompt_logprobs_start = rng_below(r, 2) ? rng_below(r, n + 1) : 0;
    s->keeps_logits = q->keep_logits = rng_below(r, 10) == 0;
    if (rng_below(r, 4) == 0) q->min_tokens = rng_below(r, q->max_tokens + 1);
}

static bool on_gpus(void) {
    const char *device = getenv("INVAR_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

static iv_engine_options device_options(void) {
    iv_engine_options o = small_options();
    o.device = on_gpus() ? "cuda" : "cpu";
    return o;
}

static iv_engine_options quiet_options(void) {
    iv_engine_options o = device_options();
    o.max_model_len = MODEL_LEN, o.max_num_seqs = 1, o.prefix_caching = false;
    return o;
}

static void want_logits(const soak *k, answer *a, size_t i) {
    if (!k->specs[i].keeps_logits) return;
    a->vocab = VOCAB;
    a->logits = malloc(k->specs[i].request.max_tokens * VOCAB * sizeof *a->logits);
    assert_non_null(a->logits);
}

static void send_spec(const soak *k, iv_engine *e, size_t i, answer *a) {
    iv_request q = k->specs[i].request;
    q.ids = k->specs[i].prompt, q.id = i + 1;
    want_logits(k, a, i);
    submit(e, &q, a);
}

static soak *open_soak(const char *name, size_t count) {
    soak *k = calloc(1, sizeof *k);
    assert_non_null(k);
    k->r = rng_start(name), k->count = count;
    k->specs = calloc(count, sizeof *k->specs);
    assert_non_null(k->specs);
    k->quiet = answers_new(count);
    for (size_t t = 0; t < TEXTS; t++) /* some repeat themselves, so that drafts find something */
        for (size_t i = 0; i < PROMPT_MAX; i++)
            k->texts[t][i] = t % 2 && i >= 7 ? k->texts[t][i - 7] : (int32_t)rng_below(&k->r, 600);
    for (size_t i = 0; i < count; i++) make_spec(k, &k->specs[i]);
    iv_engine_options o = quiet_options();
    iv_engine *e = open_with(&o);
    for (size_t i = 0; i < count; i++) {
        send_spec(k, e, i, &k->quiet[i]);
        run_all(e, &k->quiet[i], 1);
    }
    iv_engine_close(e);
    return k;
}

static void free_answers(answer *a, size_t n) {
    for (size_t i = 0; i < n; i++) free(a[i].logits);
    answers_free(a, n);
}

static void close_soak(soak *k) {
    free_answers(k->quiet, k->count);
    free(k->specs);
    free(k);
}

/* NULL, or the name of the difference. */
static const char *difference(const answer *want, const answer *got) {
    if (got->finish == IV_FINISH_CANCELLED) {
        if (got->count > want->count) return "more tokens than the quiet run";
    } else if (want->count != got->count || want->finish != got->finish || strcmp(want->digest, got->digest) != 0)
        return "digest, length or finish";
    else if (strcmp(text_of(want), text_of(got)) != 0 || strcmp(want->stop, got->stop) != 0)
        return "text";
    if (memcmp(want->ids, got->ids, got->count * sizeof *got->ids) != 0) return "tokens";
    if (memcmp(want->logprobs, got->logprobs, got->count * sizeof *got->logprobs) != 0) return "logprobs";
    if (memcmp(want->sampling_logprobs, got->sampling_logprobs, got->count * sizeof *got->logprobs) != 0)
        return "sampling logprobs";
    if (got->finish != IV_FINISH_CANCELLED &&
        (want->reported != got->reported || want->reported_hash != got->reported_hash))
        return "logprobs of the prompt";
    if (got->logits && memcmp(want->logits, got->logits, got->count * VOCAB * sizeof(float)) != 0) return "logits";
    return NULL;
}

/* The limits of each engine. */
typedef struct shape {
    size_t tp, threads, budget, seqs, spare_pages;
    bool caching;
    size_t speculative; /* 0: off */
} shape;

static const size_t tp_sizes[] = {1, 2, 1, 4, 1, 8};

/* A rank is a thread or a GPU; there may be fewer GPUs than a shape has ranks. */
static size_t ranks_here(size_t wanted) {
    iv_error err;
    size_t gpus;
    if (!on_gpus()) return wanted;
    ASSERT_OK(iv_gpu_count(&gpus, &err), &err);
    return wanted < gpus ? wanted : gpus;
}

static shape make_shape(rng *r, size_t i) {
    static const size_t budgets[] = {16, 32, 64, 128, 256, 512}, seqs[] = {2, 4, 8, 16, 32};
    return (shape){.tp = ranks_here(tp_sizes[(i + i / 6) % (sizeof tp_sizes / sizeof *tp_sizes)]),
                   .threads = 1 + rng_below(r, 2),
                   .budget = budgets[i % 6],
                   .seqs = seqs[rng_below(r, 5)],
                   .spare_pages = rng_below(r, 4),
                   .caching = i % 4 != 3,
                   .speculative = i % 2 ? 1 + rng_below(r, 8) : 0};
}

static iv_engine_options shape_options(const shape *s) {
    iv_engine_options o = device_options();
    o.max_model_len = MODEL_LEN, o.tensor_parallel_size = s->tp, o.threads = s->threads;
    o.max_num_batched_tokens = s->budget, o.max_num_seqs = s->seqs, o.prefix_caching = s->caching;
    o.kv_bytes = (MODEL_LEN / 64 + s->spare_pages) * PAGE_BYTES;
    if (s->tp == 8) o.kv_bytes *= 2; /* four KV heads: two ranks hold each */
    if (s->speculative) o.speculative = "ngram", o.speculative_tokens = s->speculative;
    return o;
}

static void take_all(iv_engine *e, answer *a, size_t *done) {
    for (iv_event v; iv_engine_next_event(e, &v);) {
        note_event(&a[v.request - 1], &v);
        *done += v.kind == IV_EVENT_DONE;
    }
}

/* Sends requests [first, last) through one engine, with cancellations and preemptions, and compares. */
static void soak_engine(soak *k, const shape *s, size_t first, size_t last) {
    iv_engine_options o = shape_options(s);
    iv_engine *e = open_with(&o);
    answer *a = answers_new(k->count);
    iv_error err;
    iv_engine_stats stats;
    bool busy;
    for (size_t next = first, done = 0; done < last - first;) {
        size_t burst = rng_below(&k->r, 6) ? 0 : rng_below(&k->r, 2 * s->seqs + 4);
        for (; burst > 0 && next < last; burst--, next++) send_spec(k, e, next, &a[next]);
        if (e->running.count && rng_below(&k->r, 20) == 0) {
            ASSERT_OK(iv_engine_preempt(e, e->running.at[rng_below(&k->r, e->running.count)]->id, &err), &err);
            k->forced++;
        }
        size_t id = next > first ? next - rng_below(&k->r, next - first < 20 ? next - first : 20) : 1;
        if (rng_below(&k->r, 25) == 0) (void)iv_engine_cancel(e, id, &err); /* it may have ended, or not begun */
        if (rng_below(&k->r, 200) == 0) iv_engine_reset_prefix_cache(e);
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_all(e, a, &done);
    }
    iv_engine_get_stats(e, &stats);
    assert_true(stats.running == 0 && stats.waiting == 0 &&
                stats.kv_pages == stats.kv_pages_free + stats.kv_pages_cached);
    k->preemptions += stats.preemptions, k->cached += stats.cached_tokens;
    k->drafted += stats.drafted_tokens, k->accepted += stats.accepted_tokens;
    iv_engine_close(e);
    for (size_t i = first; i < last; i++) {
        const char *what = difference(&k->quiet[i], &a[i]);
        if (what)
            fail_msg("request %zu, tp %zu, %zu threads, %zu tokens a step, %zu sequences, %zu spare pages, caching %d, "
                     "drafts of %zu: %s differ from the quiet run",
                     i, s->tp, s->threads, s->budget, s->seqs, s->spare_pages, s->caching, s->speculative, what);
        k->cancelled += a[i].finish == IV_FINISH_CANCELLED;
        if (a[i].logits) k->compared_rows += a[i].count;
        k->reported += a[i].reported;
    }
    free_answers(a, k->count);
}

/* The numbers of requests and of engines. */
static size_t requests_wanted(size_t *engines) {
    const char *text = getenv("INVAR_SOAK_REQUESTS");
    size_t usual = SANITIZED ? 120 : trials(600, 20000);
    *engines = SANITIZED ? 4 : trials(8, 96);
    if (!text) return usual;
    char *end;
    unsigned long count = strtoul(text, &end, 10);
    if (*end || count < 300 || count > 1000000)
        fail_msg("INVAR_SOAK_REQUESTS: wanted 300 to 1000000, found '%s'", text);
    if (count < usual) *engines = 6; /* enough for every number of ranks */
    return count;
}

static void every_survivor_has_its_quiet_bits(void **state) {
    (void)state;
    size_t engines, count = requests_wanted(&engines);
    double start = iv_now();
    soak *k = open_soak("soak", count);
    double middle = iv_now();
    for (size_t i = 0; i < engines; i++) {
        shape s = make_shape(&k->r, i);
        soak_engine(k, &s, count * i / engines, count * (i + 1) / engines);
    }
    printf("on %s, up to %zu ranks; quiet runs: %.1f s, the others %.1f s\n", on_gpus() ? "cuda" : "cpu", ranks_here(8),
           middle - start, iv_now() - middle);
    printf("%zu requests, %zu cancelled, %zu preemptions (%zu asked for), %zu prompt tokens from the cache, %zu of %zu "
           "drafted tokens accepted, %zu rows of logits compared, %zu tokens of prompts scored\n",
           count, k->cancelled, k->preemptions, k->forced, k->cached, k->accepted, k->drafted, k->compared_rows,
           k->reported);
    if (!SANITIZED) { /* everything did happen */
        assert_true(k->cancelled > 0 && k->cancelled < count / 2 && k->cached > count / 4);
        assert_true(k->forced > count / 100 && k->preemptions >= k->forced);
        assert_true(k->drafted > k->accepted && k->accepted > 0 && k->compared_rows > 0 && k->reported > count);
    }
    close_soak(k);
}

/* ---- the comparison can fail --------------------------------------------------------------------------- */

/* The same requests twice through one engine, which overwrites cached pages with another prefix's in between. */
static void control_a_wrong_page_is_seen(void **state) {
    (void)state;
    enum { N = 6 };
    soak *k = open_soak("control", N);
    shape s = {1, 1, 512, 1, 40, true, 0};
    iv_engine_options o = shape_options(&s);
    o.device = "cpu"; /* whose pages can be written here */
    iv_engine *e = open_with(&o);
    for (int pass = 0; pass < 3; pass++) {
        answer *a = answers_new(N);
        size_t different = 0;
        for (size_t i = 0; i < N; i++) {
            iv_request q = k->specs[i].request;
            q.ids = k->texts[0], q.id_count = 140, q.id = i + 1, q.max_tokens = 8, q.stop_count = 0;
            q.keep_logits = false, q.ignore_eos = true, q.prompt_logprobs = -1, q.min_tokens = 0;
            submit(e, &q, &a[i]);
            run_all(e, &a[i], 1);
            assert_true(pass == 0 || a[i].cached_tokens == 128);
            if (pass == 0) k->quiet[i].count = 0, iv_buf_clear(&k->quiet[i].text);
            if (pass == 0) {
                free(k->quiet[i].logits), iv_buf_free(&k->quiet[i].text);
                k->quiet[i] = a[i];
            } else
                different += difference(&k->quiet[i], &a[i]) != NULL;
        }
        assert_true(pass == 2 ? different == N : different == 0);
        if (pass == 1) { /* every page now holds what the next one should: the prefix's record is wrong */
            size_t page = e->kv.page_bytes;
            for (size_t l = 0; l < e->kv.groups.planes; l++)
                memmove(iv_kv_plane(&e->kv, l), iv_kv_plane(&e->kv, l) + page, 6 * page);
        }
        if (pass == 0)
            free(a);
        else
            free_answers(a, N);
    }
    iv_engine_close(e);
    close_soak(k);
}

static void control_a_changed_bit_is_seen(void **state) {
    (void)state;
    soak *k = open_soak("changed bit", 40);
    answer *a = answers_new(1);
    size_t with_logits = 0;
    for (size_t i = 0; i < k->count; i++) {
        *a = k->quiet[i];
        assert_null(difference(&k->quiet[i], a));
        size_t at = rng_below(&k->r, a->count);
        a->logprobs[at] = iv_float(iv_bits(a->logprobs[at]) ^ 1u);
        assert_non_null(difference(&k->quiet[i], a));
        if (!a->logits) continue;
        *a = k->quiet[i];
        size_t bytes = a->count * VOCAB * sizeof(float);
        a->logits = malloc(bytes);
        memcpy(a->logits, k->quiet[i].logits, bytes);
        assert_null(difference(&k->quiet[i], a));
        ((unsigned char *)a->logits)[rng_below(&k->r, bytes)] ^= (unsigned char)(1u << rng_below(&k->r, 8));
        assert_string_equal(difference(&k->quiet[i], a), "logits");
        free(a->logits);
        with_logits++;
    }
    printf("%zu answers with logits\n", with_logits);
    free(a);
    close_soak(k);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_survivor_has_its_quiet_bits),
                                       cmocka_unit_test(control_a_wrong_page_is_seen),
                                       cmocka_unit_test(control_a_changed_bit_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
