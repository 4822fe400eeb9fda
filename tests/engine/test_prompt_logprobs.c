/* Log-probabilities of prompts have the bits of iv_engine_logits for any chunks, batch, cache, ranks, preemptions and
 * slices of logits. Each position is reported once, in order, and before the answer, which stays the same. */
#include "client.h"
#include "format/scratch.h"
#include "numerics/rows.h"

enum { PROMPT = SANITIZED ? 90 : 200, PROMPT_MAX = 1200, VOCAB_MAX = 4096, TOP = 5 };

/* ---- expectations -------------------------------------------------------------------------------------- */

typedef struct expectation {
    int32_t ids[PROMPT_MAX];
    size_t count, vocab;
    float *logits; /* [count][vocab] */
} expectation;

static void expect_prompt(expectation *x, size_t count, uint64_t seed) {
    iv_engine *e = open_small();
    iv_engine_info info;
    iv_error err;
    rng r = {seed};
    iv_engine_get_info(e, &info);
    x->count = count, x->vocab = info.vocab_size;
    for (size_t i = 0; i < count; i++) x->ids[i] = (int32_t)rng_below(&r, info.vocab_size);
    x->logits = malloc(count * x->vocab * sizeof *x->logits);
    assert_non_null(x->logits);
    ASSERT_OK(iv_engine_logits(e, x->ids, count, x->logits, &err), &err);
    iv_engine_close(e);
}

static bool comes_before(const float *row, int32_t a, int32_t b) {
    return row[a] > row[b] || (row[a] == row[b] && a < b);
}

/* The event of one position against the row before it. */
static void check_event(const expectation *x, const iv_event *v, size_t top_count) {
    const float *row = x->logits + (v->position - 1) * x->vocab;
    float max, log_sum, want;
    iv_ref_log_sum_exp(row, x->vocab, &max, &log_sum);
    assert_int_equal(v->token, x->ids[v->position]);
    want = (row[v->token] - max) - log_sum;
    if (iv_bits(want) != iv_bits(v->logprob))
        fail_msg("position %zu: wanted %08x, found %08x", v->position, iv_bits(want), iv_bits(v->logprob));
    assert_int_equal(v->top_count, top_count);
    for (size_t i = 0; i < top_count; i++) {
        want = (row[v->top[i].id] - max) - log_sum;
        assert_int_equal(iv_bits(want), iv_bits(v->top[i].logprob));
        if (i) assert_true(comes_before(row, v->top[i - 1].id, v->top[i].id));
    }
    if (top_count) { /* no other token precedes the last of them */
        size_t ahead = 0;
        for (size_t id = 0; id < x->vocab; id++) ahead += comes_before(row, (int32_t)id, v->top[top_count - 1].id);
        assert_int_equal(ahead, top_count - 1);
    }
}

/* A request and its events so far. */
typedef struct scoring {
    const expectation *x;
    size_t next, top_count; /* the position that comes next */
    answer a;
} scoring;

static void take(iv_engine *e, scoring *s, size_t n) {
    for (iv_event v; iv_engine_next_event(e, &v);) {
        size_t i = 0;
        while (i < n && s[i].a.request != v.request) i++;
        assert_true(i < n);
        if (v.kind != IV_EVENT_PROMPT) {
            if (v.kind == IV_EVENT_TOKEN) assert_int_equal(v.position, s[i].x->count + s[i].a.count);
            note_event(&s[i].a, &v);
            continue;
        }
        assert_true(s[i].a.count == 0 && v.position == s[i].next++ && v.text_bytes == 0 && !v.logits && !v.error);
        check_event(s[i].x, &v, s[i].top_count);
    }
}

static iv_request score(const iv_engine *e, const expectation *x, size_t max_tokens) {
    iv_request r = ask_ids(e, x->ids, x->count, max_tokens);
    r.prompt_logprobs = 0;
    r.score_only = max_tokens == 0;
    return r;
}

