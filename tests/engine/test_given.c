/* Requests that another engine has begun: the first tokens of the answer are given, the rest has the bits of a run that
 * was not interrupted. */
#include "client.h"

enum { REQUESTS = 12, TOKENS = 60, CUTS = 5 };

static const char question[] = "<|im_start|>user\nWhat is 17 * 6?<|im_end|>\n<|im_start|>assistant\n";

/* Every part of a request that has a state between tokens. */
static iv_request make_request(const iv_engine *e, size_t i) {
    static const char *const stops[] = {"zzz", "= 10", "the answer"};
    static const char *const prompts[] = {"12 + 30 = 42. What comes next: 60, 73, 86", question, "7"};
    static const iv_logit_bias bias[] = {{20, 2.5f}, {700, -3.0f}};
    iv_request r = ask(e, prompts[i % 3], TOKENS);
    r.temperature = i % 2 ? 0.9f : 0, r.seed = 40 + i, r.ignore_eos = i % 3 != 1;
    if (i % 4 == 1) r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = "([0-9]{1,3} ){3,60}end";
    if (i % 4 == 3) r.constraint = IV_CONSTRAINT_JSON_OBJECT;
    if (i % 5 == 2) r.prompt_logprobs = 2;
    if (i % 4 == 0) r.stop = stops, r.stop_count = 3;
    if (i % 3 == 0) r.repetition_penalty = 1.2f, r.frequency_penalty = 0.3f, r.presence_penalty = 0.2f;
    if (i % 5 == 1) r.logit_bias = bias, r.logit_bias_count = 2;
    if (i % 6 == 4) r.min_tokens = 20, r.ignore_eos = false;
    r.logprobs = (int)(i % 3) - 1, r.sampling_logprobs = i % 2;
    r.keep_receipt = true;
    return r;
}

/* The text of each event of an undisturbed run. */
typedef struct run {
    answer *a;
    size_t text_at[ANSWER_TOKENS_MAX + 1]; /* the answer's text before token i */
} run;

static run run_alone(iv_engine *e, const iv_request *r) {
    run out = {.a = answers_new(1)};
    iv_error err;
    submit(e, r, out.a);
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) {
            note_event(out.a, &v);
            if (v.kind == IV_EVENT_TOKEN) out.text_at[out.a->count] = out.a->text.len;
        }
    }
    assert_int_equal(out.a->done_events, 1);
    return out;
}

/* Receipts without their last part, which describes the run. */
static bool same_receipts(const char *want, const char *got) {
    const char *a = strstr(want, "\"neutral\""), *b = strstr(got, "\"neutral\"");
    assert_true(a && b);
    return a - want == b - got && memcmp(want, got, (size_t)(a - want)) == 0;
}

/* The answer `got` began behind `given` tokens of `want`. */
static void check_rest(const run *want, const answer *got, size_t given) {
    const answer *w = want->a;
    assert_int_equal(got->done_events, 1);
    if (got->finish == IV_FINISH_ERROR) fail_msg("%s", got->error);
    assert_int_equal(got->count, w->count - given);
    assert_memory_equal(got->ids, w->ids + given, got->count * sizeof *got->ids);
    assert_memory_equal(got->logprobs, w->logprobs + given, got->count * sizeof *got->logprobs);
    assert_memory_equal(got->sampling_logprobs, w->sampling_logprobs + given, got->count * sizeof *got->logprobs);
    assert_string_equal(text_of(got), text_of(w) + want->text_at[given]);
    assert_string_equal(got->digest, w->digest);
    assert_string_equal(got->stop, w->stop);
    assert_int_equal(got->finish, w->finish);
    assert_true(same_receipts(w->receipt, got->receipt));
}

/* note_event checks that the last event's ids are those of the token events, which the given ones do not have. */
static void take(iv_engine *e, answer *answers, size_t n, const size_t *given, const run *want) {
    for (iv_event v; iv_engine_next_event(e, &v);) {
        size_t i = 0;
        while (i < n && answers[i].request != v.request) i++;
        assert_true(i < n);
        if (v.kind == IV_EVENT_TOKEN)
            assert_int_equal(v.position, want[i].a->prompt_tokens + given[i] + answers[i].count);
        if (v.kind == IV_EVENT_DONE && v.finish != IV_FINISH_ERROR) {
            assert_int_equal(v.id_count, want[i].a->count);
            assert_memory_equal(v.ids, want[i].a->ids, v.id_count * sizeof *v.ids);
        }
        if (v.kind == IV_EVENT_DONE) v.ids += given[i], v.id_count -= given[i];
        note_event(&answers[i], &v);
    }
}

static void continued_answers_are_the_same(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    rng random = rng_start("given");
    run want[REQUESTS];
    iv_error err;
    iv_engine *e = open_with(&o);
    for (size_t i = 0; i < REQUESTS; i++) {
        iv_request r = make_request(e, i);
        want[i] = run_alone(e, &r);
        assert_true(want[i].a->count > 1);
    }
    iv_engine_close(e);
    for (int cut = 0; cut < CUTS; cut++) {
        size_t given[REQUESTS];
        answer *got = answers_new(REQUESTS);
        o.prefix_caching = cut % 2, o.threads = 2, o.speculative = cut % 2 ? "ngram" : "off";
        o.max_num_seqs = 4, o.max_num_batched_tokens = 40;
        e = open_with(&o);
        for (size_t i = 0; i < REQUESTS; i++) {
            iv_request r = make_request(e, i);
            given[i] = cut == 0 ? want[i].a->count - 1 : rng_below(&random, want[i].a->count);
            r.given_ids = want[i].a->ids, r.given_logprobs = want[i].a->logprobs, r.given_count = given[i];
            submit(e, &r, &got[i]);
        }
        for (bool busy = true; busy;) {
            if (rng_below(&random, 5) == 0) /* a step between two chunks of given tokens is a preemption's too */
                (void)iv_engine_preempt(e, got[rng_below(&random, REQUESTS)].request, &err);
            ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
            take(e, got, REQUESTS, given, want);
        }
        for (size_t i = 0; i < REQUESTS; i++) {
            check_rest(&want[i], &got[i], given[i]);
            assert_true(want[i].a->reported == got[i].reported && want[i].a->reported_hash == got[i].reported_hash);
        }
        answers_free(got, REQUESTS);
        iv_engine_close(e);
    }
    for (size_t i = 0; i < REQUESTS; i++) answers_free(want[i].a, 1);
}

