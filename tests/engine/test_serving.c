/* Serving: prefixes are computed once, priorities hold, preempted requests continue with the same bits, and no memory
 * grows without bound. */
#include "client.h"
#include "format/scratch.h"

enum { LONG = SANITIZED ? 200 : 1000, LONG_PAGES = LONG / 64, LONG_STEPS = LONG_PAGES + 1 };

static int32_t long_prompt[1100];

static void fill_prompt(int32_t seed) {
    rng r = {(uint64_t)seed};
    for (size_t i = 0; i < 1100; i++) long_prompt[i] = (int32_t)rng_below(&r, 600);
}

static iv_request ask_long(const iv_engine *e, size_t count, size_t max_tokens) {
    return ask_ids(e, long_prompt, count, max_tokens);
}

static size_t steps_to_first_token(iv_engine *e, const iv_request *r, answer *a) {
    iv_error err;
    size_t steps = 0;
    submit(e, r, a);
    for (bool busy = true; busy && a->count == 0; steps++) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, 1);
    }
    run_all(e, a, 1);
    return steps;
}

/* ---- prefixes ------------------------------------------------------------------------------------------ */

static void a_cached_prefix_starts_at_once(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    o.max_model_len = 1200, o.max_num_batched_tokens = 64, o.kv_bytes = (size_t)40 * 64 * 3072;
    iv_engine *e = open_with(&o);
    iv_engine_stats stats;
    fill_prompt(1);
    iv_request r = ask_long(e, LONG, 5);
    answer *cold = answers_new(1), *warm = answers_new(1), *longer = answers_new(1), *other = answers_new(1);
    assert_int_equal(steps_to_first_token(e, &r, cold), LONG_STEPS); /* in chunks of 64 */
    assert_int_equal(cold->cached_tokens, 0);
    assert_in_range(steps_to_first_token(e, &r, warm), 1, 2);
    assert_int_equal(warm->cached_tokens, 64 * LONG_PAGES);
    assert_same_answer("from the cache", cold, warm);
    r.id_count = LONG + 20; /* begins alike and goes on */
    assert_in_range(steps_to_first_token(e, &r, longer), 1, 2);
    assert_int_equal(longer->cached_tokens, 64 * LONG_PAGES);
    long_prompt[0]++; /* begins otherwise: nothing is found */
    assert_int_equal(steps_to_first_token(e, &r, other), LONG_STEPS);
    assert_int_equal(other->cached_tokens, 0);
    iv_engine_get_stats(e, &stats);
    assert_true(stats.prompt_tokens == 4 * LONG + 40 && stats.cached_tokens == 2 * 64 * LONG_PAGES &&
                stats.kv_pages == 40);
    size_t longest = (LONG + 24) / 64; /* of its five tokens the last was never computed */
    assert_true(stats.kv_pages_cached + stats.kv_pages_free == 40 && stats.kv_pages_cached == 2 * longest);
    long_prompt[0]--;
    iv_engine_reset_prefix_cache(e);
    iv_engine_get_stats(e, &stats);
    assert_true(stats.kv_pages_free == 40 && stats.kv_pages_cached == 0);
    r.id_count = LONG;
    answer *again = answer_to(e, &r);
    assert_int_equal(again->cached_tokens, 0);
    assert_same_answer("after forgetting", cold, again);
    iv_engine_close(e);
    answers_free(cold, 1), answers_free(warm, 1), answers_free(longer, 1), answers_free(other, 1);
    answers_free(again, 1);
}

/* A whole prompt in the cache: its last token is always computed, for its logits. */
static void whole_pages_of_prompt(void **state) {
    (void)state;
    iv_engine *e = open_small();
    fill_prompt(2);
    static const size_t lengths[] = {63, 64, 65, 127, 128, 129, 192};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        iv_request r = ask_long(e, lengths[i], 6);
        iv_engine_reset_prefix_cache(e);
        answer *cold = answer_to(e, &r), *warm = answer_to(e, &r);
        assert_int_equal(warm->cached_tokens, (lengths[i] - 1) / 64 * 64);
        assert_same_answer("whole pages", cold, warm);
        answers_free(cold, 1), answers_free(warm, 1);
    }
    iv_engine_close(e);
}

/* Pages enter the cache as they fill: a request finds those of another that still runs, including its answer. */
static void running_sequences_share(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_error err;
    bool busy;
    fill_prompt(3);
    iv_request r = ask_long(e, 150, 60);
    answer *first = answers_new(1), *second = answers_new(1);
    submit(e, &r, first);
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    take_events(e, first, 1);
    submit(e, &r, second);
    while (busy) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) note_event(v.request == first->request ? first : second, &v);
    }
    assert_int_equal(second->cached_tokens, 128);
    assert_same_answer("next to its twin", first, second);
    int32_t *whole = malloc(200 * sizeof *whole); /* prompt and answer, as the next turn of a conversation has them */
    memcpy(whole, long_prompt, 150 * sizeof *whole), memcpy(whole + 150, first->ids, 50 * sizeof *whole);
    r.ids = whole, r.id_count = 200, r.max_tokens = 10;
    answer *next = answer_to(e, &r);
    assert_int_equal(next->cached_tokens, 192);
    assert_memory_equal(next->ids, first->ids + 50, 10 * sizeof *next->ids);
    iv_engine_close(e);
    free(whole);
    answers_free(first, 1), answers_free(second, 1), answers_free(next, 1);
}

