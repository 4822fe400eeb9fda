/* Hybrids with selective scans in config.json: kinds of layers in all their spellings, sizes, limits of steps,
 * multipliers; and what is refused, by name. */
#include "scratch.h"
#include "format/model_config.h"

#include <string.h>

#define GRANITE                                                                                          \
    "\"model_type\":\"granitemoehybrid\",\"vocab_size\":100,\"hidden_size\":32,\"intermediate_size\":8," \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"mamba_n_heads\":4,\"mamba_d_state\":8"
#define NEMOTRON                                                                                    \
    "\"model_type\":\"nemotron_h\",\"vocab_size\":100,\"hidden_size\":32,\"intermediate_size\":48," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,\"mamba_num_heads\":16,\"mamba_head_dim\":8"
#define FALCON                                                                                        \
    "\"model_type\":\"falcon_h1\",\"vocab_size\":100,\"hidden_size\":32,\"intermediate_size\":48,"    \
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"mamba_d_ssm\":64," \
    "\"mamba_n_heads\":8,\"mamba_d_state\":8"

static iv_status parse(const char *json, iv_model_config *c, iv_error *err) {
    return iv_model_config_parse("config.json", json, strlen(json), c, err);
}

static void granite(void **state) {
    (void)state;
    static iv_model_config c;
    iv_error err;
    ASSERT_OK(parse("{" GRANITE ",\"layer_types\":[\"mamba\",\"attention\"],\"num_local_experts\":4,"
                    "\"shared_intermediate_size\":16,\"mamba_d_head\":\"auto\",\"time_step_limit\":[0.0,Infinity]}",
                    &c, &err),
              &err);
    assert_true(c.layer[0].mixer == IV_MIXER_SCAN && c.layer[1].mixer == IV_MIXER_ATTENTION);
    assert_true(c.layer[0].mlp == IV_MLP_EXPERTS && c.shared_intermediate_size == 16 && c.moe_intermediate_size == 8);
    assert_true(c.linear_value_dim == 16 && c.linear_key_heads == 1 && c.linear_conv_taps == 4 && c.scan_conv_bias);
    assert_true(c.scan_norm == IV_SCAN_NORM_GATED && c.scan_step_low == 0 && c.scan_step_high == 0);
    assert_int_equal(c.ropes[c.layer[1].rope].kind, IV_ROPE_NONE);
    ASSERT_OK(parse("{" GRANITE ",\"layers_block_type\":[\"linear_attention\",\"full_attention\"],"
                    "\"num_local_experts\":0,\"shared_intermediate_size\":24,\"position_embedding_type\":\"rope\","
                    "\"time_step_limit\":[0.01,{\"__float__\":\"Infinity\"}]}",
                    &c, &err),
              &err);
    assert_true(c.layer[0].mlp == IV_MLP_DENSE && c.intermediate_size == 24 && c.experts == 0);
    assert_true(c.scan_step_low == 0.01 && c.scan_step_high == 0);
    assert_int_equal(c.ropes[c.layer[1].rope].kind, IV_ROPE_DEFAULT);
}

static void nemotron(void **state) {
    (void)state;
    static iv_model_config c;
    iv_error err;
    static const char *const spellings[] = {
        "\"hybrid_override_pattern\":\"ME*-\",\"num_hidden_layers\":4",
        "\"layers_block_type\":[\"mamba\",\"moe\",\"attention\",\"mlp\"],\"hybrid_override_pattern\":\"M\"",
        "\"layer_types\":[\"linear_attention\",\"moe\",\"full_attention\",\"mlp\"]"};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        char json[1200];
        snprintf(json, sizeof json,
                 "{" NEMOTRON ",%s,\"n_routed_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8,"
                 "\"moe_shared_expert_intermediate_size\":24,\"layer_norm_epsilon\":2e-5,\"time_step_min\":0.01}",
                 spellings[i]);
        ASSERT_OK(parse(json, &c, &err), &err);
        assert_int_equal(c.layers, 4);
        assert_true(c.layer[0].mixer == IV_MIXER_SCAN && c.layer[0].mlp == IV_MLP_NONE);
        assert_true(c.layer[1].mixer == IV_MIXER_NONE && c.layer[1].mlp == IV_MLP_EXPERTS);
        assert_true(c.layer[2].mixer == IV_MIXER_ATTENTION && c.layer[2].mlp == IV_MLP_NONE);
        assert_true(c.layer[3].mixer == IV_MIXER_NONE && c.layer[3].mlp == IV_MLP_DENSE);
        assert_true(c.shared_intermediate_size == 24 && !c.shared_gate && c.router_score == IV_SCORE_SIGMOID);
        assert_true(c.rms_norm_eps == 2e-5 && c.scan_step_low == 0.01 && c.linear_key_heads == 8);
        assert_int_equal(c.layer[1].activation.kind, IV_ACTIVATION_RELU2);
    }
}

