/* Receipts: reading restores every bit that was written; a request made from a receipt gives the same answer; damage is
 * refused by the name of the field; comparing with another engine lists every part that differs. */
#include "client.h"
#include "made_model.h"

#include <jansson.h>

static iv_error err;

/* A request without any default value. */
static iv_request full_request(const iv_engine *e) {
    static const iv_logit_bias bias[] = {{5, 0.1f}, {700, -3.3f}, {5, 1e-7f}};
    static const char *const stops[] = {"\"quoted\"\n", "\xc3\xa9\xe2\x82\xac"};
    static const int32_t stop_ids[] = {3, 1};
    iv_request r = ask(e, "<|im_start|>user\nWhat is 17 * 6?<|im_end|>\n<|im_start|>assistant\n", 24);
    r.temperature = 0.7f, r.top_p = 0.95f, r.min_p = 0.01f, r.top_k = 40, r.repetition_penalty = 1.05f;
    r.presence_penalty = 0.1f, r.frequency_penalty = -0.2f, r.seed = UINT64_MAX, r.logprobs = 3;
    r.logit_bias = bias, r.logit_bias_count = 3, r.stop = stops, r.stop_count = 2;
    static const int32_t show_ids[] = {1, 687};
    r.stop_ids = stop_ids, r.stop_id_count = 2, r.keep_special = true;
    r.show_ids = show_ids, r.show_id_count = 2;
    return r;
}

static void comes_back_as_it_was(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request q = full_request(e), back;
    answer *k = answer_with_receipt(e, &q);
    assert_null(strchr(k->receipt, '\n'));
    iv_receipt *r = read_receipt(k->receipt);
    iv_receipt_get_request(r, &back);
    assert_int_equal(back.id_count, k->prompt_tokens);
    assert_true(back.text == NULL && back.has_seed && back.seed == UINT64_MAX && back.max_tokens == 24);
    assert_int_equal(iv_bits(back.temperature), iv_bits(q.temperature));
    assert_int_equal(iv_bits(back.top_p), iv_bits(q.top_p));
    assert_int_equal(iv_bits(back.min_p), iv_bits(q.min_p));
    assert_int_equal(iv_bits(back.repetition_penalty), iv_bits(q.repetition_penalty));
    assert_int_equal(iv_bits(back.presence_penalty), iv_bits(q.presence_penalty));
    assert_int_equal(iv_bits(back.frequency_penalty), iv_bits(q.frequency_penalty));
    assert_true(back.top_k == 40 && back.logprobs == 3 && back.keep_special && back.ignore_eos);
    assert_int_equal(back.logit_bias_count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(back.logit_bias[i].id, q.logit_bias[i].id);
        assert_int_equal(iv_bits(back.logit_bias[i].bias), iv_bits(q.logit_bias[i].bias));
    }
    assert_int_equal(back.stop_count, 2);
    for (size_t i = 0; i < 2; i++) assert_string_equal(back.stop[i], q.stop[i]);
    assert_true(back.show_id_count == 2 && back.show_ids[0] == 1 && back.show_ids[1] == 687);
    assert_int_equal(back.stop_id_count, 3); /* 3, 1 and the model's <|im_end|> */
    assert_int_equal(back.stop_ids[2], 688);
    iv_receipt_info i;
    iv_receipt_get_info(r, &i);
    assert_true(i.finish == k->finish && i.id_count == k->count && i.id_count > 4);
    assert_memory_equal(i.ids, k->ids, i.id_count * sizeof *i.ids);
    assert_memory_equal(i.logprobs, k->logprobs, i.id_count * sizeof *i.logprobs);
    assert_string_equal(i.digest, k->digest);
    assert_string_equal(i.invar_version, iv_version());
    assert_string_equal(i.model, INVAR_SOURCE_DIR "/models/tiny-math");
    ASSERT_OK(iv_receipt_match(r, e, &err), &err);
    iv_receipt_close(r);
    answers_free(k, 1);
    iv_engine_close(e);
}

