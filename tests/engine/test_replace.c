/* Tensors written into an open engine: it has the answers, the fingerprint and the digests of an engine opened on an
 * exported copy of the new weights, bit for bit, and nothing of the old weights is used. */
#include "made_model.h"
#include "engine/replace.h"
#include "model/export.h"
#include "model/tensor_data.h"

enum { REQUESTS = 4, PROMPT = 90, TOKENS = 10 };

typedef struct facts {
    char fingerprint[100], weights[65], configuration[65];
} facts;

static facts facts_of(const iv_engine *e) {
    iv_engine_info i;
    facts f;
    iv_engine_get_info(e, &i);
    snprintf(f.fingerprint, sizeof f.fingerprint, "%s", i.fingerprint);
    snprintf(f.weights, sizeof f.weights, "%s", i.weights_digest);
    snprintf(f.configuration, sizeof f.configuration, "%s", i.configuration_digest);
    return f;
}

/* Prompts with a common first page. */
static answer *answers_of(iv_engine *e) {
    answer *a = answers_new(REQUESTS);
    int32_t ids[PROMPT];
    for (size_t i = 0; i < REQUESTS; i++) {
        for (size_t k = 0; k < PROMPT; k++) ids[k] = (int32_t)(k < 70 ? k : 3 * k + i) % 100;
        iv_request r = ask_ids(e, ids, PROMPT, TOKENS);
        r.seed = i, r.temperature = i % 2 ? 1.0f : 0.0f;
        submit(e, &r, &a[i]);
        run_all(e, &a[i], 1);
    }
    return a;
}

static bool same(const answer *a, const answer *b) {
    for (size_t i = 0; i < REQUESTS; i++)
        if (strcmp(a[i].digest, b[i].digest) != 0) return false;
    return true;
}

/* Every value times a random factor, in float32: more bits than the checkpoint's type has. */
static void change(iv_engine *e, iv_tensor *t, rng *random) {
    iv_error err;
    size_t n = t->rows * t->columns;
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    ASSERT_OK(iv_tensor_read(t, IV_F32, values, n * sizeof *values, &err), &err);
    for (size_t i = 0; i < n; i++) values[i] *= 1.0f + (float)(rng_next(random) % 4096) / 20000.0f;
    size_t half = t->rows / 2; /* in two parts */
    ASSERT_OK(iv_replace_write(e->model, t, half, t->rows - half, values + half * t->columns, &err), &err);
    ASSERT_OK(iv_replace_write(e->model, t, 0, half, values, &err), &err);
    free(values);
}

/* All tensors, or every third. */
static void change_tensors(iv_engine *e, size_t step, rng *random) {
    for (size_t i = 0; i < e->model->tensor_count; i += step) {
        iv_tensor *t = &e->model->tensors[i];
        if (!t->unused && !t->same_as) change(e, t, random);
    }
}

/* The present weights as a directory, with the configuration of `from`. */
static void export_to(const iv_engine *e, const char *from, scratch *s) {
    iv_model_exported written;
    iv_buf path = {0}, config = {0};
    iv_error err;
    scratch_open(s);
    iv_model_export_options o = {.dir = s->dir, .shard_bytes_max = (size_t)1 << 40};
    ASSERT_OK(iv_model_export(e->model, &o, &written, &err), &err);
    static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                        "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ASSERT_OK(iv_path_join(from, names[i], &path, &err), &err);
        if (!iv_file_exists(path.data)) continue;
        ASSERT_OK(iv_file_read(path.data, 1 << 26, &config, &err), &err);
        scratch_write(s, names[i], config.data, config.len);
    }
    iv_buf_free(&path), iv_buf_free(&config);
}