static void start(iv_engine *e, const iv_request *r, const expectation *x, scoring *s) {
    *s = (scoring){.x = x, .next = r->prompt_logprobs_start > 1 ? r->prompt_logprobs_start : 1};
    s->top_count = (size_t)r->prompt_logprobs;
    submit(e, r, &s->a);
}

static void finish(iv_engine *e, scoring *s, size_t n) {
    iv_error err;
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take(e, s, n);
    }
    for (size_t i = 0; i < n; i++) assert_true(s[i].next == s[i].x->count && s[i].a.done_events == 1);
}

static void forget(scoring *s, size_t n) {
    for (size_t i = 0; i < n; i++) iv_buf_free(&s[i].a.text);
}

/* ---- the bits of the logits ---------------------------------------------------------------------------- */

/* Three requests with one prompt in the same step, one of them repeated from the cache; on every shape of step. */
static void same_bits_as_the_logits(void **state) {
    (void)state;
    static const struct {
        size_t batched, seqs, ranks, threads;
        const char *speculative;
    } shapes[] = {{512, 16, 1, 1, "off"}, {7, 2, 1, 1, "off"},     {64, 16, 2, 2, "ngram"},
                  {1, 1, 1, 1, "off"},    {333, 1, 4, 1, "ngram"}, {100, 40, 1, 3, "off"}};
    expectation x;
    expect_prompt(&x, PROMPT, 1);
    answer *plain = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        iv_engine_options o = small_options();
        o.max_num_batched_tokens = shapes[i].batched, o.max_num_seqs = shapes[i].seqs, o.threads = shapes[i].threads;
        o.tensor_parallel_size = SANITIZED && shapes[i].ranks > 2 ? 2 : shapes[i].ranks,
        o.speculative = shapes[i].speculative;
        iv_engine *e = open_with(&o);
        scoring s[4];
        iv_request r = score(e, &x, 9);
        r.prompt_logprobs = -1;
        answer *a = answer_to(e, &r); /* leaves its pages in the cache */
        if (plain) assert_same_answer("without", plain, a);
        if (!plain) plain = a, a = NULL;
        r.prompt_logprobs = 0, start(e, &r, &x, &s[0]);
        r.prompt_logprobs = TOP, start(e, &r, &x, &s[1]);
        r.prompt_logprobs_start = PROMPT - 20, start(e, &r, &x, &s[2]);
        r.max_tokens = 0, r.score_only = true, r.prompt_logprobs_start = 0, start(e, &r, &x, &s[3]);
        finish(e, s, 4);
        assert_int_equal(s[0].a.cached_tokens, 0);
        assert_int_equal(s[2].a.cached_tokens, (PROMPT - 21) / 64 * 64);
        for (size_t k = 0; k < 3; k++) assert_same_answer("next to its prompt's", plain, &s[k].a);
        assert_true(s[3].a.count == 0 && s[3].a.finish == IV_FINISH_LENGTH && s[3].a.prompt_tokens == PROMPT);
        assert_string_equal(text_of(&s[3].a), "");
        iv_engine_close(e);
        forget(s, 4);
        if (a) answers_free(a, 1);
    }
    answers_free(plain, 1);
    free(x.logits);
}

/* Other logits give other bits, so check_event can fail. */
static void control_another_prompt_differs(void **state) {
    (void)state;
    expectation x, y;
    size_t differ = 0;
    expect_prompt(&x, 30, 2), expect_prompt(&y, 30, 3);
    for (size_t i = 0; i < 30; i++)
        differ += memcmp(x.logits + i * x.vocab, y.logits + i * y.vocab, sizeof(float)) != 0;
    assert_true(differ > 25);
    free(x.logits), free(y.logits);
}

/* ---- steps of several slices --------------------------------------------------------------------------- */

enum { SLICE = 128, DECODING = 4, MIXED = 8, MIXED_ANSWER = 7 };

