/* min_tokens: tokens that end an answer are not drawn before it has so many, and the others are drawn as if those had
 * probability 0. Stop strings have no effect before either; a constraint's end has. One digest for every execution, and
 * from the receipt. */
#include "client.h"
#include "made_model.h"
#include "kernels/kernels.h"
#include "numerics/rows.h"
#include "sample/sampler.h"

enum { VOCAB = 1024, TOKENS = 90, END = 688 /* <|im_end|> */ };

static const char question[] = "<|im_start|>user\nWhat is 17 * 6?<|im_end|>\n<|im_start|>assistant\n";
static iv_error err;

static iv_request make(const iv_engine *e, size_t least, float temperature, uint64_t seed) {
    iv_request r = ask(e, question, TOKENS);
    r.min_tokens = least, r.temperature = temperature, r.seed = seed;
    return r;
}

static bool has(const int32_t *ids, size_t count, int32_t id) {
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Each token drawn again from the kept row by a sampler that knows which are allowed. */
static void expect_drawn(const iv_engine *e, const answer *a, const iv_request *r, const int32_t *ends,
                         size_t end_count) {
    uint64_t mask[VOCAB / 64];
    iv_sampler s;
    iv_seen seen[VOCAB] = {0};
    ASSERT_OK(iv_sampler_open(&s, VOCAB, &err), &err);
    for (size_t i = 0; i < a->count; i++) {
        iv_sampling p = {.temperature = r->temperature,
                         .top_p = r->top_p,
                         .min_p = r->min_p,
                         .top_k = r->top_k,
                         .repetition_penalty = 1,
                         .seed = r->seed,
                         .allowed = mask};
        const float *row = a->logits + i * VOCAB;
        float logprob, max, sum;
        const iv_kernels *k = iv_kernels_select(IV_ISA_SCALAR);
        memset(mask, 0, sizeof mask);
        for (int32_t t = 0; t < VOCAB; t++)
            if (iv_token_string(iv_engine_text_model(e), t, NULL)) mask[t / 64] |= (uint64_t)1 << (t % 64);
        for (size_t m = 0; i < r->min_tokens && m < end_count; m++)
            mask[ends[m] / 64] &= ~((uint64_t)1 << (ends[m] % 64));
        int32_t id = iv_sample_with_logprob(&s, k, &p, row, seen, 0, a->prompt_tokens + i, &logprob);
        if (id != a->ids[i]) fail_msg("token %zu: wanted %d, found %d", i, (int)id, (int)a->ids[i]);
        assert_int_equal(iv_bits(logprob), iv_bits(a->sampling_logprobs[i])); /* among those that may come ... */
        k->sum_exp(row, VOCAB, &max, &sum);
        float raw = (row[id] - max) - iv_ref_log(sum); /* ... and the model's own */
        assert_int_equal(iv_bits(raw), iv_bits(a->logprobs[i]));
    }
    iv_sampler_close(&s);
}

static void ends_do_not_come_too_soon(void **state) {
    (void)state;
    static const int32_t stop_ids[] = {19, 198}, ends[] = {END, 19, 198};
    iv_engine *e = open_small();
    size_t changed = 0;
    for (size_t i = 0; i < 12; i++) {
        iv_request r = make(e, 0, (float[]){0, 1, 1.6f}[i % 3], 70 + i);
        r.keep_logits = r.sampling_logprobs = true;
        if (i % 4 == 1) r.top_k = 10, r.top_p = 0.9f;
        if (i % 4 == 2) r.min_p = 0.03f;
        if (i >= 6) r.stop_ids = stop_ids, r.stop_id_count = 2;
        size_t end_count = i >= 6 ? 3 : 1;
        answer *plain = answer_to(e, &r), *a = answers_new(1);
        a->vocab = VOCAB;
        assert_non_null(a->logits = malloc(sizeof(float) * VOCAB * TOKENS));
        r.min_tokens = plain->count + 5;
        if (r.min_tokens > TOKENS) r.min_tokens = TOKENS;
        submit(e, &r, a);
        run_all(e, a, 1);
        assert_true(a->count >= r.min_tokens);
        for (size_t m = 0; m < end_count; m++) assert_false(has(a->ids, r.min_tokens, ends[m]));
        expect_drawn(e, a, &r, ends, end_count);
        if (plain->finish == IV_FINISH_STOP) { /* it is the same up to where it would have ended */
            assert_memory_equal(a->ids, plain->ids, (plain->count - 1) * sizeof *a->ids);
            changed++;
        }
        free(a->logits);
        answers_free(a, 1), answers_free(plain, 1);
    }
    assert_true(changed >= 6);
    iv_engine_close(e);
}

/* The first token that may end the answer is number min_tokens + 1. */
static void it_may_end_right_behind(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = make(e, 0, 0, 1);
    answer *plain = answer_to(e, &r);
    assert_int_equal(plain->finish, IV_FINISH_STOP);
    for (size_t least = plain->count - 3; least < plain->count; least++) {
        r.min_tokens = least;
        answer *a = answer_to(e, &r);
        assert_same_answer("as long as it is anyway", plain, a);
        answers_free(a, 1);
    }
    r.min_tokens = plain->count;
    answer *longer = answer_to(e, &r);
    assert_true(longer->count > plain->count);
    answers_free(longer, 1);
    r.ignore_eos = true; /* nothing ends it: it changes nothing */
    longer = answer_to(e, &r);
    r.min_tokens = 0;
    answer *same = answer_to(e, &r);
    assert_same_answer("nothing to wait for", same, longer);
    answers_free(longer, 1), answers_free(same, 1), answers_free(plain, 1);
    iv_engine_close(e);
}

enum { SHORT = 24 };

/* A naive search: the first token after `least` that completes a stop string, and where the string begins. */
static size_t stopped_at(const char *text, const size_t ends[SHORT + 1], const char *const *stops, size_t count,
                         size_t least, size_t *begin) {
    for (size_t k = least + 1; k <= SHORT; k++) {
        *begin = SIZE_MAX;
        for (size_t at = 0; at < ends[k]; at++)
            for (size_t i = 0; i < count; i++) {
                size_t n = strlen(stops[i]);
                bool completed = at + n > ends[k - 1] && at + n <= ends[k];
                if (completed && memcmp(text + at, stops[i], n) == 0 && at < *begin) *begin = at;
            }
        if (*begin != SIZE_MAX) return k;
    }
    return 0;
}

/* A stop string counts if the token that completes it may end the answer; else it is text. */
static void stop_strings_wait(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = make(e, 0, 0, 1);
    size_t ends[SHORT + 1] = {0}, stopped = 0, passed = 0;
    const char *const stops[] = {"1", "10", "102", "> "}; /* one begins the other: what is held back may be whole */
    r.ignore_eos = true;
    for (size_t k = 1; k < SHORT; k++) {
        r.max_tokens = k;
        answer *a = answer_to(e, &r);
        ends[k] = a->text.len;
        answers_free(a, 1);
    }
    r.max_tokens = SHORT;
    answer *whole = answer_to(e, &r);
    ends[SHORT] = whole->text.len;
    for (size_t n = 1; n <= 4; n++)
        for (size_t least = 0; least <= SHORT; least++) {
            size_t begin = 0, k = stopped_at(text_of(whole), ends, stops, n, least, &begin);
            r.stop = stops, r.stop_count = n, r.min_tokens = least;
            answer *a = answer_to(e, &r);
            assert_int_equal(a->count, k ? k : SHORT);
            assert_int_equal(a->has_stop, k != 0);
            assert_int_equal(a->text.len, k ? begin : ends[SHORT]);
            assert_memory_equal(text_of(a), text_of(whole), a->text.len);
            stopped += k != 0, passed += least && stopped_at(text_of(whole), ends, stops, n, 0, &begin) < k;
            answers_free(a, 1);
        }
    assert_true(stopped > 6 && passed > 3);
    answers_free(whole, 1);
    iv_engine_close(e);
}

/* A constraint that allows no further token ends the answer before min_tokens. */
static void a_constraint_may_be_shorter(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = make(e, 40, 1, 5);
    r.constraint = IV_CONSTRAINT_CHOICE, r.constraint_text = "[\"yes\",\"no\"]";
    answer *a = answer_to(e, &r);
    assert_true(strcmp(text_of(a), "yes") == 0 || strcmp(text_of(a), "no") == 0);
    assert_int_equal(a->finish, IV_FINISH_STOP);
    answers_free(a, 1);
    r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = "[0-9]*";
    for (uint64_t seed = 1; seed <= 5; seed++) {
        r.seed = seed, r.min_tokens = 0;
        answer *soon = answer_to(e, &r);
        r.min_tokens = 40;
        a = answer_to(e, &r);
        assert_true(a->count >= 40 && soon->count < 40);
        assert_int_equal(strspn(text_of(a), "0123456789"), a->text.len);
        answers_free(a, 1), answers_free(soon, 1);
    }
    iv_engine_close(e);
}

enum { CASES = 10 };

static answer *answers_of(const iv_engine_options *o, bool together, bool preempt) {
    static const int32_t stop_ids[] = {16, 220};
    static const char *const stops[] = {"= 1", "\n"};
    iv_engine *e = open_with(o);
    answer *a = answers_new(CASES);
    for (size_t i = 0; i < CASES; i++) {
        iv_request r = make(e, (size_t[]){5, 30, 60, 90, 1}[i % 5], (float[]){0, 0.8f, 1.4f}[i % 3], 300 + i);
        r.sampling_logprobs = true;
        if (i % 2) r.stop_ids = stop_ids, r.stop_id_count = 2;
        if (i % 4 == 3) r.stop = stops, r.stop_count = 2;
        submit(e, &r, &a[i]);
        if (!together) run_all(e, &a[i], 1);
    }
    for (bool busy = together; busy;) {
        iv_engine_stats stats;
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, CASES);
        iv_engine_get_stats(e, &stats);
        if (preempt && stats.steps % 5 == 0) (void)iv_engine_preempt(e, a[stats.steps / 5 % CASES].request, &err);
    }
    iv_engine_close(e);
    return a;
}

