/* Latent attention in config.json, and where files have the rows of its projections. */
#include "scratch.h"
#include "format/model_config.h"
#include "format/tensor_places.h"
#include "numerics/rope.h"

#include <math.h>

#define ROUTER ",\"n_group\":2,\"topk_group\":1,\"routed_scaling_factor\":2.5,\"first_k_dense_replace\":1"

static iv_status parse(const char *type, const char *more, iv_model_config *c, iv_error *err) {
    char text[2000];
    snprintf(text, sizeof text,
             "{\"model_type\":\"%s\",\"vocab_size\":100,\"hidden_size\":60,\"intermediate_size\":96,"
             "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"max_position_embeddings\":64,\"n_routed_experts\":8,"
             "\"num_experts_per_tok\":2,\"moe_intermediate_size\":32%s}",
             type, more);
    return iv_model_config_parse("c", text, strlen(text), c, err);
}

static void sizes(void **state) {
    (void)state;
    static const char *const types[] = {"deepseek_v3", "kimi_k2", "glm4_moe_lite"};
    static const char small[] = ROUTER ",\"q_lora_rank\":null,\"kv_lora_rank\":12,\"qk_nope_head_dim\":6,"
                                       "\"qk_rope_head_dim\":4,\"v_head_dim\":5,\"num_nextn_predict_layers\":1,"
                                       "\"rope_interleave\":false,\"head_dim\":4,\"num_key_value_heads\":4";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        iv_model_config c;
        iv_error err;
        ASSERT_OK(parse(types[i], ROUTER, &c, &err), &err);
        assert_true(c.q_rank == 1536 && c.kv_rank == 512 && c.head_dim == 192 && c.rope_dim == 64);
        assert_true(c.value_dim == 128 && c.kv_heads == 1 && c.ropes[0].neighbours && c.attention_scale == 0);
        assert_true(iv_config_rope_dim(&c, 0) == 64 && iv_config_value_dim(&c, 0) == 128);
        assert_true(c.router_score == IV_SCORE_SIGMOID && c.router_correction && c.router_groups == 2);
        assert_true(c.layer[0].mlp == IV_MLP_DENSE && c.layer[1].mlp == IV_MLP_EXPERTS);
        assert_true(c.shared_intermediate_size == 32 && c.norm_topk_prob && c.routed_scale == 2.5);
        ASSERT_OK(parse(types[i], small, &c, &err), &err);
        assert_true(c.q_rank == 0 && c.kv_rank == 12 && c.head_dim == 10 && c.rope_dim == 4 && c.value_dim == 5);
        assert_false(c.ropes[0].neighbours);
        assert_true(iv_tensor_is_ignored(&c, "model.layers.3.self_attn.kv_b_proj.weight"));
        assert_int_equal(iv_config_check_no_latent(&c, "training on device cuda", &err), IV_UNSUPPORTED);
        assert_non_null(strstr(err.message, "training on device cuda has no latent attention yet"));
    }
}

/* Mistral Small 4: a softmax router, scaled queries, and a partial_rotary_factor that is the turning part of a head. */
static void mistral4(void **state) {
    (void)state;
    static const char settings[] = ",\"n_group\":%d,\"topk_group\":1,\"routed_scaling_factor\":1,"
                                   "\"first_k_dense_replace\":0,\"qk_nope_head_dim\":64,"
                                   "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":128,"
                                   "\"original_max_position_embeddings\":8192,\"llama_4_scaling_beta\":0.1,"
                                   "\"mscale\":1,\"mscale_all_dim\":1,\"partial_rotary_factor\":%s}";
    char more[500];
    iv_model_config c;
    iv_error err;
    snprintf(more, sizeof more, settings, 1, "0.5");
    ASSERT_OK(parse("mistral4", more, &c, &err), &err);
    assert_true(c.router_score == IV_SCORE_SOFTMAX && !c.router_correction && c.layer[0].mlp == IV_MLP_EXPERTS);
    assert_true(c.ropes[0].query_beta == 0.1 && c.ropes[0].rotated == 0 && c.rope_dim == 64 && c.norm_topk_prob);
    snprintf(more, sizeof more, settings, 1, "0.25");
    assert_int_equal(parse("mistral4", more, &c, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "partial_rotary_factor: wanted 1, found 0.25"));
    snprintf(more, sizeof more, settings, 2, "0.5");
    assert_int_equal(parse("mistral4", more, &c, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "n_group: wanted 1 with a softmax router, found 2"));
}

