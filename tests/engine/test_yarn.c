/* A checkpoint stretched by YaRN: its tables are those of its rule, all the way from the file; where the rule changes
 * nothing its logits are those without it, and what it multiplies sines with could as well stand in the weights. */
#include "made_model.h"
#include "engine/engine.h"
#include "numerics/rope.h"

enum { TOKENS = 90, VOCABULARY = 512 };

/* tests/data/hf/llama31, turned as `rope` says. */
static void open_turned(made_model *m, const char *rope) {
    made_open(m, "llama31");
    char *from = strstr(m->config.data, "\"rope_parameters\""), *end = from ? strchr(from, '}') : NULL;
    assert_non_null(end);
    iv_buf changed = {0};
    assert_true(iv_buf_append(&changed, m->config.data, (size_t)(from - m->config.data)) &&
                iv_buf_puts(&changed, rope) && iv_buf_puts(&changed, end + 1));
    iv_buf_free(&m->config);
    m->config = changed;
}

static float *logits_of(made_model *m) {
    int32_t ids[TOKENS];
    float *out = malloc(TOKENS * VOCABULARY * sizeof *out);
    iv_engine_options o = made_options(made_write(m));
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 37 + 11) % VOCABULARY;
    made_logits(&o, ids, TOKENS, out);
    return out;
}

static void tables_are_those_of_the_rule(void **state) {
    (void)state;
    static const struct {
        const char *text;
        iv_rope_rule rule;
        double mscale, mscale_all, attention; /* the last: given, or 0 */
        size_t positions;
    } cases[] = {
        {"\"rope_theta\": 1000.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0,"
         " \"original_max_position_embeddings\": 2048}",
         {.theta = 1000, .factor = 4, .original_positions = 2048, .beta_fast = 32, .beta_slow = 1, .truncate = true},
         0,
         0,
         0,
         8192},
        {"\"rope_parameters\": {\"rope_theta\": 1000.0, \"rope_type\": \"yarn\", \"factor\": 3.0, \"beta_fast\": 20,"
         " \"beta_slow\": 2.5, \"truncate\": false, \"mscale\": 1.0, \"mscale_all_dim\": 0.5}",
         {.theta = 1000, .factor = 3, .original_positions = 4096, .beta_fast = 20, .beta_slow = 2.5},
         1,
         0.5,
         0,
         4096},
        {"\"rope_parameters\": {\"rope_theta\": 1000.0, \"rope_type\": \"yarn\", \"factor\": 1.5,"
         " \"original_max_position_embeddings\": 300, \"attention_factor\": 1.25, \"mscale\": 2.0}",
         {.theta = 1000, .factor = 1.5, .original_positions = 300, .beta_fast = 32, .beta_slow = 1, .truncate = true},
         2,
         0,
         1.25,
         4096},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        made_model m;
        open_turned(&m, cases[i].text);
        iv_engine_options o = made_options(made_write(&m));
        o.max_model_len = cases[i].positions;
        iv_engine *e = open_with(&o);
        size_t pairs = (size_t)e->model->config.head_dim / 2;
        double f[IV_HEAD_DIM_MAX / 2], attention = cases[i].attention;
        float c[IV_HEAD_DIM_MAX / 2], s[IV_HEAD_DIM_MAX / 2];
        if (attention == 0)
            attention = iv_rope_yarn_attention(cases[i].rule.factor, cases[i].mscale, cases[i].mscale_all);
        iv_rope_frequencies(&cases[i].rule, 2 * pairs, f);
        assert_int_equal(e->model->config.max_positions, cases[i].positions);
        for (size_t p = 0; p < e->model->rope_positions; p += 17) {
            iv_rope_row(f, pairs, (int64_t)p, attention, c, s);
            assert_same_bits("cosines", c, e->model->rope_cosine + p * pairs, pairs, 4, false);
            assert_same_bits("sines", s, e->model->rope_sine + p * pairs, pairs, 4, false);
        }
        iv_engine_close(e);
        made_close(&m);
    }
}

/* So small a theta that no pair turns slowly enough to be stretched. */
#define PLAIN "\"rope_parameters\": {\"rope_theta\": 2.0, \"rope_type\": \"default\"}"
#define YARN(attention)                                                                    \
    "\"rope_parameters\": {\"rope_theta\": 2.0, \"rope_type\": \"yarn\", \"factor\": 4.0," \
    " \"original_max_position_embeddings\": 1000000000, \"attention_factor\": " attention "}"

static void what_is_not_stretched_is_as_before(void **state) {
    (void)state;
    made_model plain, yarn;
    open_turned(&plain, PLAIN), open_turned(&yarn, YARN("1"));
    float *want = logits_of(&plain), *got = logits_of(&yarn);
    assert_same_bits("logits", want, got, TOKENS * VOCABULARY, 4, false);
    free(want), free(got);
    made_close(&plain), made_close(&yarn);
}

/* Queries and keys twice as long: by the tables, or by their weights. */
static void its_factor_could_stand_in_the_weights(void **state) {
    (void)state;
    made_model plain, yarn;
    open_turned(&plain, PLAIN), open_turned(&yarn, YARN("2"));
    float *once = logits_of(&plain), *got = logits_of(&yarn);
    for (size_t i = 0; i < plain.count; i++) {
        if (!strstr(plain.names[i], "q_proj") && !strstr(plain.names[i], "k_proj")) continue;
        uint16_t *w = plain.data[i];
        assert_int_equal(plain.tensors[i].dtype, IV_BF16);
        for (size_t k = 0; k < made_elements(&plain, i); k++) w[k] = iv_bf16_from_f32(2 * iv_bf16_to_f32(w[k]));
    }
    float *want = logits_of(&plain);
    assert_same_bits("logits", want, got, TOKENS * VOCABULARY, 4, false);
    assert_true(memcmp(once, got, TOKENS * VOCABULARY * sizeof *got) != 0); /* the control */
    free(once), free(want), free(got);
    made_close(&plain), made_close(&yarn);
}

/* All that reaches the tables is part of the identity. */
static void fingerprints_tell_them_apart(void **state) {
    (void)state;
    static const char *const more[] = {"",
                                       ", \"beta_fast\": 31",
                                       ", \"beta_slow\": 2",
                                       ", \"attention_factor\": 1.5",
                                       ", \"mscale\": 1",
                                       ", \"mscale_all_dim\": 1",
                                       ", \"truncate\": false",
                                       ", \"original_max_position_embeddings\": 1024"};
    enum { COUNT = sizeof more / sizeof *more };
    char seen[COUNT][IV_FINGERPRINT_BYTES];
    for (size_t i = 0; i < COUNT; i++) {
        made_model m;
        char rope[300];
        snprintf(rope, sizeof rope, "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2.0%s}", more[i]);
        open_turned(&m, rope);
        iv_engine_options o = made_options(made_write(&m));
        iv_engine *e = open_with(&o);
        iv_engine_info info;
        iv_engine_get_info(e, &info);
        snprintf(seen[i], sizeof seen[i], "%s", info.fingerprint);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(seen[k], seen[i]);
        iv_engine_close(e);
        made_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_those_of_the_rule),
        cmocka_unit_test(what_is_not_stretched_is_as_before),
        cmocka_unit_test(its_factor_could_stand_in_the_weights),
        cmocka_unit_test(fingerprints_tell_them_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
