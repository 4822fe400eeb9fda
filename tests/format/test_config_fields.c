/* The table of configuration fields: every member has a row, every row that reaches the arithmetic changes the
 * fingerprint's text, and the text of configurations of today never changes. */
#include "format/config_fields.h"
#include "scratch.h"

#include <stddef.h>

static const char dense[] =
    "{\"model_type\":\"qwen3\",\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":256}";
static const char sparse[] =
    "{\"model_type\":\"qwen3_moe\",\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":256,"
    "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"decoder_sparse_step\":2,"
    "\"use_sliding_window\":true,\"sliding_window\":20,\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,"
    "\"attn_factor\":0.5,\"original_max_position_embeddings\":64}}";

static void parse(const char *text, iv_model_config *c) {
    iv_error err;
    if (iv_model_config_parse("c", text, strlen(text), c, &err) != IV_OK) fail_msg("%s", err.message);
}

static void digest_of(const iv_model_config *c, uint8_t out[32]) {
    iv_digest *d = iv_digest_new();
    assert_non_null(d);
    iv_config_describe(c, d);
    iv_digest_finish(d, out);
}

static void texts(void **state) {
    (void)state;
    static const struct {
        const char *config, *text;
    } cases[] = {
        {dense, "qwen3 100 64 4 4 2 128 eps 0x1.0c6f7a0b5ed8dp-20 rope 0 0x1.388p+13 0x1p+0 0x0p+0 0x0p+0 0 tie 0 "
                "bias 0 0 0 norm 1 window 0 experts 0 0 0 0\nfdfdfdfd"},
        {sparse, "qwen3_moe 100 64 3 4 2 16 eps 0x1.0c6f7a0b5ed8dp-20 rope 3 0x1.388p+13 0x1p+2 0x0p+0 0x0p+0 64 tie 0 "
                 "bias 0 0 0 norm 1 window 20 experts 8 2 32 0\nyarn 0x1p+5 0x1p+0 0x0p+0 0x0p+0 0x0p+0 1\n"
                 "attn 0x1p-1\nsdsmsd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_model_config c;
        uint8_t want[32], found[32];
        parse(cases[i].config, &c);
        digest_of(&c, found);
        iv_digest *d = iv_digest_new();
        assert_non_null(d);
        iv_digest_add(d, cases[i].text, strlen(cases[i].text));
        iv_digest_finish(d, want);
        if (memcmp(want, found, sizeof want) != 0) fail_msg("case %zu: another text than '%s'", i, cases[i].text);
    }
}

/* Changes each row of `of`, a part of c, and wants another digest exactly if the row reaches the arithmetic. */
static size_t change_rows(const iv_config_table *t, iv_model_config *c, void *of, const uint8_t before[32]) {
    size_t changed = 0;
    for (size_t i = 0; i < t->count; i++) {
        const iv_config_field *f = &t->fields[i];
        uint8_t after[32];
        if (f->kind == IV_FIELD_ROPES || f->kind == IV_FIELD_LAYERS) continue;
        /* The layers' text grows with their number, the lengths of tensors are hashed with the weights. */
        bool wanted = (f->uses & IV_FIELD_ARITHMETIC) != 0;
        double value = iv_config_value(of, f);
        iv_config_set_value(of, f, f->kind == IV_FIELD_FLAG ? value == 0 : f->choices ? value == 0 : value + 1);
        digest_of(c, after);
        if ((memcmp(before, after, sizeof after) != 0) != wanted)
            fail_msg("%s: wanted %s fingerprint", f->name, wanted ? "another" : "the same");
        iv_config_set_value(of, f, value);
        changed += wanted;
    }
    return changed;
}

static void every_field_reaches_the_fingerprint(void **state) {
    (void)state;
    const char *const configs[] = {dense, sparse};
    for (size_t i = 0; i < 2; i++) {
        iv_model_config c;
        uint8_t before[32];
        parse(configs[i], &c);
        digest_of(&c, before);
        assert_true(change_rows(&iv_model_fields, &c, &c, before) >= 15);
        assert_true(change_rows(&iv_rope_fields, &c, &c.ropes[0], before) == iv_rope_fields.count);
        for (int64_t l = 0; l < c.layers; l++)
            assert_true(change_rows(&iv_layer_fields, &c, &c.layer[l], before) == iv_layer_fields.count);
        /* A second set of rotary settings, and windows that differ. */
        c.ropes[1] = c.ropes[0], c.rope_count = 2;
        uint8_t two[32];
        digest_of(&c, two);
        assert_memory_not_equal(before, two, sizeof two);
        assert_true(change_rows(&iv_rope_fields, &c, &c.ropes[1], two) == iv_rope_fields.count);
    }
}

static size_t bytes_of(const iv_config_field *f) {
    switch (f->kind) {
    case IV_FIELD_INT: return sizeof(int64_t);
    case IV_FIELD_REAL: return sizeof(double);
    case IV_FIELD_FLAG: return sizeof(bool);
    case IV_FIELD_CHOICE: return sizeof(int);
    case IV_FIELD_ROPES: return sizeof((iv_model_config *)NULL)->ropes;
    case IV_FIELD_LAYERS: return sizeof((iv_model_config *)NULL)->layer;
    }
    return 0;
}

/* Bytes from `at` to the next row or the end are padding, fewer than the 8 of an alignment, or the listed members. */
static void covered(const char *name, const iv_config_table *t, size_t size, const char *skipped) {
    unsigned char *seen = calloc(size, 1);
    assert_non_null(seen);
    for (size_t i = 0; i < t->count; i++)
        for (size_t b = 0; b < bytes_of(&t->fields[i]); b++) {
            if (seen[t->fields[i].offset + b]) fail_msg("%s: %s overlaps another row", name, t->fields[i].name);
            seen[t->fields[i].offset + b] = 1;
        }
    for (size_t b = 0; b < size; b++) seen[b] |= skipped && skipped[b];
    for (size_t b = 0, run = 0; b < size; b++) {
        run = seen[b] ? 0 : run + 1;
        if (run == 8 || (run == 4 && b % 4 == 3 && b + 1 < size && seen[b + 1] && (b + 1) % 8))
            fail_msg("%s: a member near byte %zu has no row", name, b);
    }
    free(seen);
}

static void every_member_has_a_row(void **state) {
    (void)state;
    char skipped[sizeof(iv_model_config)] = {0};
#define SKIP(member) memset(skipped + offsetof(iv_model_config, member), 1, sizeof((iv_model_config *)NULL)->member)
    SKIP(model_type), SKIP(rope_count), SKIP(long_factors);     /* described by themselves */
    SKIP(stored), SKIP(predicting_layers), SKIP(layers_of_one); /* of files */
    SKIP(has_dtype), SKIP(dtype), SKIP(bos_id), SKIP(pad_id), SKIP(eos_ids), SKIP(eos_count); /* not the model's */
#undef SKIP
    covered("iv_model_config", &iv_model_fields, sizeof(iv_model_config), skipped);
    covered("iv_rope_config", &iv_rope_fields, sizeof(iv_rope_config), NULL);
    char of_weights[sizeof(iv_layer_config)] = {0}; /* the numbers of xIELU: a configuration has zeros */
    memset(of_weights + offsetof(iv_layer_config, activation.positive), 1, 4 * sizeof(double));
    covered("iv_layer_config", &iv_layer_fields, sizeof(iv_layer_config), of_weights);
}

static void other_memory_is_refused(void **state) {
    (void)state;
    iv_model_config want, found;
    iv_error err;
    parse(sparse, &want);
    found = want;
    assert_int_equal(iv_config_check_same("d", &want, &found, &err), IV_OK);
    for (size_t i = 0; i < iv_model_fields.count; i++) {
        const iv_config_field *f = &iv_model_fields.fields[i];
        if (f->kind == IV_FIELD_ROPES || f->kind == IV_FIELD_LAYERS) continue;
        double value = iv_config_value(&found, f);
        bool refused = (f->uses & IV_FIELD_MEMORY) != 0;
        iv_config_set_value(&found, f, f->kind == IV_FIELD_FLAG ? value == 0 : value + 1);
        assert_int_equal(iv_config_check_same("d", &want, &found, &err), refused ? IV_INVALID : IV_OK);
        if (refused) assert_non_null(strstr(err.message, f->name));
        iv_config_set_value(&found, f, value);
    }
    found.layer[1].mlp = IV_MLP_DENSE;
    assert_int_equal(iv_config_check_same("d", &want, &found, &err), IV_INVALID);
    assert_string_equal(err.message, "d: layer 1: mlp: wanted experts as in the weights in use, found dense");
}

static void json_lists_runs_of_layers(void **state) {
    (void)state;
    iv_model_config c;
    iv_buf text = {0};
    iv_json_out out = {.buf = &text};
    parse(sparse, &c);
    iv_config_write_json(&c, &out);
    assert_false(out.failed);
    assert_non_null(strstr(text.data, "\"num_experts\":8"));
    assert_non_null(strstr(text.data, "\"ropes\":[{\"rope_type\":\"yarn\""));
    assert_non_null(strstr(text.data,
                           "{\"count\":1,\"sliding_window\":20,\"mlp\":\"experts\",\"rope\":0,\"norms\":\"before\","
                           "\"activation\":\"silu\","));
    iv_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(every_field_reaches_the_fingerprint),
        cmocka_unit_test(every_member_has_a_row),
        cmocka_unit_test(other_memory_is_refused),
        cmocka_unit_test(json_lists_runs_of_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
