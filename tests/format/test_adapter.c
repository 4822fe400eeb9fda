/* Directories of adapters: which modules a configuration selects, names and shapes of tensors, and what is refused. */
#include "format/adapter.h"
#include "format/module_pattern.h"
#include "scratch.h"

static void patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool matches;
    } cases[] = {
        {"q_proj", "q_proj", true},
        {"q_proj", "xq_proj", false},
        {".*\\.(q|v)_proj", "model.layers.0.self_attn.v_proj", true},
        {".*\\.(q|v)_proj", "model.layers.0.self_attn.k_proj", false},
        {"model\\.layers\\.(1[0-9]|[2-4])\\..*", "model.layers.13.mlp.up_proj", true},
        {"model\\.layers\\.(1[0-9]|[2-4])\\..*", "model.layers.1.mlp.up_proj", false},
        {"(a|bc|)*d", "abcaabcd", true},
        {"a{2,3}b{2}c{0,1}", "aaabb", true},
        {"a{2,3}b", "aaaab", false},
        {"a{,2}", "aa", true},
        {"a{,2}", "aaa", false},
        {"a{x}", "a{x}", true},
        {"^a$", "a", true},
        {"a^b", "ab", false},
        {"[^\\d_]+\\d{2,}?", "ab12", true},
        {"[]a-]+", "]a-", true},
        {"(?:ab)+", "abab", true},
        {"(a*)*(a*)*(a*)*(a*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false}, /* in linear time */
        {"", "", true},
    };
    static const struct {
        const char *pattern;
        iv_status status;
    } refused[] = {{"(", IV_FORMAT},
                   {"a)", IV_FORMAT},
                   {"*a", IV_FORMAT},
                   {"[a", IV_FORMAT},
                   {"a**", IV_FORMAT},
                   {"[b-a]", IV_FORMAT},
                   {"a\\", IV_FORMAT},
                   {"a{3,2}", IV_FORMAT},
                   {"(?=a)", IV_UNSUPPORTED},
                   {"(a)\\1", IV_UNSUPPORTED},
                   {"\\bq", IV_UNSUPPORTED},
                   {"a++", IV_UNSUPPORTED},
                   {"a{2000}", IV_UNSUPPORTED},
                   {"((a{99}){99}){99}", IV_LIMIT}};
    iv_error err;
    bool found;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ASSERT_OK(iv_pattern_matches("c", cases[i].pattern, cases[i].name, &found, &err), &err);
        if (found != cases[i].matches) fail_msg("%s on %s", cases[i].pattern, cases[i].name);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        iv_status status = iv_pattern_matches("c", refused[i].pattern, "a", &found, &err);
        if (status != refused[i].status) fail_msg("%s: %s", refused[i].pattern, iv_status_name(status));
    }
}

/* A configuration with these members next to the type. */
static iv_status parse(const char *members, iv_adapter_config *c, iv_error *err) {
    char text[1000];
    snprintf(text, sizeof text, "{\"peft_type\":\"LORA\"%s}", members);
    return iv_adapter_config_parse("c", text, strlen(text), c, err);
}

