/* New weights in an open engine: on any number of ranks it has the answers and the fingerprint of an engine opened with
 * them. After an error the old weights are in use. */
#include "made_model.h"

enum { REQUESTS = 5, PROMPT = 90, TOKENS = 12, RANK_COUNTS = SANITIZED ? 2 : 3 };

static const size_t rank_counts[] = {1, 2, 4};

/* The first model, and one with other weights and another epsilon. */
static void make_two(made_model *old, made_model *new) {
    made_open(old, "llama31"), made_open(new, "llama31");
    size_t down = made_find(new, "model.layers.0.mlp.down_proj.weight"), n = made_elements(new, down);
    for (size_t i = 0; i < n; i += 7)
        put_type(new->tensors[down].dtype, new->data[down], i, (float)(i % 64) / 256.0f - 0.1f);
    made_config(new, "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-03");
    made_write(old), made_write(new);
}

static answer *answers_of(iv_engine *e) {
    answer *a = answers_new(REQUESTS);
    int32_t ids[PROMPT];
    for (size_t i = 0; i < REQUESTS; i++) {
        for (size_t k = 0; k < PROMPT; k++) ids[k] = (int32_t)(k < 70 ? k : 3 * k + i) % 100;
        iv_request r = ask_ids(e, ids, PROMPT, TOKENS);
        r.seed = i;
        r.temperature = i % 2 ? 1.0f : 0.0f;
        submit(e, &r, &a[i]);
    }
    run_all(e, a, REQUESTS);
    return a;
}

static void assert_same_answers(const char *what, const answer *want, const answer *got) {
    for (size_t i = 0; i < REQUESTS; i++) assert_same_answer(what, &want[i], &got[i]);
}

static void note_name(const iv_engine *e, char name[400]) {
    iv_engine_info i;
    iv_engine_get_info(e, &i);
    snprintf(name, 400, "%s %s %s", i.fingerprint, i.weights_digest, i.configuration_digest);
}

/* Old, new, old, new, with prefixes in the cache: each time the answers and the fingerprint of a new engine. */
static void go_there_and_back(made_model models[2], iv_engine_options o) {
    answer *want[2];
    char names[2][400], name[400];
    for (size_t m = 0; m < 2; m++) {
        o.model = models[m].s.dir;
        iv_engine *fresh = open_with(&o);
        want[m] = answers_of(fresh);
        note_name(fresh, names[m]);
        iv_engine_close(fresh);
    }
    assert_string_not_equal(want[0][0].digest, want[1][0].digest); /* or nothing would be shown */
    assert_string_not_equal(names[0], names[1]);
    o.model = models[0].s.dir;
    iv_engine *e = open_with(&o);
    iv_engine_stats stats;
    iv_error err;
    for (size_t m = 0; m < 5; m++) {
        if (m) ASSERT_OK(iv_engine_update_weights(e, models[m % 2].s.dir, &err), &err);
        iv_engine_get_stats(e, &stats);
        assert_true(stats.kv_pages_free == stats.kv_pages);
        answer *a = answers_of(e);
        assert_same_answers("after an update", want[m % 2], a);
        note_name(e, name);
        assert_string_equal(name, names[m % 2]);
        answers_free(a, REQUESTS);
    }
    iv_engine_close(e);
    for (size_t m = 0; m < 2; m++) answers_free(want[m], REQUESTS);
}

static void there_and_back(void **state) {
    (void)state;
    static const char *const numerics[] = {"invar", "bio", "vanilla"};
    made_model models[2];
    make_two(&models[0], &models[1]);
    for (size_t k = 0; k < 3 * RANK_COUNTS; k++) {
        iv_engine_options o = made_options(models[0].s.dir);
        o.tensor_parallel_size = rank_counts[k / 3], o.numerics = numerics[k % 3];
        go_there_and_back(models, o);
    }
    made_close(&models[0]), made_close(&models[1]);
}

/* The same where the weights are copied over the old ones. */
static void on_gpus(void **state) {
    (void)state;
    made_model models[2];
    size_t met = 0;
    make_two(&models[0], &models[1]);
    for (size_t k = 0; k < RANK_COUNTS; k++) {
        iv_engine_options o = made_options(models[0].s.dir);
        iv_engine *e;
        iv_error err;
        o.device = "cuda", o.tensor_parallel_size = rank_counts[k];
        if (iv_engine_open(&o, &e, &err) != IV_OK) {
            printf("SKIPPED: %s\n", err.message);
            break;
        }
        iv_engine_close(e);
        go_there_and_back(models, o);
        met++;
    }
    made_close(&models[0]), made_close(&models[1]);
    if (met == 0) skip();
}

static iv_status update(iv_engine *e, const char *dir, iv_error *err) { return iv_engine_update_weights(e, dir, err); }

/* The new model has one error; the engine must not change. */
typedef void spoil(made_model *m);