/* Prompts in one step with rows that are drawn in every way: rows 4 to 127 are the first prompt's, so that a slice ends
 * with it; the next slice ends within the second; the last begins with a slice. */
static const size_t mixed_prompts[MIXED] = {9, 20, 33, 41, SLICE - DECODING + 1, 200, 58, 150};

static iv_request mix(const iv_engine *e, size_t i, int32_t ids[256]) {
    rng r = {900 + i};
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    for (size_t t = 0; t < mixed_prompts[i]; t++) ids[t] = (int32_t)rng_below(&r, info.vocab_size);
    iv_request q = ask_ids(e, ids, mixed_prompts[i], MIXED_ANSWER);
    q.temperature = 1, q.seed = i;
    if (i == 1) q.repetition_penalty = 1.2f, q.logprobs = 3;
    if (i == 2) q.keep_logits = true;
    if (i == 3) q.constraint = IV_CONSTRAINT_REGEX, q.constraint_text = "[a-z ]{40}";
    if (i < DECODING) return q;
    q.prompt_logprobs = i % 2 ? TOP : 0, q.score_only = true, q.max_tokens = 0;
    return q;
}

/* The mask of one of them is cached afterwards, so that it is in every step. */
static void warm_constraint(iv_engine *e) {
    int32_t ids[256];
    iv_request r = mix(e, 3, ids);
    answers_free(answer_to(e, &r), 1);
    iv_engine_reset_prefix_cache(e);
}

/* *most: prompt tokens that one step reported, while all DECODING requests decoded. */
static answer *mixed_by(const iv_engine_options *o, size_t *most) {
    int32_t ids[MIXED][256];
    iv_error err;
    iv_engine *e = open_with(o);
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    warm_constraint(e);
    answer *a = answers_new(MIXED);
    bool busy = true;
    for (size_t i = 0; i < MIXED; i++) {
        a[i].reported_events = calloc(ANSWER_TOKENS_MAX, sizeof *a[i].reported_events);
        a[i].reported_top = calloc(ANSWER_TOKENS_MAX, sizeof *a[i].reported_top);
        a[i].vocab = info.vocab_size;
        if (i == DECODING) /* all of these have begun */
            while (a[0].count == 0 || a[1].count == 0 || a[2].count == 0 || a[3].count == 0) {
                ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
                take_events(e, a, DECODING);
            }
        iv_request r = mix(e, i, ids[i]);
        if (r.keep_logits) a[i].logits = calloc(MIXED_ANSWER * info.vocab_size, sizeof *a[i].logits);
        submit(e, &r, &a[i]);
    }
    for (*most = 0; busy;) {
        size_t reported = 0, drawn = 0;
        for (size_t i = 0; i < MIXED; i++) reported -= a[i].reported, drawn -= a[i].count;
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, MIXED);
        for (size_t i = 0; i < MIXED; i++) reported += a[i].reported, drawn += a[i].count;
        if (drawn >= DECODING && reported > *most) *most = reported;
    }
    for (size_t i = 0; i < MIXED; i++)
        assert_true(a[i].done_events == 1 && a[i].reported == (i < DECODING ? 0 : mixed_prompts[i] - 1));
    iv_engine_close(e);
    return a;
}

static void free_mixed(answer *a) {
    for (size_t i = 0; i < MIXED; i++) free(a[i].reported_events), free(a[i].reported_top), free(a[i].logits);
    answers_free(a, MIXED);
}

/* The number of prompt scores with different bits. */
static size_t differing_scores(const answer *want, const answer *got) {
    size_t differ = 0;
    for (size_t i = 0; i < MIXED; i++)
        for (size_t t = 0; t < want[i].reported; t++) {
            const iv_event *w = &want[i].reported_events[t], *g = &got[i].reported_events[t];
            assert_true(w->position == g->position && w->token == g->token && w->top_count == g->top_count);
            differ += iv_bits(w->logprob) != iv_bits(g->logprob) ||
                      memcmp(want[i].reported_top[t], got[i].reported_top[t], w->top_count * sizeof(iv_logprob)) != 0;
        }
    return differ;
}