static void expect_equal_engine(iv_engine *e, const iv_engine_options *options, const char *what) {
    iv_engine_options o = *options;
    scratch s;
    export_to(e, options->model, &s);
    o.model = s.dir;
    iv_engine *fresh = open_with(&o);
    facts got = facts_of(e), want = facts_of(fresh);
    assert_string_equal(got.fingerprint, want.fingerprint);
    assert_string_equal(got.weights, want.weights);
    assert_string_equal(got.configuration, want.configuration);
    answer *a = answers_of(e), *b = answers_of(fresh);
    for (size_t i = 0; i < REQUESTS; i++) {
        assert_same_answer(what, &b[i], &a[i]);
        assert_int_equal(a[i].cached_tokens, b[i].cached_tokens); /* none for the first, a page for the others */
    }
    assert_int_equal(a[0].cached_tokens, 0);
    assert_int_equal(a[1].cached_tokens, 64);
    answers_free(a, REQUESTS), answers_free(b, REQUESTS);
    iv_engine_close(fresh);
    scratch_close(&s);
}

static void replace(iv_engine *e, const iv_engine_options *o, rng *random, const char *what) {
    iv_model *first;
    iv_error err;
    for (uint64_t round = 0; round < 2; round++) {
        answer *old = answers_of(e);
        facts before = facts_of(e);
        uint64_t version = e->weights_version;
        ASSERT_OK(iv_replace_begin(e, &first, &err), &err);
        assert_ptr_equal(first, e->model);
        change_tensors(e, round ? 3 : 1, random);
        ASSERT_OK(iv_replace_end(e, NULL, &err), &err);
        assert_int_equal(e->weights_version, version + 1);
        facts after = facts_of(e);
        assert_string_not_equal(before.fingerprint, after.fingerprint);
        expect_equal_engine(e, o, what);
        answer *new = answers_of(e);
        assert_false(same(old, new)); /* or nothing would be shown */
        answers_free(old, REQUESTS), answers_free(new, REQUESTS);
    }
}

/* Families and ranks; in bfloat16 the norms are rounded too. */
static void engines_with_new_weights(void **state) {
    static const char *const models[] = {"models/tiny-math",          "tests/data/hf/qwen3",
                                         "tests/data/hf/qwen2",       "tests/data/hf/llama31",
                                         "tests/data/hf/mistral_v03", "tests/data/hf/qwen3_moe"};
    static const char *const dtypes[] = {"auto", "bfloat16", "float32"};
    rng random = rng_start("replace");
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t ranks = 1; ranks <= 4; ranks *= 2) {
            char dir[4096];
            snprintf(dir, sizeof dir, "%s/%s", INVAR_SOURCE_DIR, models[m]);
            iv_engine_options o = made_options(dir);
            o.tensor_parallel_size = ranks, o.dtype = dtypes[(m + ranks) % 3];
            iv_engine *e = open_with(&o);
            replace(e, &o, &random, models[m]);
            iv_engine_close(e);
        }
    (void)state;
}

/* A baseline's copies of the weights follow. */
static void baselines(void **state) {
    static const char *const numerics[] = {"bio", "vanilla", "vanilla-blas"};
    rng random = rng_start("replace_baselines");
    for (size_t k = 0; k < 3; k++) {
        iv_engine_options o = small_options();
        iv_engine *e;
        iv_error err;
        o.numerics = numerics[k], o.arithmetic = "fma32";
        if (iv_engine_open(&o, &e, &err) != IV_OK) {
            printf("SKIPPED: %s: %s\n", numerics[k], err.message);
            continue;
        }
        replace(e, &o, &random, numerics[k]);
        iv_engine_close(e);
    }
    (void)state;
}

