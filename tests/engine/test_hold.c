/* Sequences that are in no step for a while: held by their caller, or while another thread computes their mask. No bit
 * changes, and other requests continue. */
#include "client.h"

enum { REQUESTS = 10, TOKENS = 60 };

/* An ambiguous expression: thousands of states at each position. */
static const char endless_regex[] = "((a.|e.|i.|o.|t.)?.?){4000}";
static const char *const slow_regex = SANITIZED ? "((a.|e.|i.|o.|t.)?.?){60}" : "((a.|e.|i.|o.|t.)?.?){700}";
static const char question[] = "<|im_start|>user\nWhat is 17 * 6?<|im_end|>\n<|im_start|>assistant\n";

static iv_request make_request(const iv_engine *e, size_t i) {
    static const char *const prompts[] = {"12 + 30 = 42. What comes next: 60, 73, 86", question, "7"};
    iv_request r = ask(e, prompts[i % 3], TOKENS);
    r.temperature = i % 2 ? 0.9f : 0, r.seed = 100 + i, r.ignore_eos = i % 3 != 1;
    if (i % 4 == 1) r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = "([0-9]{1,3} ){3,60}end";
    if (i % 4 == 3) r.constraint = IV_CONSTRAINT_JSON_OBJECT;
    if (i % 5 == 2) r.prompt_logprobs = 0;
    return r;
}

/* Holds and releases waiting and running requests at random, and releases all in the end. */
static size_t run_with_holds(iv_engine *e, answer *a, rng *random) {
    bool held[REQUESTS] = {0}, busy = true;
    size_t holds = 0;
    iv_error err;
    for (size_t steps = 0; busy; steps++) {
        size_t i = rng_below(random, REQUESTS);
        bool hold = steps < 400 && rng_below(random, 2);
        if (steps >= 400)
            for (i = 0; i < REQUESTS && !held[i];) i++;
        if (i < REQUESTS && held[i] != hold && iv_engine_hold(e, a[i].request, hold, &err) == IV_OK)
            held[i] = hold, holds += hold;
        if (rng_below(random, 7) == 0) (void)iv_engine_preempt(e, a[rng_below(random, REQUESTS)].request, &err);
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        size_t before[REQUESTS];
        for (size_t k = 0; k < REQUESTS; k++) before[k] = a[k].count + a[k].done_events;
        take_events(e, a, REQUESTS);
        for (size_t k = 0; k < REQUESTS; k++) assert_true(!held[k] || a[k].count + a[k].done_events == before[k]);
    }
    return holds;
}

static void held_requests_keep_their_bits(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    answer *want = answers_new(REQUESTS);
    iv_engine *e = open_with(&o);
    for (size_t i = 0; i < REQUESTS; i++) {
        iv_request r = make_request(e, i);
        submit(e, &r, &want[i]);
        run_all(e, &want[i], 1);
    }
    iv_engine_close(e);
    rng random = rng_start("hold");
    for (int caching = 0; caching < 2; caching++) {
        o.prefix_caching = caching, o.threads = 2, o.speculative = caching ? "ngram" : "off";
        o.max_num_seqs = 4, o.max_num_batched_tokens = 40;
        e = open_with(&o);
        answer *got = answers_new(REQUESTS);
        for (size_t i = 0; i < REQUESTS; i++) {
            iv_request r = make_request(e, i);
            submit(e, &r, &got[i]);
        }
        size_t holds = run_with_holds(e, got, &random);
        assert_true(holds > REQUESTS);
        for (size_t i = 0; i < REQUESTS; i++) {
            assert_int_equal(got[i].done_events, 1);
            assert_same_answer("held", &want[i], &got[i]);
            assert_true(want[i].reported == got[i].reported && want[i].reported_hash == got[i].reported_hash);
        }
        answers_free(got, REQUESTS);
        iv_engine_close(e);
    }
    answers_free(want, REQUESTS);
}

static bool step(iv_engine *e, answer a[2]) {
    iv_error err;
    bool busy;
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    take_events(e, a, 2);
    return busy;
}

/* A held request has no pages, counts as waiting, can be cancelled, and does not block others. */
static void a_held_request_takes_nothing(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    o.max_num_seqs = 1, o.prefix_caching = false;
    iv_engine *e = open_with(&o);
    iv_engine_stats stats;
    iv_error err;
    bool busy;
    answer *a = answers_new(2);
    iv_request r = ask(e, "12 + 30 = 42. What comes next: 60, 73, 86", 100);
    r.ignore_eos = true;
    submit(e, &r, &a[0]);
    submit(e, &r, &a[1]);
    for (int i = 0; i < 5; i++) step(e, a);
    ASSERT_OK(iv_engine_hold(e, a[0].request, true, &err), &err);
    iv_engine_get_stats(e, &stats);
    assert_true(stats.running == 0 && stats.waiting == 2 && stats.held == 1 && stats.kv_pages_free == stats.kv_pages);
    size_t before = a[0].count;
    while (a[1].done_events == 0) busy = step(e, a);
    assert_true(a[0].count == before && busy);
    ASSERT_OK(iv_engine_cancel(e, a[0].request, &err), &err);
    busy = step(e, a);
    assert_true(!busy && a[0].done_events == 1 && a[0].finish == IV_FINISH_CANCELLED);
    assert_int_equal(iv_engine_hold(e, a[0].request, true, &err), IV_NOT_FOUND);
    answers_free(a, 2);
    iv_engine_close(e);
}