/* Scores are scaled by mscale_all_dim; sines and cosines by the quotient, 1 in published files. */
static void yarn(void **state) {
    (void)state;
    iv_model_config c;
    iv_error err;
    static const char *const spelt[] = {
        ROUTER ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
               "\"beta_fast\":32,\"beta_slow\":1,\"original_max_position_embeddings\":4096},\"rope_theta\":10000",
        ROUTER ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
               "\"original_max_position_embeddings\":4096,\"rope_theta\":10000.0}"};
    for (size_t i = 0; i < 2; i++) {
        ASSERT_OK(parse("deepseek_v3", spelt[i], &c, &err), &err);
        double m = 0.1 * log(40) + 1, want = m * m / sqrt(192);
        assert_true(fabs(c.attention_scale / want - 1) < 1e-14);
        assert_int_equal(c.max_positions, 163840);
        assert_true(iv_rope_yarn_attention(40, c.ropes[0].mscale, c.ropes[0].mscale_all_dim) == 1);
    }
    ASSERT_OK(parse("deepseek_v3",
                    ROUTER ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
                           "\"original_max_position_embeddings\":4096}",
                    &c, &err),
              &err);
    assert_true(c.attention_scale == 0); /* not given: the plain scale */
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *more, *says;
    } wrong[] = {{ROUTER ",\"attention_bias\":true", "attention_bias: wanted false with latent attention, found true"},
                 {ROUTER ",\"num_key_value_heads\":2", "num_key_value_heads: wanted num_attention_heads, 4"},
                 {ROUTER ",\"moe_layer_freq\":2", "moe_layer_freq: wanted 1, found 2"},
                 {ROUTER ",\"topk_method\":\"greedy\"", "topk_method: wanted noaux_tc, found 'greedy'"},
                 {ROUTER ",\"scoring_func\":\"softmax\"", "scoring_func: wanted sigmoid, found 'softmax'"},
                 {ROUTER ",\"kv_lora_rank\":null", "kv_lora_rank"},
                 {ROUTER ",\"kv_lora_rank\":8192", "kv_lora_rank"},
                 {ROUTER ",\"qk_rope_head_dim\":7", "qk_rope_head_dim: wanted an even number, found 7"},
                 {ROUTER ",\"qk_nope_head_dim\":500", "wanted at most 512 in all, found 564"},
                 {ROUTER ",\"partial_rotary_factor\":0.5", "partial_rotary_factor: wanted 1"},
                 {"", "routed_scaling_factor"},
                 {",\"n_group\":2,\"topk_group\":1,\"routed_scaling_factor\":2.5", "first_k_dense_replace"}};
    iv_model_config c;
    iv_error err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_not_equal(parse("deepseek_v3", wrong[i].more, &c, &err), IV_OK);
        if (!strstr(err.message, wrong[i].says))
            fail_msg("%s: wanted '%s', found '%s'", wrong[i].more, wrong[i].says, err.message);
    }
    static const char *const other[][2] = {{"deepseek_v32", "an indexer"}, {"glm_moe_dsa", "an indexer"}};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(parse(other[i][0], ROUTER, &c, &err), IV_UNSUPPORTED);
        assert_non_null(strstr(err.message, other[i][1]));
    }
}

static iv_tensor_place place_of(const iv_model_config *c, const char *tensor, size_t rows, size_t columns,
                                const char *stored) {
    iv_tensor_place places[IV_PLACES_MAX];
    char names[IV_PLACES_MAX][IV_PLACE_NAME_BYTES], name[200], want[200];
    snprintf(name, sizeof name, "model.layers.1.self_attn.%s.weight", tensor);
    snprintf(want, sizeof want, "model.layers.1.self_attn.%s.weight", stored);
    assert_true(iv_tensor_places(c, "model.", name, 2, rows, columns, places, names) > 0);
    assert_string_equal(names[0], want);
    return places[0];
}

/* Heads of 6 + 4 for keys and 5 for values: kv_b_proj has 11 rows a head. */
static void places(void **state) {
    (void)state;
    iv_model_config c;
    iv_error err;
    ASSERT_OK(parse("deepseek_v3",
                    ROUTER ",\"q_lora_rank\":16,\"kv_lora_rank\":12,\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,"
                           "\"v_head_dim\":5",
                    &c, &err),
              &err);
    iv_tensor_place keys = place_of(&c, "k_b_proj.3", 12, 6, "kv_b_proj");
    assert_true(keys.transposed && keys.block == 3 && keys.height == 11 && keys.shape[0] == 44 && keys.shape[1] == 12);
    iv_tensor_place values = place_of(&c, "v_b_proj.3", 5, 12, "kv_b_proj");
    assert_int_equal(iv_place_row(&values, 4), 3 * 11 + 6 + 4);
    iv_tensor_place q = place_of(&c, "q_b_proj", 40, 16, "q_b_proj");
    static const size_t q_rows[] = {0, 1, 2, 3, 4, 5, 6, 8, 7, 9}; /* 6 stay; neighbours 6 7 and 8 9 turn */
    for (size_t j = 0; j < 10; j++) assert_int_equal(iv_row_order_source(&q.order, j), q_rows[j]);
    iv_tensor_place a = place_of(&c, "kv_a_proj_with_mqa", 16, 60, "kv_a_proj_with_mqa");
    static const size_t a_rows[] = {12, 14, 13, 15};
    for (size_t j = 0; j < 16; j++) assert_int_equal(iv_row_order_source(&a.order, j), j < 12 ? j : a_rows[j - 12]);
    assert_int_equal(place_of(&c, "q_a_proj", 16, 60, "q_a_proj").order.head, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes), cmocka_unit_test(mistral4), cmocka_unit_test(yarn),
                                       cmocka_unit_test(refusals), cmocka_unit_test(places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