static iv_engine_options mixed_options(size_t batched, size_t ranks, size_t threads, const char *speculative) {
    iv_engine_options o = small_options();
    o.max_num_batched_tokens = batched, o.max_num_seqs = MIXED, o.threads = threads;
    o.tensor_parallel_size = ranks, o.speculative = speculative;
    return o;
}

static void slices_of_a_step(void **state) {
    (void)state;
    size_t most, scored = 0;
    for (size_t i = DECODING; i < MIXED; i++) scored += mixed_prompts[i] - 1;
    iv_engine_options o = mixed_options(64, 1, 1, "off");
    answer *want = mixed_by(&o, &most); /* steps of one slice */
    assert_true(most > 0 && most <= 64);
    static const struct {
        size_t batched, ranks, threads;
        const char *speculative;
    } shapes[] = {{1024, 1, 1, "off"}, {1024, 2, 2, "ngram"}, {300, 1, 3, "off"}, {1024, 4, 1, "off"}};
    for (size_t k = 0; k < (SANITIZED ? 2 : sizeof shapes / sizeof *shapes); k++) {
        o = mixed_options(shapes[k].batched, shapes[k].ranks, shapes[k].threads, shapes[k].speculative);
        answer *got = mixed_by(&o, &most);
        assert_true(shapes[k].batched < scored ? most > 2 * SLICE : most == scored && most > 4 * SLICE);
        assert_int_equal(differing_scores(want, got), 0);
        for (size_t i = 0; i < DECODING; i++) assert_same_answer("next to slices", &want[i], &got[i]);
        assert_memory_equal(want[2].logits, got[2].logits, MIXED_ANSWER * want[2].vocab * sizeof(float));
        free_mixed(got);
    }
    free_mixed(want);
}

/* The comparison can fail: sums that depend on the shape of a step give other scores in larger chunks, and a row with
 * the logits of the row one slice away would have another score. */
static void control_slices_of_a_baseline_differ(void **state) {
    (void)state;
    size_t most, reported = 0, differ, apart = 0;
    answer *a[2];
    for (int large = 0; large < 2; large++) {
        iv_engine_options o = mixed_options(large ? 1024 : 64, 1, 1, "off");
        o.numerics = "vanilla";
        a[large] = mixed_by(&o, &most);
    }
    for (size_t i = 0; i < MIXED; i++) reported += a[0][i].reported;
    differ = differing_scores(a[0], a[1]);
    printf("vanilla: %zu of %zu scores are others in larger chunks\n", differ, reported);
    assert_true(differ > 0);
    const iv_event *v = a[0][5].reported_events;
    for (size_t t = 0; t + SLICE < a[0][5].reported; t++)
        apart += iv_bits(v[t].logprob) != iv_bits(v[t + SLICE].logprob);
    assert_true(apart > (a[0][5].reported - SLICE) * 9 / 10);
    free_mixed(a[0]), free_mixed(a[1]);
}

/* ---- interruptions ------------------------------------------------------------------------------------- */

/* Preempted many times, within a prompt and after it: no position is reported twice or skipped. */
static void preempted_in_the_middle(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    o.max_num_batched_tokens = 33;
    iv_engine *e = open_with(&o);
    expectation x;
    iv_error err;
    expect_prompt(&x, PROMPT, 4);
    iv_request r = score(e, &x, 20);
    r.prompt_logprobs = -1;
    answer *want = answer_to(e, &r);
    for (int cached = 0; cached < 2; cached++) {
        scoring s;
        size_t preemptions = 0, step = 0;
        r.prompt_logprobs = 2;
        start(e, &r, &x, &s);
        for (bool busy = true; busy; step++) {
            ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
            take(e, &s, 1);
            if (!cached) iv_engine_reset_prefix_cache(e);
            if (busy && step % 3 == 2 && step < 40) preemptions += iv_engine_preempt(e, s.a.request, &err) == IV_OK;
            assert_true(step < 500);
        }
        assert_true(s.next == PROMPT && preemptions > 5 && s.a.preemptions == preemptions);
        assert_same_answer("preempted", want, &s.a);
        forget(&s, 1);
    }
    iv_engine_close(e);
    answers_free(want, 1);
    free(x.logits);
}

