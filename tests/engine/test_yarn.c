/* A checkpoint with YaRN: its tables follow the rule, from the file on; where the rule changes nothing the logits are
 * those without it; its factor on sines and cosines has the effect of scaled weights. */
#include "made_model.h"
#include "engine/state.h"
#include "numerics/rope.h"

enum { TOKENS = 90, VOCABULARY = 512 };

/* tests/data/hf/llama31 with the rotary settings `rope`. */
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
        {"\"original_max_position_embeddings\": 512, \"rope_theta\": 1000.0, \"rope_scaling\": {\"rope_type\": "
         "\"yarn\","
         " \"factor\": 4.0, \"attn_factor\": 0.8782488562869419}",
         {.theta = 1000, .factor = 4, .original_positions = 512, .beta_fast = 32, .beta_slow = 1, .truncate = true},
         0,
         0,
         (0.1 * 0x1.62e42fefa39efp+0 + 1.0) * 0.8782488562869419, /* log(4): vLLM's formula, here 1 */
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
            assert_same_bits("cosines", c, e->model->ropes[0].cosine + p * pairs, pairs, 4, false);
            assert_same_bits("sines", s, e->model->ropes[0].sine + p * pairs, pairs, 4, false);
        }
        iv_engine_close(e);
        made_close(&m);
    }
}

/* With so small a theta no pair is slow enough to be interpolated. */
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

/* Every setting that affects the tables is part of the fingerprint. */
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

/* Original positions next to the settings: frequencies that transformers 5.23's own functions gave, in float64. */
static void original_positions_of_the_configuration(void **state) {
    (void)state;
    static const size_t at[] = {0, 9, 12, 15, 20, 24, 31};
    static const struct {
        const char *text;
        double want[7];
    } cases[] = {
        {"\"original_max_position_embeddings\":8192,\"rope_theta\":10000.0,\"rope_scaling\":{\"rope_type\":\"yarn\","
         "\"factor\":16.0}",
         {1, 0.074989420933245579, 0.031622776601683791, 0.01045019199243374, 0.0013378867023789295,
          0.00013461538461538456, 8.3345089510207747e-06}},
        {"\"original_max_position_embeddings\":4096,\"rope_theta\":1000000.0,\"rope_scaling\":{\"rope_type\":\"yarn\","
         "\"factor\":4.0,"
         "\"original_max_position_embeddings\":32768}",
         {1, 0.015914818955042882, 0.0030928772885469198, 0.00050047612096933473, 4.4456985250973067e-05,
          7.9056941504209488e-06, 3.8498163151487298e-07}},
        {"\"original_max_position_embeddings\":8192,\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":"
         "\"llama3\",\"factor\":8.0,"
         "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0}",
         {1, 0.024955408670558694, 0.0072926647372171085, 0.0013718935677611381, 3.4281021959525912e-05,
          6.6478698711812362e-06, 3.7673226901739635e-07}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[800];
        double f[32];
        iv_model_config c;
        iv_error err;
        snprintf(json, sizeof json,
                 "{\"model_type\":\"llama\",\"vocab_size\":512,\"hidden_size\":256,\"intermediate_size\":512,\"num_"
                 "hidden_layers\":1,"
                 "\"num_attention_heads\":4,\"head_dim\":64,\"max_position_embeddings\":131072,%s}",
                 cases[i].text);
        ASSERT_OK(iv_model_config_parse("c", json, strlen(json), &c, &err), &err);
        iv_rope_rule rule = {.theta = c.ropes[0].theta,
                             .factor = c.ropes[0].factor,
                             .low_freq = c.ropes[0].low_freq_factor,
                             .high_freq = c.ropes[0].high_freq_factor,
                             .original_positions = (double)c.ropes[0].original_positions,
                             .beta_fast = c.ropes[0].beta_fast,
                             .beta_slow = c.ropes[0].beta_slow,
                             .truncate = c.ropes[0].truncate};
        iv_rope_frequencies(&rule, 64, f);
        for (size_t k = 0; k < 7; k++) assert_true(fabs(f[at[k]] / cases[i].want[k] - 1) < 1e-13);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(original_positions_of_the_configuration),
        cmocka_unit_test(tables_are_those_of_the_rule),
        cmocka_unit_test(what_is_not_stretched_is_as_before),
        cmocka_unit_test(its_factor_could_stand_in_the_weights),
        cmocka_unit_test(fingerprints_tell_them_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
