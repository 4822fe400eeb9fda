/* A request's events: text in pieces, finish reasons, log-probabilities, penalties, digests. */
#include "made_model.h"
#include "base/digest.h"
#include "numerics/rows.h"

static const char chat[] = "<|im_start|>user\nZoe has 29 buttons. A friend gives Zoe 39 buttons. How many buttons "
                           "are left for Zoe?<|im_end|>\n<|im_start|>assistant\n";
enum { EOS = 688, NUL = 188, VOCAB = 1024, SAMPLED = 12, BATCH = 16 };

static char *detokenized(const iv_engine *e, const int32_t *ids, size_t n, bool keep_special) {
    iv_text text;
    iv_error err;
    ASSERT_OK(iv_detokenize(iv_engine_text_model(e), ids, n, keep_special, &text, &err), &err);
    assert_int_equal(strlen(text.data), text.bytes);
    return text.data; /* plain malloc memory: iv_text_free frees it so */
}

static void expect_text(const iv_engine *e, const answer *a, bool keep_special) {
    char *want = detokenized(e, a->ids, a->count, keep_special);
    assert_string_equal(text_of(a), want);
    free(want);
}

/* Hot sampling gives byte tokens in any order: characters are completed, or replaced, but never cut. */
static void pieces_make_the_whole_text(void **state) {
    (void)state;
    iv_engine *e = open_small();
    answer *a = answers_new(SAMPLED);
    const iv_logit_bias no_nul = {NUL, -100}; /* byte 0 would end the strings that are compared */
    for (size_t i = 0; i < SAMPLED; i++) {
        iv_request r = ask(e, "12345 + 678 = ?", 90);
        r.temperature = 1.5f + (float)(i / 4), r.seed = i, r.ignore_eos = true, r.keep_special = i % 2;
        r.logit_bias = &no_nul, r.logit_bias_count = 1;
        submit(e, &r, &a[i]);
    }
    run_all(e, a, SAMPLED);
    size_t replaced = 0;
    for (size_t i = 0; i < SAMPLED; i++) {
        expect_text(e, &a[i], i % 2);
        assert_int_equal(a[i].count, 90);
        replaced += strstr(text_of(&a[i]), "\xef\xbf\xbd") != NULL;
    }
    assert_true(replaced > 0); /* incomplete characters did occur */
    iv_engine_close(e);
    answers_free(a, SAMPLED);
}

static void the_end_token_is_not_text(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 100);
    answer *a = answer_to(e, &r);
    printf("answer: %s\n", text_of(a));
    assert_int_equal(a->finish, IV_FINISH_STOP);
    assert_false(a->has_stop);
    assert_int_equal(a->ids[a->count - 1], EOS);
    expect_text(e, a, false);
    assert_null(strstr(text_of(a), "<|im_end|>"));
    r.keep_special = true;
    answer *kept = answer_to(e, &r);
    assert_string_equal(text_of(kept) + strlen(text_of(a)), "<|im_end|>");
    assert_string_equal(a->digest, kept->digest);
    static const int32_t eos[] = {EOS};
    iv_error err;
    r.keep_special = false, r.show_ids = eos, r.show_id_count = 1; /* this one is shown, kept or not */
    answer *shown = answer_to(e, &r);
    assert_string_equal(text_of(shown), text_of(kept));
    static const char *const stop[] = {"im_end"};
    r.stop = stop, r.stop_count = 1; /* and is text to stop strings */
    answer *stopped = answer_to(e, &r);
    assert_true(stopped->has_stop && strcmp(text_of(stopped) + strlen(text_of(a)), "<|") == 0);
    r.show_id_count = 9;
    uint64_t id;
    assert_int_equal(iv_engine_submit(e, &r, &id, &err), IV_INVALID);
    r.show_ids = NULL, r.show_id_count = 0, r.stop_count = 0;
    r.ignore_eos = true, r.keep_special = true;
    answer *on = answer_to(e, &r);
    assert_int_equal(on->finish, IV_FINISH_LENGTH);
    assert_int_equal(on->count, 100);
    assert_memory_equal(on->ids, a->ids, a->count * sizeof *a->ids);
    iv_engine_close(e);
    answers_free(a, 1), answers_free(kept, 1), answers_free(on, 1), answers_free(shown, 1), answers_free(stopped, 1);
}