static void cancelled_in_the_middle(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    o.max_num_batched_tokens = 16;
    iv_engine *e = open_with(&o);
    expectation x;
    iv_error err;
    iv_engine_stats stats;
    bool busy;
    scoring s;
    expect_prompt(&x, PROMPT, 5);
    iv_request r = score(e, &x, 0);
    start(e, &r, &x, &s);
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    ASSERT_OK(iv_engine_cancel(e, s.a.request, &err), &err);
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    take(e, &s, 1);
    assert_true(!busy && s.next == 17 && s.a.finish == IV_FINISH_CANCELLED && s.a.done_events == 1);
    iv_engine_get_stats(e, &stats);
    assert_true(stats.tokens_generated == 0 && stats.kv_pages == stats.kv_pages_free + stats.kv_pages_cached);
    iv_engine_close(e);
    forget(&s, 1);
    free(x.logits);
}

/* Events are not taken: steps get shorter as the ring fills, then the engine is busy, and no event is lost. */
static void a_full_ring_stops_the_engine(void **state) {
    (void)state;
    enum { N = SANITIZED ? 5 : 8 };
    iv_engine_options o = small_options();
    size_t count = SANITIZED ? 900 : 1100;
    o.max_num_seqs = 2, o.max_model_len = PROMPT_MAX, o.kv_bytes = (size_t)45 * 64 * 3072;
    iv_engine *e = open_with(&o);
    expectation x;
    iv_error err;
    scoring s[N];
    size_t times = 0;
    iv_engine *wide = open_with(&o);
    x.count = count;
    rng random = {6};
    iv_engine_info info;
    iv_engine_get_info(wide, &info);
    x.vocab = info.vocab_size, x.logits = malloc(count * x.vocab * sizeof *x.logits);
    for (size_t i = 0; i < count; i++) x.ids[i] = (int32_t)rng_below(&random, x.vocab);
    ASSERT_OK(iv_engine_logits(wide, x.ids, count, x.logits, &err), &err);
    iv_engine_close(wide);
    for (size_t i = 0; i < N; i++) {
        iv_request r = score(e, &x, i % 2 ? 0 : 3);
        start(e, &r, &x, &s[i]);
    }
    for (bool busy = true; busy;) {
        iv_status status = iv_engine_step(e, &busy, &err);
        if (status == IV_OK) continue;
        expect_error("full", status, &err, IV_BUSY, "wait to be taken");
        take(e, s, N), times++;
    }
    take(e, s, N);
    printf("busy %zu times\n", times);
    assert_true(times > 0);
    for (size_t i = 0; i < N; i++) assert_true(s[i].next == count && s[i].a.done_events == 1);
    iv_engine_close(e);
    forget(s, N);
    free(x.logits);
}

/* ---- sampled tokens ------------------------------------------------------------------------------------ */