/* Without begin and end the old identity stays and old pages are used: the answers are those of neither weights. */
static void control_without_the_call(void **state) {
    rng random = rng_start("replace_control");
    iv_engine_options o = small_options();
    iv_engine *e = open_with(&o);
    scratch s;
    answer *old = answers_of(e);
    facts before = facts_of(e);
    change_tensors(e, 1, &random);
    facts after = facts_of(e);
    assert_string_equal(before.fingerprint, after.fingerprint);
    answer *mixed = answers_of(e);
    assert_int_equal(mixed[0].cached_tokens, 64); /* a page of the old weights */
    export_to(e, o.model, &s);
    o.model = s.dir;
    iv_engine *fresh = open_with(&o);
    answer *want = answers_of(fresh);
    after = facts_of(fresh);
    assert_string_not_equal(before.fingerprint, after.fingerprint);
    assert_false(same(mixed, want));
    assert_false(same(mixed, old));
    answers_free(old, REQUESTS), answers_free(mixed, REQUESTS), answers_free(want, REQUESTS);
    iv_engine_close(e), iv_engine_close(fresh);
    scratch_close(&s);
    (void)state;
}

static void refusals(void **state) {
    iv_engine_options o = small_options();
    iv_engine *e = open_with(&o);
    iv_model *first;
    iv_error err;
    uint64_t id;
    bool busy;
    float logits[1];
    const int32_t ids[] = {1, 2, 3};
    iv_request r = ask_ids(e, ids, 3, 4);
    expect_error("end", iv_replace_end(e, NULL, &err), &err, IV_INVALID, "iv_replace_begin");
    ASSERT_OK(iv_engine_submit(e, &r, &id, &err), &err);
    expect_error("waits", iv_replace_begin(e, &first, &err), &err, IV_BUSY, "1 wait");
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    expect_error("runs", iv_replace_begin(e, &first, &err), &err, IV_BUSY, "1 requests run");
    while (busy) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) continue;
    }
    facts before = facts_of(e);
    ASSERT_OK(iv_replace_begin(e, &first, &err), &err);
    expect_error("submit", iv_engine_submit(e, &r, &id, &err), &err, IV_BUSY, "are being replaced");
    expect_error("logits", iv_engine_logits(e, ids, 3, logits, &err), &err, IV_BUSY, "are being replaced");
    iv_tensor *t = iv_model_tensor(first, "model.norm.weight");
    assert_non_null(t);
    float *values = calloc(t->rows, sizeof *values);
    values[3] = NAN;
    expect_error("nan", iv_replace_write(first, t, 0, t->rows, values, &err), &err, IV_FORMAT, "element 3");
    values[3] = -INFINITY;
    expect_error("infinity", iv_replace_write(first, t, 0, t->rows, values, &err), &err, IV_FORMAT, "element 3");
    values[3] = 3.4e38f;
    if (t->info.dtype != IV_F32)
        expect_error("large", iv_replace_write(first, t, 0, t->rows, values, &err), &err, IV_FORMAT, "too large");
    expect_error("rows", iv_replace_write(first, t, 1, t->rows, values, &err), &err, IV_INVALID, "rows");
    assert_false(t->changed); /* nothing was written */
    ASSERT_OK(iv_replace_end(e, NULL, &err), &err);
    facts after = facts_of(e);
    assert_string_equal(before.fingerprint, after.fingerprint);
    for (size_t i = 0; i < first->tensor_count; i++)
        if (first->tensors[i].same_as)
            expect_error("tied", iv_replace_write(first, &first->tensors[i], 0, 1, values, &err), &err, IV_INVALID,
                         "tied");
    free(values);
    iv_engine_close(e);
    (void)state;
}