/* ---- stops --------------------------------------------------------------------------------------------- */

static void expect_stopped(const iv_engine *e, const answer *base, const answer *a, const char *stop) {
    const char *at = strstr(text_of(base), stop);
    assert_non_null(at);
    size_t shown = (size_t)(at - text_of(base));
    if (strncmp(text_of(a), text_of(base), shown) != 0 || strlen(text_of(a)) != shown)
        fail_msg("stop '%s': wanted the first %zu bytes, got '%s'", stop, shown, text_of(a));
    assert_int_equal(a->finish, IV_FINISH_STOP);
    assert_true(a->has_stop);
    assert_string_equal(a->stop, stop);
    assert_memory_equal(a->ids, base->ids, a->count * sizeof *a->ids);
    char *with = detokenized(e, a->ids, a->count, false), *without = detokenized(e, a->ids, a->count - 1, false);
    assert_true(strstr(with, stop) && !strstr(without, stop)); /* as soon as it is complete */
    free(with), free(without);
}

/* Every substring of an answer, up to 9 bytes, as a stop string: at the start, inside tokens, across them. */
static void every_substring_stops(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 100);
    answer *base = answer_to(e, &r);
    size_t n = strlen(text_of(base)), tried = 0;
    const size_t lengths[] = {1, 2, 5, 9};
    for (size_t l = 0; l < 4; l++)
        for (size_t at = 0; at + lengths[l] <= n;) {
            answer *a = answers_new(BATCH);
            char stop[BATCH][16];
            size_t count = 0;
            for (; count < BATCH && at + lengths[l] <= n; count++, at += getenv("INVAR_TEST_LONG") ? 1 : 3) {
                snprintf(stop[count], sizeof stop[count], "%.*s", (int)lengths[l], text_of(base) + at);
                const char *const list[] = {"never said", stop[count]};
                r.stop = list, r.stop_count = 2;
                submit(e, &r, &a[count]);
            }
            run_all(e, a, count);
            for (size_t i = 0; i < count; i++, tried++) expect_stopped(e, base, &a[i], stop[i]);
            answers_free(a, BATCH);
        }
    printf("stops: %zu of an answer of %zu bytes\n", tried, n);
    iv_engine_close(e);
    answers_free(base, 1);
}

/* Text that begins like a stop string is held back, and shown once it turns out not to be one. */
static void near_misses_are_shown(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 100);
    answer *base = answer_to(e, &r);
    size_t n = strlen(text_of(base));
    for (size_t at = 0; at < n; at += 7) {
        char stop[32];
        size_t length = n - at < 20 ? n - at : 20;
        snprintf(stop, sizeof stop, "%.*s\x01", (int)length, text_of(base) + at);
        const char *const list[] = {stop};
        r.stop = list, r.stop_count = 1;
        answer *a = answer_to(e, &r);
        assert_string_equal(text_of(a), text_of(base));
        assert_string_equal(a->digest, base->digest);
        assert_false(a->has_stop);
        answers_free(a, 1);
    }
    iv_engine_close(e);
    answers_free(base, 1);
}

static void the_earliest_stop_wins(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 100);
    answer *base = answer_to(e, &r);
    assert_true(strlen(text_of(base)) > 12);
    char late[8], early[8], start[2];
    snprintf(early, sizeof early, "%.3s", text_of(base) + 4);
    snprintf(late, sizeof late, "%.3s", text_of(base) + 9);
    snprintf(start, sizeof start, "%.1s", text_of(base));
    const char *const list[] = {late, early}, *const all[] = {late, early, start};
    r.stop = list, r.stop_count = 2;
    answer *a = answer_to(e, &r);
    expect_stopped(e, base, a, strstr(text_of(base), late) < strstr(text_of(base), early) ? late : early);
    r.stop = all, r.stop_count = 3;
    answer *none = answer_to(e, &r);
    assert_string_equal(text_of(none), "");
    assert_int_equal(none->count, 1);
    assert_string_equal(none->stop, start);
    iv_engine_close(e);
    answers_free(base, 1), answers_free(a, 1), answers_free(none, 1);
}