static void selections(void **state) {
    (void)state;
    static const struct {
        const char *members, *module;
        bool selected;
    } cases[] = {
        {",\"target_modules\":[\"q_proj\"]", "model.layers.3.self_attn.q_proj", true},
        {",\"target_modules\":[\"q_proj\"]", "model.layers.3.self_attn.xq_proj", false},
        {",\"target_modules\":\".*q_proj\"", "model.layers.3.self_attn.q_proj", true},
        {",\"target_modules\":\"all-linear\"", "model.layers.3.self_attn.q_proj", true},
        {",\"target_modules\":[\"q_proj\"],\"exclude_modules\":[\"3.self_attn.q_proj\"]",
         "model.layers.3.self_attn.q_proj", false},
        {",\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[1,2]", "model.layers.3.self_attn.q_proj", false},
        {",\"target_modules\":[\"q_proj\"],\"layers_to_transform\":3", "model.layers.3.self_attn.q_proj", true},
        {",\"target_modules\":[\"q_proj\"],\"layers_to_transform\":3,\"layers_pattern\":\"h\"",
         "model.layers.3.self_attn.q_proj", false},
        {",\"target_modules\":[\"lm_head\"],\"layers_to_transform\":3", "lm_head", true},
    };
    iv_adapter_config c;
    iv_error err;
    bool found;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ASSERT_OK(parse(cases[i].members, &c, &err), &err);
        ASSERT_OK(iv_adapter_config_selects(&c, cases[i].module, &found, &err), &err);
        if (found != cases[i].selected) fail_msg("%s on %s", cases[i].members, cases[i].module);
        iv_adapter_config_close(&c);
    }
    int64_t rank;
    float scale;
    ASSERT_OK(parse(",\"target_modules\":[\"q\"],\"r\":4,\"lora_alpha\":6,\"rank_pattern\":{\"q\":9,\"x.q\":2},"
                    "\"alpha_pattern\":{\"^y.*\":3},\"use_rslora\":true",
                    &c, &err),
              &err);
    ASSERT_OK(iv_adapter_config_numbers(&c, "x.q", &rank, &scale, &err), &err);
    assert_true(rank == 9 && scale == 2.0f);
    ASSERT_OK(iv_adapter_config_numbers(&c, "y.k", &rank, &scale, &err), &err);
    assert_true(rank == 4 && scale == 1.5f);
    iv_adapter_config_close(&c);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *members, *part;
    } cases[] = {
        {"", "target_modules"},
        {",\"target_modules\":[1]", "target_modules"},
        {",\"target_modules\":[\"q\"],\"use_dora\":true", "use_dora: DoRA"},
        {",\"target_modules\":[\"q\"],\"bias\":\"all\"", "bias"},
        {",\"target_modules\":[\"q\"],\"modules_to_save\":[\"lm_head\"]", "modules_to_save"},
        {",\"target_modules\":[\"q\"],\"fan_in_fan_out\":true", "fan_in_fan_out"},
        {",\"target_modules\":[\"q\"],\"lora_bias\":true", "lora_bias"},
        {",\"target_modules\":[\"q\"],\"target_parameters\":[\"experts.gate_up_proj\"]", "target_parameters"},
        {",\"target_modules\":[\"q\"],\"r\":0", "r: wanted"},
        {",\"target_modules\":[\"q\"],\"rank_pattern\":{\"q\":1.5}", "rank_pattern: q"},
        {",\"target_modules\":[\"q\"],\"use_something_new\":true", "use_something_new"},
        {",\"target_modules\":[\"q\"],\"layers_to_transform\":\"3\"", "layers_to_transform"},
    };
    iv_adapter_config c;
    iv_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(parse(cases[i].members, &c, &err), IV_OK);
        if (!strstr(err.message, cases[i].part)) fail_msg("%s: %s", cases[i].members, err.message);
    }
    static const char other[] = "{\"peft_type\":\"LOHA\",\"target_modules\":[\"q\"]}";
    assert_int_equal(iv_adapter_config_parse("c", other, strlen(other), &c, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "wanted \"LORA\", found \"LOHA\""));
}

static iv_tensor_info tensor(const char *name, int64_t rows, int64_t columns) {
    return (iv_tensor_info){
        .name = name, .dtype = IV_F32, .ndim = 2, .shape = {rows, columns}, .elements = (size_t)(rows * columns)};
}

static void names_of_tensors(void **state) {
    (void)state;
#define P "base_model.model."
    static const struct {
        const char *a, *b, *part; /* part NULL: read */
        int64_t b_rank;
    } cases[] = {
        {P "x.q.lora_A.weight", P "x.q.lora_B.weight", NULL, 2},
        {P "x.q.lora_A.default.weight", P "x.q.lora_B.default.weight", NULL, 2},
        {P "x.q.lora_embedding_A", P "x.q.lora_embedding_B", NULL, 2},
        {P "x.q.lora_embedding_A.default", P "x.q.lora_embedding_B.default", NULL, 2},
        {P "x.q.lora_A.weight", P "x.q.lora_B.weight", "wanted rank 2", 3},
        {P "x.q.lora_A.weight", P "x.k.lora_B.weight", "no A", 2},
        {P "x.q.lora_A.one.weight", P "x.q.lora_A.two.weight", "no B", 2},
        {P "x.q.lora_A.weight", P "x.q.lora_embedding_B", "same kind", 2},
        {P "x.k.lora_A.weight", P "x.k.lora_B.weight", "target_modules", 2},
        {P "x.q.lora_A.weight", P "x.q.lora_magnitude_vector", "DoRA", 2},
        {P "x.q.lora_B.bias", P "x.q.lora_B.weight", "wanted lora_A.weight", 2},
        {"x.q.lora_A.weight", "x.q.lora_B.weight", "another name", 2},
        {P "x.weight", P "y.base_layer.weight", "found none", 2},
    };
    iv_adapter_config c;
    iv_error err;
    ASSERT_OK(parse(",\"target_modules\":[\"q\"],\"r\":2", &c, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_arena arena = {0};
        iv_adapter_parts parts;
        const iv_tensor_info t[] = {tensor(cases[i].b, 5, cases[i].b_rank), tensor(cases[i].a, 2, 7)};
        iv_status status = iv_adapter_parts_make("f", &c, t, 2, &arena, &parts, &err);
        if (!cases[i].part) {
            ASSERT_OK(status, &err);
            assert_true(parts.count == 1 && parts.part[0].inputs == 7 && parts.part[0].outputs == 5);
            assert_string_equal(parts.part[0].module, "x.q");
        } else if (status == IV_OK || !strstr(err.message, cases[i].part)) {
            fail_msg("%s: %s", cases[i].a, status == IV_OK ? "read" : err.message);
        }
        iv_arena_free(&arena);
    }
    iv_adapter_config_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(patterns), cmocka_unit_test(selections),
                                       cmocka_unit_test(refusals), cmocka_unit_test(names_of_tensors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