static void sampling_logprobs(void **state) {
    (void)state;
    enum { TOKENS = 60 };
    iv_engine_options o = small_options();
    o.sample_all_ids = true;
    iv_engine *e = open_with(&o);
    iv_request r = ask(e, "2 + 2 =", TOKENS);
    r.ignore_eos = true, r.sampling_logprobs = true;
    answer *a = answer_to(e, &r);
    for (size_t i = 0; i < TOKENS; i++) assert_int_equal(iv_bits(a->sampling_logprobs[i]), 0); /* nothing is drawn */
    answers_free(a, 1);
    r.temperature = 1;
    a = answer_to(e, &r);
    for (size_t i = 0; i < TOKENS; i++) assert_int_equal(iv_bits(a->sampling_logprobs[i]), iv_bits(a->logprobs[i]));
    answers_free(a, 1);
    r.temperature = 1.5f, r.top_k = 8, r.top_p = 0.9f, r.repetition_penalty = 1.1f;
    a = answer_to(e, &r);
    size_t differ = 0;
    for (size_t i = 0; i < TOKENS; i++) {
        assert_true(a->sampling_logprobs[i] <= 0 && a->sampling_logprobs[i] > -20);
        differ += a->sampling_logprobs[i] != a->logprobs[i];
    }
    assert_true(differ > TOKENS / 2);
    r.sampling_logprobs = false;
    answer *without = answer_to(e, &r);
    assert_same_answer("without", a, without);
    for (size_t i = 0; i < TOKENS; i++) assert_int_equal(iv_bits(without->sampling_logprobs[i]), 0);
    answers_free(a, 1), answers_free(without, 1);
    iv_engine_close(e);
}

/* ---- edges --------------------------------------------------------------------------------------------- */

static void edges(void **state) {
    (void)state;
    iv_engine *e = open_small();
    expectation x, one;
    scoring s[4];
    expect_prompt(&x, 256, 7), expect_prompt(&one, 1, 8);
    iv_request r = score(e, &x, 0);
    start(e, &r, &x, &s[0]); /* as long as max_model_len */
    r.prompt_logprobs_start = 256, start(e, &r, &x, &s[1]);
    r = score(e, &one, 0), start(e, &r, &one, &s[2]);
    r.prompt_logprobs_start = 1, start(e, &r, &one, &s[3]);
    finish(e, s, 4);
    for (size_t i = 0; i < 4; i++) assert_true(s[i].a.finish == IV_FINISH_LENGTH && s[i].a.count == 0);
    forget(s, 4);
    r.prompt_logprobs = -1, r.prompt_logprobs_start = 99; /* of no meaning here */
    answer *a = answer_to(e, &r);
    assert_true(a->finish == IV_FINISH_LENGTH && a->count == 0);
    answers_free(a, 1);
    iv_engine_close(e);
    free(x.logits), free(one.logits);
}

static void refusals(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_error err;
    uint64_t id;
    int32_t ids[257] = {0};
    iv_request good = ask(e, "2 + 2 =", 0), r;
#define REFUSED_AS(status, word, ...) \
    (r = good, __VA_ARGS__, expect_error(word, iv_engine_submit(e, &r, &id, &err), &err, status, word))
#define REFUSED(word, ...) REFUSED_AS(IV_INVALID, word, __VA_ARGS__)
    REFUSED("prompt_logprobs", r.prompt_logprobs = -2);
    REFUSED("prompt_logprobs", r.prompt_logprobs = 21);
    REFUSED("prompt_logprobs_start", r.prompt_logprobs = 0, r.prompt_logprobs_start = 100);
    REFUSED("max_tokens", r.score_only = true, r.max_tokens = 1);
    REFUSED("keep_receipt", r.score_only = true, r.keep_receipt = true);
    REFUSED_AS(IV_CONTEXT_LENGTH, "max_model_len", r.text = NULL, r.ids = ids, r.id_count = 257, r.score_only = true);
    REFUSED_AS(IV_CONTEXT_LENGTH, "max_model_len", r.text = NULL, r.ids = ids, r.id_count = 256);
    iv_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_as_the_logits),
                                       cmocka_unit_test(control_another_prompt_differs),
                                       cmocka_unit_test(slices_of_a_step),
                                       cmocka_unit_test(control_slices_of_a_baseline_differ),
                                       cmocka_unit_test(preempted_in_the_middle),
                                       cmocka_unit_test(cancelled_in_the_middle),
                                       cmocka_unit_test(a_full_ring_stops_the_engine),
                                       cmocka_unit_test(sampling_logprobs),
                                       cmocka_unit_test(edges),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