static void vocabulary(made_model *m) { made_config(m, "\"vocab_size\": 512", "\"vocab_size\": 256"); }
static void layers(made_model *m) { made_config(m, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"); }
static void heads(made_model *m) { made_config(m, "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 8"); }
static void model_type(made_model *m) { made_config(m, "\"model_type\": \"llama\"", "\"model_type\": \"mistral\""); }
static void bias(made_model *m) { made_config(m, "\"attention_bias\": false", "\"attention_bias\": true"); }
static void positions(made_model *m) {
    char *at = strstr(m->config.data, "\"max_position_embeddings\": ");
    assert_non_null(at);
    char was[64];
    snprintf(was, sizeof was, "%.*s", (int)strcspn(at, ",\n}"), at);
    made_config(m, was, "\"max_position_embeddings\": 255");
}
static void not_a_number(made_model *m) {
    size_t i = made_find(m, "model.layers.1.mlp.down_proj.weight");
    put_type(m->tensors[i].dtype, m->data[i], 77, NAN);
}
static void shape(made_model *m) {
    size_t i = made_find(m, "model.norm.weight");
    m->tensors[i].shape[0]--;
}
static void missing(made_model *m) { m->names[made_find(m, "model.norm.weight")][0] = 'x'; }

static void what_is_wrong_changes_nothing(void **state) {
    (void)state;
    static const struct {
        spoil *how;
        iv_status status;
        const char *word;
    } cases[] = {{vocabulary, IV_INVALID, "vocab_size"},
                 {layers, IV_INVALID, "num_hidden_layers"},
                 {heads, IV_INVALID, "num_key_value_heads"},
                 {model_type, IV_INVALID, "model_type"},
                 {bias, IV_INVALID, "attention_bias"},
                 {positions, IV_INVALID, "max_position_embeddings"},
                 {not_a_number, IV_FORMAT, "not a finite number"},
                 {shape, IV_FORMAT, "model.norm.weight"},
                 {missing, IV_FORMAT, "model.norm.weight"}};
    made_model old, new;
    make_two(&old, &new);
    for (size_t ranks = 1; ranks <= 2; ranks++) {
        iv_engine_options o = made_options(old.s.dir);
        o.tensor_parallel_size = ranks;
        iv_engine *e = open_with(&o);
        iv_engine_stats stats;
        iv_error err;
        char name[400], after[400];
        answer *want = answers_of(e);
        note_name(e, name);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            made_model wrong;
            made_open(&wrong, "llama31");
            cases[i].how(&wrong);
            expect_error(cases[i].word, update(e, made_write(&wrong), &err), &err, cases[i].status, cases[i].word);
            made_close(&wrong);
            note_name(e, after);
            assert_string_equal(name, after);
        }
        expect_error("nowhere", update(e, "/nowhere/at/all", &err), &err, IV_NOT_FOUND, "/nowhere/at/all");
        expect_error("nothing", update(e, "", &err), &err, IV_INVALID, "model directory");
        iv_engine_get_stats(e, &stats);
        assert_true(stats.kv_pages_cached > 0);
        answer *a = answers_of(e);
        assert_same_answers("after a refusal", want, a);
        assert_int_equal(a[0].cached_tokens, 64); /* the cache is unchanged, too */
        iv_engine_close(e);
        answers_free(want, REQUESTS), answers_free(a, REQUESTS);
    }
    made_close(&old), made_close(&new);
}

/* Not while requests wait or run; untaken events do not matter. */
static void busy_while_requests_run(void **state) {
    (void)state;
    made_model old, new;
    make_two(&old, &new);
    iv_engine_options o = made_options(old.s.dir);
    iv_engine *e = open_with(&o);
    iv_error err;
    bool busy;
    const int32_t ids[] = {1, 2, 3};
    iv_request r = ask_ids(e, ids, 3, 4);
    r.keep_receipt = true;
    answer *want = answer_to(e, &r), *a = answers_new(1);
    submit(e, &r, a);
    expect_error("waits", update(e, new.s.dir, &err), &err, IV_BUSY, "1 wait");
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    expect_error("runs", update(e, new.s.dir, &err), &err, IV_BUSY, "1 requests run");
    while (busy) ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    ASSERT_OK(update(e, new.s.dir, &err), &err);
    take_events(e, a, 1);
    assert_same_answer("with events untaken", want, a);
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    answer *kept = answer_with_receipt(e, &r); /* a receipt names the weights that answered */
    iv_receipt *receipt = read_receipt(kept->receipt);
    iv_receipt_info i;
    iv_receipt_get_info(receipt, &i);
    assert_string_equal(i.model, new.s.dir);
    assert_string_equal(i.maker.fingerprint, info.fingerprint);
    ASSERT_OK(iv_receipt_match(receipt, e, &err), &err);
    iv_receipt_close(receipt);
    iv_engine_close(e);
    answers_free(want, 1), answers_free(a, 1), answers_free(kept, 1);
    made_close(&old), made_close(&new);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(there_and_back), cmocka_unit_test(on_gpus),
                                       cmocka_unit_test(what_is_wrong_changes_nothing),
                                       cmocka_unit_test(busy_while_requests_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