static void stop_ids_and_lengths(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 100);
    answer *base = answer_to(e, &r);
    for (size_t k = 0; k < base->count; k += 5) {
        size_t first = 0;
        while (base->ids[first] != base->ids[k]) first++;
        const int32_t ids[] = {1023, base->ids[k]};
        r.stop_ids = ids, r.stop_id_count = 2;
        answer *a = answer_to(e, &r);
        assert_int_equal(a->count, first + 1);
        assert_int_equal(a->finish, IV_FINISH_STOP);
        assert_false(a->has_stop);
        answers_free(a, 1);
    }
    r.stop_ids = NULL, r.stop_id_count = 0, r.ignore_eos = true;
    for (size_t max = 1; max < 20; max += 6) {
        r.max_tokens = max;
        answer *a = answer_to(e, &r);
        assert_int_equal(a->count, max);
        assert_int_equal(a->finish, IV_FINISH_LENGTH);
        expect_text(e, a, false);
        answers_free(a, 1);
    }
    for (size_t max = 0; max < 2000; max += 1000) { /* no limit, or one past the context's */
        r.max_tokens = max;
        answer *a = answer_to(e, &r);
        assert_int_equal(a->prompt_tokens + a->count, 256);
        assert_int_equal(a->finish, IV_FINISH_LENGTH);
        answers_free(a, 1);
    }
    iv_engine_close(e);
    answers_free(base, 1);
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* The logits before each generated token: token i was chosen from row i. */
static float *logits_behind(iv_engine *e, const char *prompt, const answer *a) {
    iv_ids ids = {0};
    iv_error err;
    ASSERT_OK(iv_tokenize(iv_engine_text_model(e), prompt, strlen(prompt), true, &ids, &err), &err);
    size_t before = ids.count, n = before + a->count - 1;
    assert_int_equal(before, a->prompt_tokens);
    int32_t *all = malloc(n * sizeof *all);
    memcpy(all, ids.data, before * sizeof *all);
    memcpy(all + before, a->ids, (a->count - 1) * sizeof *all);
    float *logits = malloc(n * VOCAB * sizeof *logits);
    ASSERT_OK(iv_engine_logits(e, all, n, logits, &err), &err);
    memmove(logits, logits + (before - 1) * VOCAB, a->count * VOCAB * sizeof *logits);
    free(all);
    iv_ids_free(&ids);
    return logits;
}

static void logprobs_are_those_of_the_logits(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 60);
    r.temperature = 1.5f, r.ignore_eos = true, r.logprobs = TOP_MAX, r.top_k = 100, r.presence_penalty = 1;
    answer *a = answers_new(1);
    a->top = calloc(ANSWER_TOKENS_MAX, sizeof *a->top);
    submit(e, &r, a);
    run_all(e, a, 1);
    assert_int_equal(a->top_count, TOP_MAX);
    float *logits = logits_behind(e, chat, a);
    for (size_t i = 0; i < a->count; i++) {
        float *row = logits + i * VOCAB, max, log_sum;
        iv_ref_log_sum_exp(row, VOCAB, &max, &log_sum);
        assert_int_equal(iv_bits(a->logprobs[i]), iv_bits((row[a->ids[i]] - max) - log_sum));
        for (size_t t = 0; t < TOP_MAX; t++) { /* the largest left, smaller ids first */
            int32_t best = 0;
            for (int32_t id = 0; id < VOCAB; id++)
                if (row[id] > row[best]) best = id;
            assert_int_equal(a->top[i][t].id, best);
            assert_int_equal(iv_bits(a->top[i][t].logprob), iv_bits((row[best] - max) - log_sum));
            row[best] = -INFINITY;
        }
    }
    r.logprobs = 0;
    answer *bare = answer_to(e, &r);
    assert_int_equal(bare->top_count, 0);
    assert_string_equal(a->digest, bare->digest);
    free(logits), free(a->top);
    iv_engine_close(e);
    answers_free(a, 1), answers_free(bare, 1);
}

