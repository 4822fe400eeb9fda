/* Linear attention and short convolutions in config.json, and where files have the rows of its projections. */
#include "scratch.h"
#include "format/model_config.h"
#include "format/tensor_places.h"

static void text_of(char out[1200], const char *type, const char *more) {
    snprintf(out, 1200,
             "{\"model_type\":\"%s\",\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,"
             "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"num_experts\":8,"
             "\"num_experts_per_tok\":2,\"moe_intermediate_size\":32%s}",
             type, more);
}

static iv_status parse(const char *type, const char *more, iv_model_config *c, iv_error *err) {
    char text[1200];
    text_of(text, type, more);
    return iv_model_config_parse("c", text, strlen(text), c, err);
}

static void defaults(void **state) {
    (void)state;
    static const char *const types[] = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        iv_model_config c;
        iv_error err;
        ASSERT_OK(parse(types[i], "", &c, &err), &err);
        assert_string_equal(c.model_type, types[i]);
        assert_int_equal(c.head_dim, 256);
        assert_int_equal(c.max_positions, 32768);
        assert_int_equal(c.ropes[0].rotated, 64);
        assert_true(c.unit_offset_norms && c.embedding_scale == 1 && c.qk_norm && !c.tie_embeddings);
        assert_int_equal(c.linear_key_heads, 16);
        assert_int_equal(c.linear_value_heads, 32);
        assert_int_equal(c.linear_key_dim * c.linear_value_dim, 128 * 128);
        assert_int_equal(c.linear_conv_taps, 4);
        for (int l = 0; l < 4; l++) {
            assert_int_equal(c.layer[l].mixer, l == 3 ? IV_MIXER_ATTENTION : IV_MIXER_DELTA);
            assert_int_equal(c.layer[l].attention_gate, l == 3);
        }
        bool experts = strstr(types[i], "next") || strstr(types[i], "moe");
        assert_int_equal(c.shared_intermediate_size, experts ? 512 : 0);
        assert_int_equal(c.norm_topk_prob, experts);
        assert_true(iv_tensor_is_ignored(&c, "mtp.layers.0.mlp.up_proj.weight"));
    }
}