static void one_digest_in_every_way(void **state) {
    (void)state;
    static const struct {
        const char *what, *speculative;
        size_t ranks, budget, threads;
        bool preempt;
    } ways[] = {{"together", "off", 1, 512, 1, false},
                {"two ranks", "off", 2, 512, 2, false},
                {"drafts", "ngram", 1, 512, 2, false},
                {"chunks, preempted", "ngram", 1, 23, 2, true}};
    iv_engine_options o = small_options();
    o.max_num_seqs = CASES;
    answer *want = answers_of(&o, false, false);
    size_t accepted = 0, preempted = 0;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        o.speculative = ways[w].speculative, o.tensor_parallel_size = ways[w].ranks, o.threads = ways[w].threads;
        o.max_num_batched_tokens = ways[w].budget;
        answer *got = answers_of(&o, true, ways[w].preempt);
        for (size_t i = 0; i < CASES; i++) {
            char name[100];
            snprintf(name, sizeof name, "%s, case %zu", ways[w].what, i);
            assert_same_answer(name, &want[i], &got[i]);
            assert_same_bits(name, want[i].sampling_logprobs, got[i].sampling_logprobs, got[i].count, 4, false);
            accepted += got[i].accepted_tokens, preempted += got[i].preemptions;
        }
        answers_free(got, CASES);
    }
    assert_true(accepted > 10 && preempted > 2);
    answers_free(want, CASES);
}