static void digests_are_over_ids_and_logprobs(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 30);
    answer *a = answer_to(e, &r);
    unsigned char bytes[8 * 30];
    uint8_t digest[32];
    char hex[65];
    for (size_t i = 0; i < a->count; i++)
        for (size_t b = 0; b < 4; b++) {
            bytes[8 * i + b] = (unsigned char)((uint32_t)a->ids[i] >> (8 * b));
            bytes[8 * i + 4 + b] = (unsigned char)(iv_bits(a->logprobs[i]) >> (8 * b));
        }
    iv_digest_of(bytes, 8 * a->count, digest);
    iv_digest_hex(digest, hex);
    assert_memory_equal(a->digest, "sha256:", 7);
    assert_string_equal(a->digest + 7, hex);
    iv_engine_close(e);
    answers_free(a, 1);
}

/* Greedy choices under penalties, computed again from the raw logits and the history. */
static void penalties_do_what_they_say(void **state) {
    (void)state;
    static const iv_logit_bias biases[] = {{15, 3.5f}, {220, -2.0f}, {15, 0.25f}};
    static const struct {
        float repetition, presence, frequency;
        size_t bias_count;
    } cases[] = {{1.4f, 0, 0, 0}, {1, 2, 0, 0}, {1, 0, 1.5f, 0}, {1, -2, -0.5f, 0}, {0.8f, 0.5f, 0.5f, 3}};
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 80);
    answer *plain = answer_to(e, &r);
    for (size_t c = 0; c < 5; c++) {
        int32_t in_prompt[VOCAB] = {0}, generated[VOCAB] = {0};
        iv_ids prompt = {0};
        iv_error err;
        ASSERT_OK(iv_tokenize(iv_engine_text_model(e), chat, strlen(chat), true, &prompt, &err), &err);
        for (size_t i = 0; i < prompt.count; i++) in_prompt[prompt.data[i]] = 1;
        iv_ids_free(&prompt);
        r.repetition_penalty = cases[c].repetition, r.presence_penalty = cases[c].presence;
        r.frequency_penalty = cases[c].frequency, r.logit_bias = biases, r.logit_bias_count = cases[c].bias_count;
        r.ignore_eos = true;
        answer *a = answer_to(e, &r);
        assert_string_not_equal(a->digest, plain->digest);
        float *logits = logits_behind(e, chat, a);
        for (size_t i = 0; i < a->count; i++) {
            float *row = logits + i * VOCAB;
            int32_t best = 0;
            for (size_t b = 0; b < cases[c].bias_count; b++) row[biases[b].id] += biases[b].bias;
            for (int32_t id = 0; id < VOCAB; id++) {
                if (in_prompt[id] || generated[id])
                    row[id] = row[id] > 0 ? row[id] / cases[c].repetition : row[id] * cases[c].repetition;
                if (generated[id]) row[id] -= cases[c].frequency * (float)generated[id], row[id] -= cases[c].presence;
                if (row[id] > row[best]) best = id;
            }
            assert_int_equal(a->ids[i], best);
            generated[best]++;
        }
        free(logits);
        answers_free(a, 1);
    }
    iv_engine_close(e);
    answers_free(plain, 1);
}

static void bias_forces_and_forbids(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 30);
    answer *plain = answer_to(e, &r);
    iv_logit_bias b = {plain->ids[0], -100};
    r.logit_bias = &b, r.logit_bias_count = 1, r.temperature = 1, r.ignore_eos = true;
    answer *without = answer_to(e, &r);
    for (size_t i = 0; i < without->count; i++) assert_int_not_equal(without->ids[i], b.id);
    b.id = 77, b.bias = 100;
    answer *only = answer_to(e, &r);
    for (size_t i = 0; i < only->count; i++) assert_int_equal(only->ids[i], 77);
    iv_engine_close(e);
    answers_free(plain, 1), answers_free(without, 1), answers_free(only, 1);
}