/* The check can fail: one bit of one log-probability, or another token. */
static void other_prefixes_are_errors(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, question, 20);
    r.ignore_eos = true;
    run want = run_alone(e, &r);
    enum { GIVEN = 10 };
    size_t given = GIVEN;
    for (size_t at = 0; at < GIVEN; at++) {
        for (int what = 0; what < 2; what++) {
            int32_t ids[GIVEN];
            float logprobs[GIVEN];
            answer *got = answers_new(1);
            iv_error err;
            memcpy(ids, want.a->ids, sizeof ids), memcpy(logprobs, want.a->logprobs, sizeof logprobs);
            if (what)
                ids[at] = ids[at] == 30 ? 31 : 30;
            else
                ((unsigned char *)&logprobs[at])[0] ^= 1;
            r.given_ids = ids, r.given_logprobs = logprobs, r.given_count = given;
            submit(e, &r, got);
            for (bool busy = true; busy;) {
                ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
                take(e, got, 1, &given, &want);
            }
            assert_int_equal(got->finish, IV_FINISH_ERROR);
            assert_int_equal(got->count, 0);
            char words[80];
            snprintf(words, sizeof words, "log-probability of token %zu of the answer was", at);
            if (!strstr(got->error, words)) fail_msg("wanted %s, found %s", words, got->error);
            answers_free(got, 1);
        }
    }
    answers_free(want.a, 1);
    iv_engine_close(e);
}

static void refused(iv_engine *e, const iv_request *r, const char *words) {
    uint64_t id;
    iv_error err;
    assert_int_equal(iv_engine_submit(e, r, &id, &err), IV_INVALID);
    if (!strstr(err.message, words)) fail_msg("wanted %s, found %s", words, err.message);
}

static void wrong_prefixes_are_refused(void **state) {
    (void)state;
    static const int32_t ids[] = {20, 688, 1 << 30}; /* 688: <|im_end|> */
    static const float logprobs[] = {-1, -1, -1};
    const char *stops[1];
    iv_engine *e = open_small();
    iv_request r = ask(e, question, 2);
    r.given_ids = ids, r.given_logprobs = logprobs, r.given_count = 2;
    refused(e, &r, "wanted less than the answer's 2, found 2");
    r.max_tokens = 20;
    refused(e, &r, "token 1, 688, ends the answer");
    r.given_count = 3;
    refused(e, &r, "wanted a token id below");
    r.given_count = 1, r.given_logprobs = NULL;
    refused(e, &r, "given log-probabilities: wanted 1 entries");
    r.given_logprobs = logprobs, r.given_ids = NULL;
    refused(e, &r, "given tokens: wanted 1 entries");
    r.given_ids = ids, r.has_seed = false, r.temperature = 1;
    refused(e, &r, "wanted the seed");
    r.has_seed = true, r.max_tokens = 0, r.score_only = true;
    refused(e, &r, "score_only");
    /* A token whose text completes a stop string. */
    iv_text text;
    iv_error err;
    r = ask(e, question, 20);
    run want = run_alone(e, &r);
    ASSERT_OK(iv_detokenize(iv_engine_text_model(e), want.a->ids, 1, true, &text, &err), &err);
    stops[0] = text.bytes ? text.data : "?";
    r.stop = stops, r.stop_count = 1;
    r.given_ids = want.a->ids, r.given_logprobs = want.a->logprobs, r.given_count = 1;
    refused(e, &r, "completes a stop string");
    iv_text_free(&text);
    answers_free(want.a, 1);
    iv_engine_close(e);
}

/* A text model compiles what an engine compiles, and refuses the same. */
static void constraints_without_an_engine(void **state) {
    (void)state;
    iv_text_model *t;
    iv_constraint *c;
    iv_error err;
    iv_engine *e = open_small();
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    iv_request r = ask(e, question, 20);
    ASSERT_OK(iv_text_model_open(INVAR_SOURCE_DIR "/models/tiny-math", &t, &err), &err);
    assert_int_equal(iv_text_model_compile(t, info.vocab_size, &r, true, &c, &err), IV_INVALID);
    r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = "[0-9]+";
    ASSERT_OK(iv_text_model_compile(t, info.vocab_size, &r, true, &c, &err), &err);
    iv_constraint_release(c);
    r.constraint_text = "(";
    assert_int_equal(iv_text_model_compile(t, info.vocab_size, &r, false, &c, &err), IV_INVALID);
    assert_null(c);
    iv_text_model_close(t);
    iv_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(continued_answers_are_the_same), cmocka_unit_test(other_prefixes_are_errors),
        cmocka_unit_test(wrong_prefixes_are_refused), cmocka_unit_test(constraints_without_an_engine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