/* The receipt of one request, for the caller to free. */
static char *receipt_of(iv_engine *e, iv_request *r, char digest[80]) {
    answer *a = answer_with_receipt(e, r);
    char *receipt = strdup(a->receipt);
    snprintf(digest, 80, "%s", a->digest);
    answers_free(a, 1);
    return receipt;
}

static void receipts_repeat_it(void **state) {
    (void)state;
    iv_engine *e = open_small();
    char digest[80], again[80];
    for (size_t i = 0; i < 3; i++) {
        iv_request r = make(e, 50, (float)i, 9), back;
        if (i == 1)
            r.max_tokens = 0, r.min_tokens = 200; /* more than the model's length leaves, which the receipt shows */
        iv_receipt *bad = NULL;
        char *text = receipt_of(e, &r, digest);
        iv_receipt *read = read_receipt(text);
        iv_receipt_get_request(read, &back);
        assert_true(back.ignore_eos && has(back.stop_ids, back.stop_id_count, END));
        assert_true(i == 1 ? back.min_tokens <= back.max_tokens && back.min_tokens >= 100 : back.min_tokens == 50);
        free(receipt_of(e, &back, again));
        assert_string_equal(again, digest);
        if (i != 1) { /* the control */
            back.min_tokens = 0;
            free(receipt_of(e, &back, again));
            assert_string_not_equal(again, digest);
        }
        char *at = strstr(text, "\"min_tokens\":50");
        assert_int_equal(at != NULL, i != 1);
        if (at) { /* more than max_tokens */
            memcpy(at + 13, "91", 2);
            assert_int_equal(iv_receipt_read("receipt", text, strlen(text), &bad, &err), IV_FORMAT);
            assert_non_null(strstr(err.message, "request.min_tokens"));
        }
        iv_receipt_close(read);
        free(text);
    }
    iv_request r = make(e, 0, 0, 9);
    char *text = receipt_of(e, &r, digest);
    assert_null(strstr(text, "min_tokens")); /* as it was before there was one */
    free(text);
    iv_engine_close(e);
}