/* Receipts of concurrent requests, computed again alone, in other chunks and with another number of threads. */
static void gives_the_same_answer(void **state) {
    (void)state;
    static const char *const texts[] = {"What is 17 * 6?", "Mia has 34 marbles.", "1, 2, 3, 4,", "Compute 9 - 4."};
    enum { N = sizeof texts / sizeof *texts };
    iv_engine *e = open_small();
    answer *kept = answers_new(N);
    for (size_t i = 0; i < N; i++) {
        iv_request q = ask(e, texts[i], 10 + 7 * i);
        q.temperature = i % 2 ? 3.0f : 0, q.seed = 100 + i, q.keep_receipt = true, q.id = i + 1;
        submit(e, &q, &kept[i]);
    }
    run_all(e, kept, N);
    iv_engine_close(e);
    iv_engine_options o = small_options();
    o.threads = 2, o.max_num_batched_tokens = 3, o.max_num_seqs = 1;
    e = open_with(&o);
    for (size_t i = 0; i < N; i++) {
        iv_receipt *r = read_receipt(kept[i].receipt);
        iv_request q;
        iv_receipt_info want;
        iv_receipt_get_request(r, &q);
        iv_receipt_get_info(r, &want);
        ASSERT_OK(iv_receipt_match(r, e, &err), &err);
        answer *k = answer_with_receipt(e, &q);
        assert_string_equal(k->digest, want.digest);
        assert_int_equal(k->finish, want.finish);
        /* Another seed must show, or the comparison would prove nothing. */
        answers_free(k, 1);
        if (i % 2) {
            q.seed ^= 1;
            k = answer_with_receipt(e, &q);
            assert_string_not_equal(k->digest, want.digest);
            answers_free(k, 1);
        }
        iv_receipt_close(r);
    }
    iv_engine_close(e);
    answers_free(kept, N);
}

static void cancelled_and_empty(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request q = ask(e, "What is 17 * 6?", 50);
    uint64_t id;
    bool busy;
    q.keep_receipt = q.ignore_eos = true;
    for (size_t steps = 0; steps < 4; steps += 3) {
        iv_receipt *r = NULL;
        ASSERT_OK(iv_engine_submit(e, &q, &id, &err), &err);
        for (size_t i = 0; i < steps; i++) ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        ASSERT_OK(iv_engine_cancel(e, id, &err), &err);
        for (busy = true; busy;) ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);)
            if (v.kind == IV_EVENT_DONE) r = read_receipt(v.receipt);
        iv_receipt_info info;
        assert_non_null(r);
        iv_receipt_get_info(r, &info);
        assert_int_equal(info.finish, IV_FINISH_CANCELLED);
        assert_int_equal(info.id_count, steps);
        iv_receipt_close(r);
    }
    iv_engine_close(e);
}

/* The model's end tokens may exceed the limit of stop ids. */
static void most_stop_ids(void **state) {
    (void)state;
    int32_t ids[64];
    for (int32_t i = 0; i < 64; i++) ids[i] = 900 + i;
    iv_engine *e = open_small();
    iv_request q = ask(e, "<|im_start|>user\nWhat is 1 + 1?<|im_end|>\n<|im_start|>assistant\n", 60), again;
    q.stop_ids = ids, q.stop_id_count = 64;
    answer *k = answer_with_receipt(e, &q);
    assert_int_equal(k->finish, IV_FINISH_STOP);
    iv_receipt *r = read_receipt(k->receipt);
    iv_receipt_get_request(r, &again);
    assert_int_equal(again.stop_id_count, 65);
    answer *l = answer_with_receipt(e, &again);
    assert_string_equal(l->digest, k->digest);
    assert_int_equal(l->finish, IV_FINISH_STOP);
    iv_receipt_close(r);
    answers_free(k, 1), answers_free(l, 1);
    iv_engine_close(e);
}

/* ---- damage -------------------------------------------------------------------------------------------- */