static void falcon(void **state) {
    (void)state;
    static iv_model_config c;
    iv_error err;
    ASSERT_OK(parse("{" FALCON ",\"mamba_rms_norm\":true,\"mamba_norm_before_gate\":false,\"mamba_n_groups\":2,"
                    "\"ssm_in_multiplier\":2,\"ssm_multipliers\":[0.5,0.25,1,1,3],\"mlp_multipliers\":[0.9,0.6],"
                    "\"key_multiplier\":0.4,\"lm_head_multiplier\":0.5,\"embedding_multiplier\":5.5,"
                    "\"time_step_limit\":[0.001,0.1]}",
                    &c, &err),
              &err);
    assert_true(c.layers == 6 && c.layers_of_one == 2 && c.linear_value_dim == 8);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(c.layer[i].mixer, i % 2 ? IV_MIXER_SCAN : IV_MIXER_ATTENTION);
        assert_int_equal(c.layer[i].mlp, i % 2 ? IV_MLP_DENSE : IV_MLP_NONE);
        assert_int_equal(c.layer[i].norm_kept, i % 2);
    }
    assert_true(c.scan_norm == IV_SCAN_NORM_GATED && c.scan_step_high == 0.1 && c.embedding_scale == 5.5);
    assert_true(c.scan_in_scale[IV_SCAN_PART_Z] == 1 && c.scan_in_scale[IV_SCAN_PART_DT] == 6);
    assert_true(c.key_scale == 0.4 && c.gate_scale == 0.9 && c.mlp_out_scale == 0.6 && c.logits_divisor == 2);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *json, *why;
    } cases[] = {{"{" GRANITE ",\"layer_types\":[\"mamba\",\"rwkv\"]}",
                  "layer_types[1]: wanted linear_attention or full_attention"},
                 {"{" GRANITE ",\"layer_types\":[\"mamba\",\"moe\"]}",
                  "layer_types[1]: wanted linear_attention or full_attention"},
                 {"{" GRANITE ",\"layer_types\":[\"mamba\"]}", "layer_types: wanted an array of 2 entries, found 1"},
                 {"{" GRANITE ",\"layer_types\":[\"mamba\",\"mamba\"]}", "wanted a full_attention layer, found none"},
                 {"{" GRANITE "}", "layer_types: wanted an array of strings, found nothing"},
                 {"{" GRANITE ",\"layer_types\":[\"mamba\",\"attention\"],\"mamba_d_head\":12}",
                  "mamba_d_head: wanted 64 values over 4 heads, found 12 each"},
                 {"{" GRANITE ",\"layer_types\":[\"mamba\",\"attention\"],\"mamba_n_groups\":3}",
                  "mamba_n_groups: wanted a divisor of 4 heads, found 3"},
                 {"{" GRANITE ",\"layer_types\":[\"mamba\",\"attention\"],\"mamba_proj_bias\":true}",
                  "mamba_proj_bias: wanted false, found true"},
                 {"{" GRANITE ",\"layer_types\":[\"mamba\",\"attention\"],\"time_step_limit\":[1,0.5]}",
                  "time_step_limit: wanted two numbers"},
                 {"{" GRANITE ",\"layer_types\":[\"mamba\",\"attention\"],\"position_embedding_type\":\"alibi\"}",
                  "position_embedding_type: wanted rope or nope, found 'alibi'"},
                 {"{" NEMOTRON ",\"hybrid_override_pattern\":\"M*X\"}",
                  "hybrid_override_pattern[2]: wanted M, *, - or E, found 'X'"},
                 {"{" NEMOTRON ",\"hybrid_override_pattern\":\"\"}",
                  "hybrid_override_pattern: wanted 1 to 1024 layers, found 0"},
                 {"{" NEMOTRON "}", "layers_block_type: wanted an array of strings, found nothing"},
                 {"{" NEMOTRON ",\"hybrid_override_pattern\":\"M*-\",\"mlp_hidden_act\":\"silu\"}",
                  "mlp_hidden_act: wanted relu2, found 'silu'"},
                 {"{" NEMOTRON ",\"hybrid_override_pattern\":\"M*E\",\"n_routed_experts\":4,\"num_experts_per_tok\":2,"
                  "\"moe_intermediate_size\":8,\"moe_latent_size\":16}",
                  "moe_latent_size: wanted null"},
                 {"{" FALCON ",\"ssm_multipliers\":[1,2]}", "ssm_multipliers: wanted an array of 5 numbers"},
                 {"{" FALCON ",\"mlp_multipliers\":[1,0]}", "mlp_multipliers: wanted an array of 2 numbers"},
                 {"{" FALCON ",\"projectors_bias\":true}", "projectors_bias: wanted false, found true"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static iv_model_config c;
        iv_error err;
        if (parse(cases[i].json, &c, &err) == IV_OK) fail_msg("case %zu: no error", i);
        if (!strstr(err.message, cases[i].why)) fail_msg("case %zu: %s", i, err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(granite), cmocka_unit_test(nemotron), cmocka_unit_test(falcon),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