static void drawn_seeds_are_reported(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, chat, 50);
    r.temperature = 1.5f, r.has_seed = false, r.ignore_eos = true;
    answer *a = answer_to(e, &r), *b = answer_to(e, &r);
    assert_true(a->seed != b->seed && a->seed >> 63 == 0);
    assert_string_not_equal(a->digest, b->digest);
    r.has_seed = true, r.seed = a->seed;
    answer *again = answer_to(e, &r);
    assert_same_answer("with the reported seed", a, again);
    iv_engine_close(e);
    answers_free(a, 1), answers_free(b, 1), answers_free(again, 1);
}

/* tiny-math with a decoder that drops a leading space, like those of Llama 2 and Mistral. */
static void make_stripping(made_model *m) {
    static const char from[] = "\"decoder\": {",
                      name[] = "\"decoder\": {\"type\": \"Sequence\", \"decoders\": "
                               "[{\"type\": \"Replace\", \"pattern\": {\"String\": \"\xc4\xa0\"}, "
                               "\"content\": \" \"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", "
                               "\"content\": \" \", \"start\": 1, \"stop\": 0}]}, \"unused\": {";
    iv_buf json = {0}, changed = {0};
    iv_error err;
    made_open(m, "models/tiny-math");
    ASSERT_OK(iv_file_read(source_path("models/tiny-math/tokenizer.json"), 1 << 20, &json, &err), &err);
    char *at = strstr(json.data, from);
    assert_non_null(at);
    assert_true(iv_buf_append(&changed, json.data, (size_t)(at - json.data)) && iv_buf_puts(&changed, name) &&
                iv_buf_puts(&changed, at + strlen(from)));
    scratch_write(&m->s, "tokenizer.json", changed.data, changed.len);
    iv_buf_free(&json), iv_buf_free(&changed);
}

/* An answer continues a text, so its leading space stays: whole, in pieces, for stop strings and constraints. */
static void answers_keep_their_first_space(void **state) {
    (void)state;
    made_model m;
    make_stripping(&m);
    iv_engine_options o = made_options(made_write(&m));
    iv_engine *e = open_with(&o);
    iv_request r = ask(e, "What is 17 * 6?", 8);
    r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = " (forty|sixty)";
    answer *a = answer_to(e, &r);
    assert_true(strcmp(text_of(a), " forty") == 0 || strcmp(text_of(a), " sixty") == 0);
    const char *const stop[] = {" "};
    r.stop = stop, r.stop_count = 1;
    answer *stopped = answer_to(e, &r);
    assert_true(stopped->has_stop && strcmp(text_of(stopped), "") == 0);
    iv_request ids = r;
    ids.text = NULL, ids.stop_count = 0, ids.ids = a->ids, ids.id_count = a->count > 1 ? a->count - 1 : 1;
    answer *behind_ids = answer_to(e, &ids);
    assert_int_equal(text_of(behind_ids)[0], ' ');
    static const int32_t end[] = {EOS}; /* no text: the constraint holds all the same */
    ids.ids = end, ids.id_count = 1;
    answer *behind_nothing = answer_to(e, &ids);
    assert_int_equal(text_of(behind_nothing)[0], ' ');
    iv_engine_close(e);
    answers_free(a, 1), answers_free(stopped, 1), answers_free(behind_ids, 1), answers_free(behind_nothing, 1);
    made_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_make_the_whole_text),
                                       cmocka_unit_test(the_end_token_is_not_text),
                                       cmocka_unit_test(every_substring_stops),
                                       cmocka_unit_test(near_misses_are_shown),
                                       cmocka_unit_test(the_earliest_stop_wins),
                                       cmocka_unit_test(stop_ids_and_lengths),
                                       cmocka_unit_test(logprobs_are_those_of_the_logits),
                                       cmocka_unit_test(digests_are_over_ids_and_logprobs),
                                       cmocka_unit_test(penalties_do_what_they_say),
                                       cmocka_unit_test(bias_forces_and_forbids),
                                       cmocka_unit_test(drawn_seeds_are_reported),
                                       cmocka_unit_test(answers_keep_their_first_space)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
