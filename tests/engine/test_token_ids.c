/* Ids without a token (a padded vocabulary, a hole) are never drawn, greedy or sampled, with any filter, penalty or
 * draft, unless sample_all_ids says so; the model's own log-probabilities do not change. */
#include "client.h"
#include "made_model.h"
#include "engine/state.h"
#include "kernels/kernels.h"
#include "numerics/rows.h"
#include "sample/sampler.h"

enum { VOCAB = 1024, KNOWN = 691 /* tokens of tiny-math: ids from here on have none */, TOKENS = 60 };

static iv_error err;

static iv_engine *open_model(const char *model, bool all, const char *speculative) {
    iv_engine_options o = small_options();
    if (model) o.model = model, o.max_model_len = 64;
    o.sample_all_ids = all, o.speculative = speculative;
    return open_with(&o);
}

static size_t unknown_in(const answer *a, size_t n, int32_t known) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < a[i].count; t++) count += a[i].ids[t] >= known;
    return count;
}

/* Requests of every kind that the sampler distinguishes, so hot that all ids are drawn about equally. */
static iv_request hot(const iv_engine *e, size_t i) {
    static const iv_logit_bias bias = {7, -1};
    iv_request r = ask(e, "12 + 34 =", TOKENS);
    r.temperature = (float[]){100, 30, 100, 8}[i % 4], r.seed = i, r.ignore_eos = true, r.sampling_logprobs = i % 2;
    if (i % 5 == 1) r.top_k = 900;
    if (i % 5 == 2) r.top_p = 0.98f;
    if (i % 5 == 3) r.min_p = 0.01f;
    if (i % 5 == 4)
        r.repetition_penalty = 1.2f, r.presence_penalty = 0.5f, r.logit_bias = &bias, r.logit_bias_count = 1;
    if (i % 7 == 6) r.ignore_eos = false, r.min_tokens = TOKENS;
    return r;
}

static size_t draw_many(bool all, const char *speculative) {
    enum { N = 24 };
    iv_engine *e = open_model(NULL, all, speculative);
    answer *a = answers_new(N);
    for (size_t i = 0; i < N; i++) {
        iv_request r = hot(e, i);
        submit(e, &r, &a[i]);
    }
    run_all(e, a, N);
    size_t unknown = unknown_in(a, N, KNOWN);
    answers_free(a, N);
    iv_engine_close(e);
    return unknown;
}

static void no_path_draws_them(void **state) {
    (void)state;
    static const char *const how[] = {"off", "ngram"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(draw_many(false, how[i]), 0);
        assert_true(draw_many(true, how[i]) > 100); /* a third of the vocabulary has no token */
    }
}

/* Also where the model prefers them: greedy and the forced mask of min_tokens. */
static void a_bias_cannot_allow_them(void **state) {
    (void)state;
    const iv_logit_bias bias = {KNOWN + 5, 50}, against = {KNOWN + 5, -50};
    iv_engine *e = open_model(NULL, false, "off"), *all = open_model(NULL, true, "off");
    iv_request r = ask(e, "1 + 1 =", 8);
    uint64_t id;
    r.logit_bias = &bias, r.logit_bias_count = 1;
    expect_error("bias", iv_engine_submit(e, &r, &id, &err), &err, IV_INVALID,
                 "logit_bias: id 696 has no token, so it is never drawn");
    answer *a = answer_to(all, &r);
    assert_int_equal(a->ids[0], KNOWN + 5);
    answers_free(a, 1);
    r.logit_bias = &against;
    a = answer_to(e, &r);
    answers_free(a, 1);
    iv_engine_close(e), iv_engine_close(all);
}

/* Every token, and its two log-probabilities, against the reference sampler with a mask made here. */
static void the_law_is_obeyed(void **state) {
    (void)state;
    iv_engine *e = open_model(NULL, false, "off");
    const iv_kernels *k = iv_kernels_select(IV_ISA_SCALAR);
    uint64_t mask[VOCAB / 64] = {0};
    iv_sampler s;
    for (size_t i = 0; i < KNOWN; i++) mask[i / 64] |= (uint64_t)1 << (i % 64);
    ASSERT_OK(iv_sampler_open(&s, VOCAB, &err), &err);
    for (size_t i = 0; i < 8; i++) {
        iv_request r = ask(e, "12 + 34 =", TOKENS);
        r.temperature = (float[]){1, 0, 2.5f, 40}[i % 4], r.seed = i, r.ignore_eos = true;
        if (i > 4) r.top_p = 0.9f;
        r.sampling_logprobs = r.keep_logits = true;
        answer *a = answers_new(1);
        a->vocab = VOCAB, a->logits = malloc(sizeof(float) * VOCAB * TOKENS);
        submit(e, &r, a);
        run_all(e, a, 1);
        for (size_t t = 0; t < a->count; t++) {
            iv_sampling p = {.temperature = r.temperature,
                             .top_p = r.top_p,
                             .repetition_penalty = 1,
                             .seed = r.seed,
                             .allowed = mask};
            const float *row = a->logits + t * VOCAB;
            float max, sum, logprob;
            int32_t id = iv_sample_with_logprob(&s, k, &p, row, NULL, 0, a->prompt_tokens + t, &logprob);
            assert_int_equal(a->ids[t], id);
            assert_int_equal(iv_bits(a->sampling_logprobs[t]), iv_bits(logprob));
            k->sum_exp(row, VOCAB, &max, &sum); /* over all ids */
            float raw = (row[id] - max) - iv_ref_log(sum);
            assert_int_equal(iv_bits(a->logprobs[t]), iv_bits(raw));
        }
        free(a->logits), a->logits = NULL;
        answers_free(a, 1);
    }
    iv_sampler_close(&s);
    iv_engine_close(e);
}