static char *a_receipt(void) {
    static char text[1 << 16];
    if (!*text) {
        iv_engine *e = open_small();
        iv_request q = full_request(e);
        answer *k = answer_with_receipt(e, &q);
        snprintf(text, sizeof text, "%s", k->receipt);
        answers_free(k, 1);
        iv_engine_close(e);
    }
    return text;
}

static void refuse(const char *text, const char *words) {
    iv_receipt *r = NULL;
    iv_status status = iv_receipt_read("r.jsonl:3", text, strlen(text), &r, &err);
    if (status == IV_OK) fail_msg("accepted, wanted '%s'", words);
    if (!strstr(err.message, words) || strncmp(err.message, "r.jsonl:3", 9) != 0)
        fail_msg("wanted '%s', got '%s'", words, err.message);
}

/* Sets (or with "" removes) the member at object.key to a JSON value. */
static void refuse_with(const char *object, const char *key, const char *value, const char *words) {
    json_t *all = json_loads(a_receipt(), 0, NULL), *o = *object ? json_object_get(all, object) : all;
    assert_non_null(o);
    if (*value)
        assert_int_equal(json_object_set_new(o, key, json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)), 0);
    else
        assert_int_equal(json_object_del(o, key), 0);
    char *text = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(9));
    refuse(text, words);
    free(text);
    json_decref(all);
}