static void kinds_and_refusals(void **state) {
    (void)state;
    iv_model_config c;
    iv_error err;
    ASSERT_OK(parse("qwen3_next", ",\"full_attention_interval\":2", &c, &err), &err);
    assert_int_equal(iv_config_mixers(&c, IV_MIXER_DELTA), 2);
    ASSERT_OK(parse("qwen3_next", ",\"full_attention_interval\":1,\"linear_num_key_heads\":3", &c, &err), &err);
    assert_int_equal(c.linear_value_heads, 0); /* no such layer: nothing of them is read */
    ASSERT_OK(parse("qwen3_5_text", ",\"attn_output_gate\":false", &c, &err), &err);
    assert_false(c.layer[3].attention_gate || c.stored & IV_STORED_QUERY_GATE);
    static const struct {
        const char *type, *more, *says;
    } wrong[] = {
        {"qwen3_next", ",\"layer_types\":[\"linear_attention\"]", "wanted an array of 4 entries, found array of 1"},
        {"qwen3_next", ",\"layer_types\":[\"linear_attention\",\"mamba\",\"full_attention\",\"full_attention\"]",
         "layer_types[1]: wanted linear_attention or full_attention, found mamba"},
        {"qwen3_5_text", ",\"full_attention_interval\":5", "wanted a full_attention layer, found none"},
        {"qwen3_5_text", ",\"linear_num_value_heads\":24", "wanted a multiple of 16 key heads, found 24"},
        {"qwen3_5_text", ",\"linear_key_head_dim\":1024", "linear_key_head_dim"},
        {"qwen3_5_text", ",\"linear_conv_kernel_dim\":9", "linear_conv_kernel_dim"},
        {"qwen3", ",\"max_position_embeddings\":64,\"attn_output_gate\":true", "attn_output_gate"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_not_equal(parse(wrong[i].type, wrong[i].more, &c, &err), IV_OK);
        if (!strstr(err.message, wrong[i].says))
            fail_msg("%s: wanted '%s', found '%s'", wrong[i].more, wrong[i].says, err.message);
    }
}

static void short_convolutions(void **state) {
    (void)state;
    iv_model_config c;
    iv_error err;
    static const char kinds[] = ",\"max_position_embeddings\":64,"
                                "\"layer_types\":[\"conv\",\"full_attention\",\"conv\",\"conv\"],\"rms_norm_eps\":1e-3";
    char more[600];
    ASSERT_OK(parse("lfm2", kinds, &c, &err), &err);
    assert_int_equal(iv_config_mixers(&c, IV_MIXER_CONV), 3);
    assert_true(c.tie_embeddings && c.qk_norm && c.rms_norm_eps == 1e-5 && c.linear_conv_taps == 3);
    assert_int_equal(c.intermediate_size, 256); /* 96 * 2 / 3, rounded up */
    snprintf(more, sizeof more, "%s,\"block_ff_dim\":12288,\"norm_eps\":1e-6,\"tie_embedding\":false", kinds);
    ASSERT_OK(parse("lfm2", more, &c, &err), &err);
    assert_int_equal(c.intermediate_size, 8192); /* LFM2-1.2B's */
    assert_true(!c.tie_embeddings && c.rms_norm_eps == 1e-6);
    ASSERT_OK(parse("lfm2",
                    ",\"max_position_embeddings\":64,\"full_attn_idxs\":[2],"
                    "\"block_auto_adjust_ff_dim\":false",
                    &c, &err),
              &err);
    assert_true(c.layer[2].mixer == IV_MIXER_ATTENTION && iv_config_mixers(&c, IV_MIXER_CONV) == 3);
    assert_int_equal(c.intermediate_size, 96);
    ASSERT_OK(parse("lfm2_moe", kinds, &c, &err), &err);
    assert_true(c.router_correction && c.router_score == IV_SCORE_SIGMOID && c.router_least == 1e-6);
    assert_true(c.layer[1].mlp == IV_MLP_DENSE && c.layer[2].mlp == IV_MLP_EXPERTS && c.intermediate_size == 96);
    snprintf(more, sizeof more, "%s,\"conv_bias\":true", kinds);
    assert_int_equal(parse("lfm2", more, &c, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "conv_bias: wanted false, found true"));
}

/* The stored row of a decoder's row, and the stored name. */
static size_t row_of(const iv_model_config *c, const char *layer, const char *tensor, size_t rows, size_t r,
                     const char *stored, int64_t all) {
    iv_tensor_place places[IV_PLACES_MAX];
    char names[IV_PLACES_MAX][IV_PLACE_NAME_BYTES], name[200], want[200];
    snprintf(name, sizeof name, "model.layers.%s.%s.weight", layer, tensor);
    snprintf(want, sizeof want, "model.layers.%s.%s.weight", layer, stored);
    assert_true(iv_tensor_places(c, "model.", name, 2, rows, 64, places, names) > 0);
    assert_string_equal(names[0], want);
    assert_int_equal(places[0].shape[0], all);
    return iv_place_row(&places[0], r);
}

/* Of 2 key heads of 3 and 4 value heads of 5: a key head's rows are 3 of q, 3 of k, 10 of v, 10 of z; 2 of b, 2 of a.
 */
static void rows_of_fused_projections(void **state) {
    (void)state;
    iv_model_config c;
    iv_error err;
    static const char sizes[] = ",\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"linear_key_head_dim\":3,"
                                "\"linear_value_head_dim\":5,\"head_dim\":8";
    ASSERT_OK(parse("qwen3_next", sizes, &c, &err), &err);
    assert_int_equal(row_of(&c, "0", "linear_attn.q_proj", 6, 4, "linear_attn.in_proj_qkvz", 52), 26 + 1);
    assert_int_equal(row_of(&c, "0", "linear_attn.k_proj", 6, 2, "linear_attn.in_proj_qkvz", 52), 3 + 2);
    assert_int_equal(row_of(&c, "0", "linear_attn.v_proj", 20, 17, "linear_attn.in_proj_qkvz", 52), 26 + 6 + 7);
    assert_int_equal(row_of(&c, "0", "linear_attn.z_proj", 20, 9, "linear_attn.in_proj_qkvz", 52), 16 + 9);
    assert_int_equal(row_of(&c, "0", "linear_attn.b_proj", 4, 3, "linear_attn.in_proj_ba", 8), 4 + 1);
    assert_int_equal(row_of(&c, "0", "linear_attn.a_proj", 4, 1, "linear_attn.in_proj_ba", 8), 2 + 1);
    assert_int_equal(row_of(&c, "3", "self_attn.q_proj", 32, 9, "self_attn.q_proj", 64), 16 + 1);
    assert_int_equal(row_of(&c, "3", "self_attn.gate_proj", 32, 9, "self_attn.q_proj", 64), 16 + 8 + 1);
    ASSERT_OK(parse("qwen3_5_text", sizes, &c, &err), &err);
    assert_int_equal(row_of(&c, "0", "linear_attn.k_proj", 6, 4, "linear_attn.in_proj_qkv", 32), 6 + 4);
    assert_int_equal(row_of(&c, "0", "linear_attn.v_proj", 20, 4, "linear_attn.in_proj_qkv", 32), 12 + 4);
    assert_int_equal(row_of(&c, "0", "linear_attn.a_proj", 4, 3, "linear_attn.in_proj_a", 4), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(defaults), cmocka_unit_test(kinds_and_refusals),
                                       cmocka_unit_test(short_convolutions),
                                       cmocka_unit_test(rows_of_fused_projections)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