static void what_is_refused(void **state) {
    (void)state;
    iv_engine *e = open_small();
    uint64_t id;
    iv_request r = make(e, TOKENS + 1, 0, 1);
    assert_int_equal(iv_engine_submit(e, &r, &id, &err), IV_INVALID);
    assert_string_equal(err.message, "min_tokens: wanted at most 90, as the answer may have, found 91");
    r.max_tokens = 0, r.min_tokens = 257;
    assert_int_equal(iv_engine_submit(e, &r, &id, &err), IV_INVALID);
    assert_string_equal(err.message, "min_tokens: wanted at most 256, as the answer may have, found 257");
    r.score_only = true, r.min_tokens = 1;
    assert_int_equal(iv_engine_submit(e, &r, &id, &err), IV_INVALID);
    assert_string_equal(err.message, "min_tokens: wanted at most 0, as the answer may have, found 1");
    iv_engine_close(e);
}

/* If every token of the vocabulary ends the answer, none is allowed first. */
static void no_token_is_left(void **state) {
    (void)state;
    enum { WORDS = 48 };
    int32_t all[WORDS];
    made_model m;
    made_open(&m, "qwen3");
    made_config(&m, "\"vocab_size\": 512", "\"vocab_size\": 48");
    iv_engine_options o = made_options(made_write(&m));
    o.load_format = "dummy";
    iv_engine *e = open_with(&o);
    iv_request r;
    iv_request_init(e, &r);
    for (int32_t i = 0; i < WORDS; i++) all[i] = i;
    r.ids = all, r.id_count = 3, r.max_tokens = 4, r.min_tokens = 1;
    r.stop_ids = all, r.stop_id_count = WORDS - 1, r.ignore_eos = true;
    answer *a = answer_to(e, &r);
    assert_int_equal(a->ids[0], WORDS - 1);
    answers_free(a, 1);
    r.stop_id_count = WORDS;
    a = answer_to(e, &r);
    assert_true(a->finish == IV_FINISH_ERROR && a->count == 0);
    assert_string_equal(a->error, "min_tokens: wanted a token that does not end the answer, found none");
    answers_free(a, 1);
    iv_engine_close(e);
    made_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_do_not_come_too_soon), cmocka_unit_test(it_may_end_right_behind),
        cmocka_unit_test(stop_strings_wait),         cmocka_unit_test(a_constraint_may_be_shorter),
        cmocka_unit_test(one_digest_in_every_way),   cmocka_unit_test(receipts_repeat_it),
        cmocka_unit_test(what_is_refused),           cmocka_unit_test(no_token_is_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