static const char tiny_sum[] = INVAR_SOURCE_DIR "/models/tiny-sum";

static size_t sums(bool all) {
    enum { N = 4000, AT_ONCE = 500 };
    iv_engine *e = open_model(tiny_sum, all, "off");
    answer *a = answers_new(AT_ONCE);
    size_t unknown = 0;
    for (size_t i = 0; i < N; i += AT_ONCE) {
        for (size_t k = 0; k < AT_ONCE; k++) {
            char text[16];
            snprintf(text, sizeof text, "%zu+%zu=", (i + k) % 90 + 10, (i + k) / 90 + 10);
            iv_request r = ask(e, text, 5);
            r.temperature = 1.3f, r.seed = i + k;
            submit(e, &r, &a[k]);
        }
        run_all(e, a, AT_ONCE);
        for (size_t k = 0; k < AT_ONCE; k++) {
            unknown += unknown_in(&a[k], 1, 13) > 0;
            iv_buf_free(&a[k].text);
            a[k] = (answer){0};
        }
    }
    answers_free(a, AT_ONCE);
    iv_engine_close(e);
    return unknown;
}

static void sums_are_of_tokens(void **state) {
    (void)state;
    assert_int_equal(sums(false), 0);
    size_t unknown = sums(true);
    printf("of 4000 answers %zu have an id without a token if these are drawn\n", unknown);
    assert_true(unknown > 20);
}

/* ---- which ids ------------------------------------------------------------------------------------------ */

static void copy_file(made_model *m, const char *name, const char *from, const char *to) {
    iv_buf file = {0}, path = {0};
    ASSERT_OK(iv_path_join(tiny_sum, name, &path, &err), &err);
    ASSERT_OK(iv_file_read(path.data, 1 << 20, &file, &err), &err);
    char *at = from ? strstr(file.data, from) : NULL;
    assert_true(!from || at);
    if (at) memset(at, ' ', strlen(from)), memcpy(at, to, strlen(to));
    scratch_write(&m->s, name, file.data, file.len);
    iv_buf_free(&file), iv_buf_free(&path);
}

/* tiny-sum with a hole at id 9 and an end-of-sequence id that has no token. */
static void holes_and_ends(void **state) {
    (void)state;
    made_model m;
    made_open(&m, "models/tiny-sum");
    made_config(&m, "\"eos_token_id\": 12", "\"eos_token_id\": 15");
    copy_file(&m, "tokenizer.json", "\"9\": 9,", "");
    iv_engine *e = open_model(made_write(&m), false, "off");
    assert_non_null(e->drawable.bits);
    static const bool want[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1};
    for (int id = 0; id < 16; id++) assert_int_equal(iv_token_ids_has(&e->drawable, id), want[id]);
    iv_engine_close(e);
    made_close(&m);
}

static void copy_fingerprint(const iv_engine *e, char out[IV_FINGERPRINT_BYTES], size_t *digest) {
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    snprintf(out, IV_FINGERPRINT_BYTES, "%s", info.fingerprint);
    *digest = strlen(info.sampled_ids_digest);
}

/* The fingerprint says what is drawn; a model whose ids all have tokens keeps its own. */
static void the_fingerprint_says_so(void **state) {
    (void)state;
    char some[IV_FINGERPRINT_BYTES], all[IV_FINGERPRINT_BYTES];
    size_t digest;
    made_model m;
    made_open(&m, "models/tiny-sum");
    for (int with_tokenizer = 0; with_tokenizer < 2; with_tokenizer++) {
        if (with_tokenizer) copy_file(&m, "tokenizer.json", NULL, NULL);
        iv_engine *e = open_model(made_write(&m), false, "off"), *o = open_model(m.s.dir, true, "off");
        copy_fingerprint(e, some, &digest);
        assert_int_equal(digest, with_tokenizer ? 64 : 0);
        copy_fingerprint(o, all, &digest);
        assert_true(digest == 0 && (strcmp(some, all) != 0) == with_tokenizer);
        iv_engine_close(e), iv_engine_close(o);
    }
    made_close(&m);
}

/* A receipt names them; one without the name, as those before the rule, is of an engine that draws all ids. */
static void receipts_say_so(void **state) {
    (void)state;
    iv_engine *some = open_model(tiny_sum, false, "off"), *all = open_model(tiny_sum, true, "off");
    for (int i = 0; i < 2; i++) {
        iv_request r = ask(i ? all : some, "12+34=", 5);
        answer *a = answer_with_receipt(i ? all : some, &r);
        assert_int_equal(strstr(a->receipt, "\"sampled_ids\":\"") != NULL, !i);
        iv_receipt *receipt = read_receipt(a->receipt);
        ASSERT_OK(iv_receipt_match(receipt, i ? all : some, &err), &err);
        expect_error("match", iv_receipt_match(receipt, i ? some : all, &err), &err, IV_INVALID, "sampled ids");
        iv_receipt_close(receipt);
        answers_free(a, 1);
    }
    iv_engine_close(some), iv_engine_close(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_path_draws_them), cmocka_unit_test(a_bias_cannot_allow_them),
        cmocka_unit_test(the_law_is_obeyed),  cmocka_unit_test(sums_are_of_tokens),
        cmocka_unit_test(holes_and_ends),     cmocka_unit_test(the_fingerprint_says_so),
        cmocka_unit_test(receipts_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