/* ---- priorities and preemption ------------------------------------------------------------------------- */

static void the_important_goes_first(void **state) {
    (void)state;
    enum { N = 6 };
    static const int32_t priorities[N] = {5, 5, 0, 9, 0, -3};
    static const size_t order[N] = {5, 2, 4, 0, 1, 3};
    iv_engine_options o = small_options();
    o.max_num_seqs = 1;
    iv_engine *e = open_with(&o);
    iv_error err;
    uint64_t ids[N];
    size_t ended = 0;
    for (size_t i = 0; i < N; i++) {
        iv_request r = ask(e, "2 + 2 =", 3);
        r.priority = priorities[i], r.id = 100 + i;
        ASSERT_OK(iv_engine_submit(e, &r, &ids[i], &err), &err);
        assert_int_equal(ids[i], 100 + i);
        expect_error("twice", iv_engine_submit(e, &r, &ids[i], &err), &err, IV_INVALID, "waits or runs already");
    }
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);)
            if (v.kind == IV_EVENT_DONE) assert_int_equal(v.request, 100 + order[ended++]);
    }
    assert_int_equal(ended, N);
    iv_engine_close(e);
}

/* Five pages for sequences that grow to three each: the last in order are preempted, and their answers are the same. */
static void a_short_pool_preempts_the_last(void **state) {
    (void)state;
    enum { N = SANITIZED ? 4 : 10 };
    for (int way = 0; way < 3; way++) {
        iv_engine_options o = small_options();
        o.max_model_len = 192, o.kv_bytes = 5 * 64 * 3072, o.prefix_caching = way != 1;
        if (way == 2) o.speculative = "ngram";
        iv_engine *e = open_with(&o), *quiet = open_small();
        answer *alone = answers_new(N), *together = answers_new(N);
        for (size_t i = 0; i < N; i++) {
            fill_prompt((int32_t)i);
            iv_request r = ask_long(e, 50 + i, 90);
            r.temperature = 1, r.seed = i, r.priority = i == N - 1 ? -1 : 0;
            submit(quiet, &r, &alone[i]), submit(e, &r, &together[i]);
        }
        run_all(quiet, alone, N), run_all(e, together, N);
        iv_engine_stats stats;
        iv_engine_get_stats(e, &stats);
        size_t preemptions = 0;
        for (size_t i = 0; i < N; i++) {
            assert_same_answer("in five pages", &alone[i], &together[i]);
            preemptions += together[i].preemptions;
        }
        printf("way %d: %zu preemptions in %zu steps\n", way, preemptions, (size_t)stats.steps);
        assert_true(preemptions > 0 && stats.preemptions == preemptions && together[N - 1].preemptions == 0);
        assert_int_equal(stats.tokens_generated, N * 90);
        assert_true(stats.kv_pages_free + stats.kv_pages_cached == 5);
        iv_engine_close(e), iv_engine_close(quiet);
        answers_free(alone, N), answers_free(together, N);
    }
}

static void preempted_on_demand(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_error err;
    bool busy = true;
    iv_engine_stats stats;
    fill_prompt(5);
    iv_request r = ask_long(e, 140, 40);
    r.temperature = 1;
    answer *whole = answer_to(e, &r), *a = answers_new(1);
    submit(e, &r, a);
    expect_error("waits", iv_engine_preempt(e, a->request, &err), &err, IV_NOT_FOUND, "not running");
    for (size_t i = 0; busy; i++) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, 1);
        if (busy && i % 5 == 1) {
            ASSERT_OK(iv_engine_preempt(e, a->request, &err), &err);
            iv_engine_get_stats(e, &stats);
            assert_true(stats.running == 0 && stats.waiting == 1);
            if (i % 2) iv_engine_reset_prefix_cache(e);
        }
    }
    assert_same_answer("preempted", whole, a);
    assert_true(a->preemptions >= 5 && a->cached_tokens == 128); /* as it was first admitted */
    iv_engine_close(e);
    answers_free(whole, 1), answers_free(a, 1);
}

/* Cancelled while it is preempted: within a step, and with all text of its tokens. */
static void cancelled_after_preemption(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_error err;
    bool busy;
    iv_request r = ask(e, "2 + 2 =", 50);
    static const char *const stops[] = {"never said, and so long that most of the answer is held back for it"};
    answer *base = answer_to(e, &r);
    assert_true(strlen(text_of(base)) > 6);
    char stop[32];
    snprintf(stop, sizeof stop, "%.5s\x01", text_of(base)); /* begins like the answer: its beginning is held back */
    const char *const list[] = {stops[0], stop};
    r.stop = list, r.stop_count = 2;
    answer *a = answers_new(1);
    submit(e, &r, a);
    while (a->count < 3) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, 1);
    }
    size_t shown = a->text.len;
    ASSERT_OK(iv_engine_preempt(e, a->request, &err), &err);
    ASSERT_OK(iv_engine_cancel(e, a->request, &err), &err);
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    assert_false(busy);
    take_events(e, a, 1);
    assert_int_equal(a->finish, IV_FINISH_CANCELLED);
    iv_text want;
    ASSERT_OK(iv_detokenize(iv_engine_text_model(e), a->ids, a->count, false, &want, &err), &err);
    assert_string_equal(text_of(a), want.data);
    assert_true(a->text.len > shown); /* some of it was held back */
    assert_int_equal(a->preemptions, 1);
    iv_text_free(&want);
    iv_engine_close(e);
    answers_free(base, 1), answers_free(a, 1);
}