/* A slow mask does not slow other requests: they get many tokens for each of its tokens. */
static void steps_do_not_wait_for_masks(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    o.threads = 2;
    iv_engine *e = open_with(&o);
    iv_error err;
    answer *quiet, *a = answers_new(2);
    bool busy = true;
    iv_request honest = ask(e, "12 + 30 = 42. What comes next: 60, 73, 86", 200), slow = ask(e, question, 3);
    honest.ignore_eos = true;
    slow.constraint = IV_CONSTRAINT_REGEX, slow.constraint_text = slow_regex;
    quiet = answer_to(e, &honest);
    iv_engine_reset_prefix_cache(e);
    submit(e, &slow, &a[0]);
    submit(e, &honest, &a[1]);
    size_t honest_first = 0;
    while (busy) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, 2);
        if (a[0].count == 0 && a[0].done_events == 0) honest_first = a[1].count;
    }
    printf("%zu of 200 tokens came before the first that was constrained\n", honest_first);
    assert_true(honest_first > 20);
    assert_true(a[0].count > 0 && a[0].finish != IV_FINISH_ERROR);
    assert_same_answer("next to a slow constraint", quiet, &a[1]);
    answer *alone = answer_to(e, &slow);
    assert_same_answer("a slow constraint", alone, &a[0]);
    answers_free(alone, 1), answers_free(quiet, 1), answers_free(a, 2);
    iv_engine_close(e);
}

/* A mask that takes too much is an error of its request, with its status; the request can be cancelled before. */
static void masks_have_a_budget(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_error err;
    iv_request r = ask(e, question, 3);
    uint64_t id;
    bool busy = true, ended = false;
    r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = endless_regex;
    ASSERT_OK(iv_engine_submit(e, &r, &id, &err), &err);
    while (busy) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) {
            assert_true(v.kind == IV_EVENT_DONE && v.finish == IV_FINISH_ERROR && v.error_status == IV_LIMIT);
            assert_non_null(strstr(v.error, "constraint: ")); /* by effort, or on a busy machine by time */
            ended = true;
        }
    }
    assert_true(ended);

    answer *a = answers_new(2);
    submit(e, &r, &a[0]);
    for (int i = 0; i < 5; i++) ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    ASSERT_OK(iv_engine_cancel(e, a[0].request, &err), &err);
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    take_events(e, a, 1);
    assert_true(a[0].finish == IV_FINISH_CANCELLED && !busy);
    submit(e, &r, &a[1]);
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    iv_engine_close(e); /* while another thread is at work on it */
    answers_free(a, 2);
}

/* A constraint compiled before, on any thread, is the same constraint. */
static void constraints_can_be_compiled_before(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_error err;
    iv_request r = make_request(e, 1);
    answer *want = answer_to(e, &r), *got;
    ASSERT_OK(iv_engine_compile(e, &r, true, &r.compiled, &err), &err);
    got = answer_to(e, &r);
    assert_same_answer("compiled before", want, got);
    iv_constraint *again = NULL, *kept = iv_constraint_retain(r.compiled);
    ASSERT_OK(iv_engine_compile(e, &r, false, &again, &err), &err);
    assert_ptr_equal(again, r.compiled); /* equal ones are one */
    iv_constraint_release(kept), iv_constraint_release(again), iv_constraint_release(r.compiled);

    r.compiled = NULL, r.constraint_text = endless_regex;
    assert_int_equal(iv_engine_compile(e, &r, true, &r.compiled, &err), IV_BUSY);
    ASSERT_OK(iv_engine_compile(e, &r, false, &r.compiled, &err), &err);
    iv_constraint_release(r.compiled);
    r.constraint_text = "(";
    assert_int_equal(iv_engine_compile(e, &r, true, &r.compiled, &err), IV_INVALID);
    r.constraint = IV_CONSTRAINT_NONE;
    assert_int_equal(iv_engine_compile(e, &r, true, &r.compiled, &err), IV_INVALID);
    assert_null(r.compiled);
    answers_free(want, 1), answers_free(got, 1);
    iv_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(held_requests_keep_their_bits), cmocka_unit_test(a_held_request_takes_nothing),
        cmocka_unit_test(steps_do_not_wait_for_masks), cmocka_unit_test(masks_have_a_budget),
        cmocka_unit_test(constraints_can_be_compiled_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