/* The largest value that a 16-bit type holds is the last below the limit. */
static void limits(void **state) {
    static const iv_dtype types[] = {IV_BF16, IV_F16};
    for (size_t k = 0; k < 2; k++) {
        made_model m;
        made_open(&m, "llama31");
        made_convert(&m, types[k]);
        iv_engine_options o = made_options(made_write(&m));
        o.dtype = iv_dtype_name(types[k]);
        iv_engine *e = open_with(&o);
        iv_model *first;
        iv_error err;
        ASSERT_OK(iv_replace_begin(e, &first, &err), &err);
        iv_tensor *t = iv_model_tensor(first, "model.layers.0.self_attn.o_proj.weight");
        float *values = calloc(t->columns, sizeof *values), *got = calloc(t->columns, sizeof *got);
        for (uint32_t u = k ? 0x477f0000u : 0x7f7f0000u, end = u + 0x10000u; u < end; u++) {
            uint16_t want = k ? iv_f16_from_f32(iv_float(u)) : iv_bf16_from_f32(iv_float(u));
            bool infinite = k ? (want & 0x7c00u) == 0x7c00u : (want & 0x7f80u) == 0x7f80u;
            values[t->columns - 1] = u & 1 ? iv_float(u) : -iv_float(u);
            iv_status status = iv_replace_write(first, t, 1, 1, values, &err);
            if ((status != IV_OK) != infinite) fail_msg("%08x: %s", u, iv_status_name(status));
            if (infinite) continue;
            ASSERT_OK(iv_tensor_read_rows(t, 1, 1, IV_F32, got, &err), &err);
            float back = k ? iv_f16_to_f32(want) : iv_bf16_to_f32(want);
            assert_true(fabsf(got[t->columns - 1]) == back);
        }
        free(values), free(got);
        iv_engine_close(e);
        made_close(&m);
    }
    (void)state;
}

/* A digest that the caller has saves hashing; a later end without one hashes all that was written. The name is in the
 * receipts. */
static void given_digest(void **state) {
    rng random = rng_start("replace_digest");
    iv_engine_options o = small_options();
    iv_engine *e = open_with(&o);
    iv_model *first;
    iv_error err;
    uint8_t digest[32];
    char hex[65];
    for (size_t i = 0; i < sizeof digest; i++) digest[i] = (uint8_t)(i * 3);
    iv_digest_hex(digest, hex);
    ASSERT_OK(iv_replace_begin(e, &first, &err), &err);
    change_tensors(e, 1, &random);
    ASSERT_OK(iv_replace_end(e, &(iv_replace_options){.weights_digest = digest, .name = "run at step 3"}, &err), &err);
    facts f = facts_of(e);
    assert_string_equal(f.weights, hex);
    const int32_t ids[] = {1, 2, 3};
    iv_request r = ask_ids(e, ids, 3, 4);
    answer *a = answer_with_receipt(e, &r);
    iv_receipt *receipt = read_receipt(a->receipt);
    iv_receipt_info i;
    iv_receipt_get_info(receipt, &i);
    assert_string_equal(i.model, "run at step 3");
    assert_string_equal(i.maker.fingerprint, f.fingerprint);
    iv_receipt_close(receipt);
    answers_free(a, 1);
    ASSERT_OK(iv_replace_begin(e, &first, &err), &err);
    ASSERT_OK(iv_replace_end(e, NULL, &err), &err);
    expect_equal_engine(e, &o, "hashed later");
    assert_int_equal(e->weights_version, 2);
    iv_engine_close(e);
    (void)state;
}

/* A directory's weights after a mixture. */
static void update_after_begin(void **state) {
    rng random = rng_start("replace_update");
    iv_engine_options o = small_options();
    iv_engine *e = open_with(&o);
    iv_model *first;
    iv_error err;
    answer *want = answers_of(e);
    ASSERT_OK(iv_replace_begin(e, &first, &err), &err);
    change_tensors(e, 2, &random);
    ASSERT_OK(iv_engine_update_weights(e, o.model, &err), &err);
    answer *got = answers_of(e);
    for (size_t i = 0; i < REQUESTS; i++) assert_same_answer("after an update", &want[i], &got[i]);
    assert_int_equal(e->weights_version, 1);
    answers_free(want, REQUESTS), answers_free(got, REQUESTS);
    iv_engine_close(e);
    (void)state;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(engines_with_new_weights),
                                       cmocka_unit_test(baselines),
                                       cmocka_unit_test(control_without_the_call),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(limits),
                                       cmocka_unit_test(given_digest),
                                       cmocka_unit_test(update_after_begin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
