/* A step that fails: for one sequence, while the others are unaffected, or for the engine, which must still close. */
#include "made_model.h"
#include "engine/ranks.h"
#include "model/cpu/cpu_model.h"

/* ---- a sequence fails ---------------------------------------------------------------------------------- */

/* Keys overflow for every token but 0, whose embedding is zero. */
static void open_brittle(made_model *m) {
    made_open(m, "mistral_v03");
    size_t keys = made_find(m, "model.layers.1.self_attn.k_proj.weight"), n = made_elements(m, keys);
    for (size_t i = 0; i < n; i++) put_type(m->tensors[keys].dtype, m->data[keys], i, 3e38f);
    memset(m->data[made_find(m, "model.embed_tokens.weight")], 0, 128 * 2);
}

/* Sequences that share two pages of prefix with those that fail, side by side and from the cache, drafting or not. */
static void shared_prefixes_survive(void **state) {
    (void)state;
    enum { N = 6, PROMPT = 150, TOKENS = 20 };
    static const int32_t good[PROMPT], bad[PROMPT] = {[PROMPT - 1] = 7};
    static const iv_logit_bias only_zero = {0, 100};
    made_model m;
    open_brittle(&m);
    iv_engine_options o = made_options(made_write(&m));
    for (int drafts = 0; drafts < 2; drafts++) {
        o.speculative = drafts ? "ngram" : "off";
        iv_engine *e = open_with(&o);
        iv_request r = ask_ids(e, good, PROMPT, TOKENS);
        r.logit_bias = &only_zero, r.logit_bias_count = 1;
        answer *alone = answer_to(e, &r);
        assert_int_equal(alone->count, TOKENS);
        iv_engine_reset_prefix_cache(e);
        for (int warm = 0; warm < 2; warm++) {
            answer *a = answers_new(N);
            for (size_t i = 0; i < N; i++) {
                r.ids = i % 3 ? good : bad;
                submit(e, &r, &a[i]);
            }
            run_all(e, a, N);
            for (size_t i = 0; i < N; i++) {
                if (warm) assert_int_equal(a[i].cached_tokens, 128);
                if (i % 3)
                    assert_same_answer("next to one that overflows", alone, &a[i]);
                else
                    assert_true(a[i].finish == IV_FINISH_ERROR && a[i].error_status == IV_NOT_FINITE &&
                                a[i].count == 0);
            }
            answers_free(a, N);
        }
        iv_engine_stats stats;
        iv_engine_get_stats(e, &stats);
        assert_true(stats.kv_pages == stats.kv_pages_free + stats.kv_pages_cached);
        assert_true((stats.accepted_tokens > 0) == (drafts == 1));
        iv_engine_close(e);
        answers_free(alone, 1);
    }
    made_close(&m);
}

/* ---- the engine fails ---------------------------------------------------------------------------------- */

static size_t calls, lost_at; /* 0: never */

iv_status __real_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);
iv_status __wrap_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);

/* Replaces the real one at link time: the first call fails for one sequence, a later one for the engine. */
iv_status __wrap_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err) {
    if (lost_at == 0) return __real_iv_ranks_forward(e, b, err);
    calls++;
    if (calls == 1) return iv_fail(err, IV_NOT_FINITE, "one of them");
    if (calls >= lost_at) return iv_fail(err, IV_IO, "a rank is lost");
    return __real_iv_ranks_forward(e, b, err);
}

/* A rank is lost while the sequences of a failed step run one by one: some of them have ended by then. */
static void a_rank_lost_among_those_that_end(void **state) {
    (void)state;
    enum { N = 3 };
    for (size_t at = 2; at <= 1 + N; at++) {
        iv_engine *e = open_small();
        iv_request r = ask(e, "2 + 2 =", 1);
        iv_engine_stats stats;
        iv_error err;
        bool busy;
        answer *a = answers_new(N);
        for (size_t i = 0; i < N; i++) submit(e, &r, &a[i]);
        calls = 0, lost_at = at;
        expect_error("lost", iv_engine_step(e, &busy, &err), &err, IV_IO, "a rank is lost");
        lost_at = 0;
        take_events(e, a, N);
        size_t ended = 0;
        for (size_t i = 0; i < N; i++) ended += a[i].done_events;
        iv_engine_get_stats(e, &stats);
        assert_int_equal(ended, at - 2);
        assert_int_equal(stats.running, N - ended); /* those that ended are gone, or closing would free them again */
        assert_true(busy);
        iv_engine_close(e);
        answers_free(a, N);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_prefixes_survive),
                                       cmocka_unit_test(a_rank_lost_among_those_that_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