/* ---- events -------------------------------------------------------------------------------------------- */

/* Thousands are cancelled while they wait, and their last events are not taken: the engine is busy before the ring is
 * full, and continues once they are taken. */
static void untaken_events_stop_the_engine(void **state) {
    (void)state;
    enum { WAITING = 4096, N = 2, TOKENS = 100 };
    iv_engine_options o = small_options();
    o.max_num_seqs = N;
    iv_engine *e = open_with(&o);
    iv_error err;
    bool busy = true;
    answer *a = answers_new(N);
    uint64_t id;
    for (size_t i = 0; i < N; i++) {
        iv_request r = ask(e, "2 + 2 =", TOKENS);
        r.ignore_eos = true, r.seed = i, r.temperature = 1;
        submit(e, &r, &a[i]);
    }
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    iv_request r = ask(e, "2", 1);
    for (size_t i = 0; i < WAITING; i++) {
        ASSERT_OK(iv_engine_submit(e, &r, &id, &err), &err);
        ASSERT_OK(iv_engine_cancel(e, id, &err), &err);
    }
    iv_status status = IV_OK;
    size_t steps = 0, cancelled = 0;
    while (busy && (status = iv_engine_step(e, &busy, &err)) == IV_OK) steps++;
    expect_error("full", status, &err, IV_BUSY, "wait to be taken");
    printf("busy after %zu steps: %s\n", steps, err.message);
    assert_true(busy && steps >= 16);
    assert_int_equal(iv_engine_step(e, &busy, &err), IV_BUSY); /* and stays so */
    for (iv_event v; iv_engine_next_event(e, &v);)
        if (v.request == a[0].request || v.request == a[1].request)
            note_event(&a[v.request == a[1].request], &v);
        else
            cancelled += v.finish == IV_FINISH_CANCELLED;
    assert_int_equal(cancelled, WAITING);
    run_all(e, a, N);
    for (size_t i = 0; i < N; i++) assert_int_equal(a[i].count, TOKENS);
    iv_engine_close(e);
    answers_free(a, N);
}

static void kept_logits_are_taken_first(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_error err;
    bool busy;
    iv_request r = ask(e, "2 + 2 =", 3);
    r.keep_logits = true, r.ignore_eos = true;
    uint64_t id;
    ASSERT_OK(iv_engine_submit(e, &r, &id, &err), &err);
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    expect_error("kept", iv_engine_step(e, &busy, &err), &err, IV_BUSY, "logits");
    iv_event v;
    while (iv_engine_next_event(e, &v)) continue;
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    iv_engine_close(e);
}

/* A preempted request may run in the next step and would then overwrite the logits of its untaken event. */
static void kept_logits_survive_preemption(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_engine_info info;
    iv_error err;
    bool busy;
    iv_event v;
    iv_request r = ask(e, "2 + 2 =", 3);
    r.keep_logits = true, r.ignore_eos = true;
    iv_engine_get_info(e, &info);
    answer *want = answers_new(1), *a = answers_new(1);
    want->vocab = info.vocab_size, want->logits = calloc(3 * info.vocab_size, sizeof *want->logits);
    assert_non_null(want->logits);
    submit(e, &r, want);
    run_all(e, want, 1);
    submit(e, &r, a);
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    ASSERT_OK(iv_engine_preempt(e, a->request, &err), &err);
    expect_error("kept", iv_engine_step(e, &busy, &err), &err, IV_BUSY, "logits");
    assert_true(iv_engine_next_event(e, &v));
    assert_memory_equal(v.logits, want->logits, info.vocab_size * sizeof *v.logits);
    note_event(a, &v);
    run_all(e, a, 1);
    assert_same_answer("preempted with logits untaken", want, a);
    iv_engine_close(e);
    free(want->logits);
    answers_free(want, 1), answers_free(a, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cached_prefix_starts_at_once), cmocka_unit_test(whole_pages_of_prompt),
        cmocka_unit_test(running_sequences_share),        cmocka_unit_test(the_important_goes_first),
        cmocka_unit_test(a_short_pool_preempts_the_last), cmocka_unit_test(preempted_on_demand),
        cmocka_unit_test(cancelled_after_preemption),     cmocka_unit_test(untaken_events_stop_the_engine),
        cmocka_unit_test(kept_logits_are_taken_first),    cmocka_unit_test(kept_logits_survive_preemption)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