static void bad_fields_are_named(void **state) {
    (void)state;
    static const struct {
        const char *object, *key, *value, *words;
    } cases[] = {
        {"", "receipt", "", "not a receipt"},
        {"", "receipt", "2", "this program reads version 1, found 2"},
        {"", "receipt", "\"1\"", "receipt: wanted an integer"},
        {"", "colour", "1", "colour: not a field of a receipt"},
        {"", "fingerprint", "", "fingerprint: missing"},
        {"", "fingerprint", "\"a b\"", "fingerprint: wanted 1 to 95 visible ASCII"},
        {"", "maker", "[]", "maker: wanted an object, found array"},
        {"", "request", "null", "request: missing"},
        {"maker", "weights", "\"12\"", "maker.weights: wanted 64 lower-case hexadecimal digits"},
        {"maker", "weights", "\"\"", "maker.weights: wanted 64"},
        {"maker", "numerics_version", "0", "maker.numerics_version: wanted an integer from 1"},
        {"neutral", "threads", "0", "neutral.threads: wanted an integer from 1"},
        {"neutral", "speed", "0", "neutral.speed: not a field"},
        {"request", "prompt_ids", "[]", "request.prompt_ids: wanted a token"},
        {"request", "prompt_ids", "[1,-1]", "request.prompt_ids[1]: wanted a token id"},
        {"request", "prompt_ids", "[1.5]", "request.prompt_ids[0]: wanted a token id"},
        {"request", "prompt_ids", "7", "request.prompt_ids: wanted an array, found integer"},
        {"request", "max_tokens", "0", "request.max_tokens: wanted an integer from 1"},
        {"request", "temperature", "101", "request.temperature: wanted a number from 0 to 100"},
        {"request", "temperature", "", "request.temperature: missing"},
        {"request", "top_p", "\"x\"", "request.top_p: wanted a number"},
        {"request", "seed", "7", "request.seed: wanted a string, found 7"},
        {"request", "seed", "\"18446744073709551616\"", "request.seed: wanted a string of digits below 2^64"},
        {"request", "seed", "\"-1\"", "request.seed: wanted a string of digits"},
        {"request", "seed", "\"\"", "request.seed: wanted a string of digits"},
        {"request", "logit_bias", "[[1]]", "request.logit_bias[0]: wanted [token id, number"},
        {"request", "logit_bias", "[[1,200]]", "request.logit_bias[0]"},
        {"request", "stop", "[\"\"]", "request.stop[0]: wanted a string of 1 to 256 bytes"},
        {"request", "stop", "[\"a\\u0000b\"]", "request.stop[0]"},
        {"request", "stop_ids", "[99999999999]", "request.stop_ids[0]"},
        {"request", "ignore_eos", "0", "request.ignore_eos: wanted true or false"},
        {"outcome", "finish", "\"bored\"", "outcome.finish: wanted stop, length, cancelled or error, found 'bored'"},
        {"outcome", "ids", "[]", "outcome.ids: wanted 1 to 24 tokens, found 0"},
        {"outcome", "ids", "[1]", "outcome.logprob_bits: wanted 8 lower-case"},
        {"outcome", "logprob_bits", "\"xyz\"", "outcome.logprob_bits: wanted"},
        {"outcome", "digest", "\"sha256:00\"", "outcome.digest: the tokens and log-probabilities give"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse_with(cases[i].object, cases[i].key, cases[i].value, cases[i].words);
    refuse("", "not valid JSON");
    refuse("[]", "wanted an object");
    refuse("{} {}", "not valid JSON");
}

/* One changed digit of a token or of a log-probability is detected. */
static void damage_is_seen(void **state) {
    (void)state;
    char *copy = strdup(a_receipt()), *bits = strstr(copy, "\"logprob_bits\":\"") + 16;
    assert_non_null(copy);
    for (size_t i = 2; i < 8; i++) { /* not the sign and exponent, which have separate errors */
        char was = bits[i];
        bits[i] = was == '0' ? '1' : '0';
        refuse(copy, "the receipt is damaged");
        bits[i] = was;
    }
    memcpy(bits, "7fc00000", 8);
    refuse(copy, "7fc00000 is no log-probability");
    memcpy(bits, "3f800000", 8);
    refuse(copy, "3f800000 is no log-probability");
    free(copy);
    json_t *all = json_loads(a_receipt(), 0, NULL), *ids = json_object_get(json_object_get(all, "outcome"), "ids");
    json_array_set_new(ids, 0, json_integer(json_integer_value(json_array_get(ids, 0)) ^ 1));
    char *text = json_dumps(all, JSON_COMPACT);
    refuse(text, "the receipt is damaged");
    free(text);
    json_decref(all);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    const char *text = a_receipt();
    size_t n = strlen(text);
    iv_receipt *r = NULL;
    for (size_t i = 0; i < n; i++) {
        char *part = malloc(i + 1); /* exactly as long, for the sanitizer */
        assert_non_null(part);
        memcpy(part, text, i);
        assert_int_not_equal(iv_receipt_read("r", part, i, &r, &err), IV_OK);
        free(part);
    }
}

/* ---- other makers -------------------------------------------------------------------------------------- */

static void match_says(const iv_receipt *r, const iv_engine *e, const char *words, const char *absent) {
    assert_int_equal(iv_receipt_match(r, e, &err), IV_INVALID);
    if (!strstr(err.message, words)) fail_msg("wanted '%s' in '%s'", words, err.message);
    if (strstr(err.message, absent)) fail_msg("'%s' does not differ, yet: %s", absent, err.message);
}

static void says_what_differs(void **state) {
    (void)state;
    iv_receipt *r = read_receipt(a_receipt());
    iv_engine_options o = small_options();
    o.arithmetic = "tc16";
    iv_engine *e = open_with(&o);
    match_says(r, e, "the fingerprints differ: arithmetic fma32, here tc16", "weights");
    iv_engine_close(e);
    o = small_options();
    o.dtype = "float32";
    e = open_with(&o);
    match_says(r, e, "dtype bfloat16, here float32", "arithmetic");
    iv_engine_close(e);
    made_model m;
    made_open(&m, "models/tiny-math");
    ((uint8_t *)m.data[0])[0] ^= 1;
    made_write(&m);
    o = small_options();
    o.model = m.s.dir;
    e = open_with(&o);
    match_says(r, e, "a receipt from another model: weights ", "configuration");
    assert_non_null(strstr(err.message, "; tokenizer ")); /* the made directory has none */
    iv_engine_close(e);
    made_close(&m);
    iv_receipt_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back_as_it_was),        cmocka_unit_test(gives_the_same_answer),
        cmocka_unit_test(cancelled_and_empty),         cmocka_unit_test(most_stop_ids),
        cmocka_unit_test(bad_fields_are_named),        cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(every_truncation_is_refused), cmocka_unit_test(says_what_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
