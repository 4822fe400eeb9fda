/* config.json: the families' defaults, both spellings of rotary settings, and one clear refusal per mistake.
 *
 * Cases are edits of a small valid file: keys of `edit` replace or add to those of the base. */
#include "scratch.h"
#include "base/file.h"
#include "format/config_fields.h"
#include "format/json.h"
#include "format/model_config.h"

#include <math.h>

static const char base[] = "{\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,"
                           "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":256}";
static const char moe[] = "{\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,"
                          "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":256,"
                          "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32}";

/* base of the family, edited; keys whose edit is the string "-" are removed. */
static iv_status parse_edit(const char *family, const char *edit, iv_model_config *c, iv_error *err) {
    const char *from = strcmp(family, "qwen3_moe") == 0 ? moe : base;
    json_t *root = json_loads(from, 0, NULL), *edits = json_loads(edit, JSON_ALLOW_NUL, NULL);
    const char *key;
    json_t *value;
    assert_true(root && edits);
    json_object_set_new(root, "model_type", json_string(family));
    json_object_foreach(edits, key, value) {
        if (json_is_string(value) && strcmp(json_string_value(value), "-") == 0)
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    iv_status status = iv_model_config_parse("c", text, strlen(text), c, err);
    free(text);
    json_decref(root);
    json_decref(edits);
    return status;
}

static void parse_ok(const char *family, const char *edit, iv_model_config *c) {
    iv_error err;
    if (parse_edit(family, edit, c, &err) != IV_OK) fail_msg("%s %s: %s", family, edit, err.message);
}

static void family_defaults(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool qkv_bias, qk_norm;
        int64_t head_dim, bos, eos, window;
    } want[] = {
        {"qwen3", false, true, 128, -1, -1, 0},    {"qwen3_moe", false, true, 16, -1, -1, 0},
        {"qwen2", true, false, 16, -1, -1, 0},     {"llama", false, false, 16, 1, 2, 0},
        {"mistral", false, false, 16, 1, 2, 4096},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        iv_model_config c;
        parse_ok(want[i].name, "{}", &c);
        assert_string_equal(c.model_type, want[i].name);
        assert_int_equal(c.attention_bias, want[i].qkv_bias);
        assert_int_equal(c.qk_norm, want[i].qk_norm);
        assert_int_equal(c.head_dim, want[i].head_dim);
        assert_int_equal(c.bos_id, want[i].bos);
        assert_int_equal(c.eos_count ? c.eos_ids[0] : -1, want[i].eos);
        assert_int_equal(c.sliding_window, want[i].window);
        assert_false(c.attention_out_bias || c.mlp_bias || c.tie_embeddings || c.has_dtype);
        assert_true(c.rms_norm_eps == 1e-6 && c.ropes[0].kind == IV_ROPE_DEFAULT && c.ropes[0].theta == 10000 &&
                    c.ropes[0].factor == 1);
        assert_int_equal(c.pad_id, -1);
        for (int l = 0; l < 4; l++) {
            assert_int_equal((c.layer[l].window > 0), want[i].window > 0);
            assert_int_equal((c.layer[l].mlp == IV_MLP_EXPERTS), c.experts > 0);
        }
        assert_int_equal(c.experts, strcmp(want[i].name, "qwen3_moe") == 0 ? 8 : 0);
    }
}

/* num_key_value_heads: absent is the family's own number, null is one per head. */
static void kv_heads_absent_and_null(void **state) {
    (void)state;
    iv_model_config c;
    iv_error err;
    parse_ok("llama", "{\"num_key_value_heads\":\"-\"}", &c);
    assert_int_equal(c.kv_heads, 4);
    parse_ok("qwen3", "{\"num_key_value_heads\":null}", &c);
    assert_int_equal(c.kv_heads, 4);
    parse_ok("qwen3_moe", "{\"num_key_value_heads\":\"-\"}", &c);
    assert_int_equal(c.kv_heads, 4);
    parse_ok("mistral", "{\"num_key_value_heads\":\"-\",\"num_attention_heads\":16}", &c);
    assert_int_equal(c.kv_heads, 8);
    parse_ok("qwen2", "{\"num_key_value_heads\":\"-\",\"num_attention_heads\":32}", &c);
    assert_int_equal(c.kv_heads, 32);
    expect_error("qwen2", parse_edit("qwen2", "{\"num_key_value_heads\":\"-\"}", &c, &err), &err, IV_FORMAT,
                 "a divisor of 4 heads, the default is 32");
}

static void biases(void **state) {
    (void)state;
    static const struct {
        const char *family;
        bool qkv, out;
    } want[] = {{"qwen3", true, true},
                {"qwen3_moe", true, true},
                {"qwen2", true, false},
                {"llama", true, true},
                {"mistral", false, false}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        iv_model_config c;
        parse_ok(want[i].family, "{\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true}", &c);
        assert_int_equal(c.attention_bias, want[i].qkv);
        assert_int_equal(c.attention_out_bias, want[i].out);
        assert_int_equal(c.mlp_bias, strcmp(c.model_type, "llama") == 0);
        assert_true(c.tie_embeddings);
    }
}

static void numbers_may_be_spelled_as_reals(void **state) {
    (void)state;
    iv_model_config c;
    parse_ok("qwen2", "{\"max_position_embeddings\":1e6,\"rope_theta\":1000000,\"vocab_size\":100.0}", &c);
    assert_int_equal(c.max_positions, 1000000);
    assert_int_equal(c.vocab_size, 100);
    assert_true(c.ropes[0].theta == 1e6);
}

static const char *const llama3_spellings[] = {
    "{\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_"
    "factor\":1,"
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
    "{\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1."
    "0,"
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
    "{\"rope_parameters\":{\"rope_theta\":500000,\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_"
    "factor\":1,"
    "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192.0}}",
    "{\"rope_scaling\":null,\"rope_parameters\":{\"full_attention\":{\"rope_theta\":500000,\"rope_type\":"
    "\"llama3\","
    "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}"
    "}}",
};

static void both_spellings_of_rope(void **state) {
    (void)state;
    iv_model_config c;
    for (size_t i = 0; i < sizeof llama3_spellings / sizeof *llama3_spellings; i++) {
        parse_ok("llama", llama3_spellings[i], &c);
        assert_int_equal(c.ropes[0].kind, IV_ROPE_LLAMA3);
        assert_true(c.ropes[0].theta == 500000 && c.ropes[0].factor == 8 && c.ropes[0].low_freq_factor == 1);
        assert_true(c.ropes[0].high_freq_factor == 4 && c.ropes[0].original_positions == 8192);
    }
    parse_ok("llama", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}", &c);
    assert_true(c.ropes[0].kind == IV_ROPE_LINEAR && c.ropes[0].factor == 4 && c.ropes[0].theta == 10000);
    assert_int_equal(c.max_positions, 256);
    parse_ok("llama", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0},\"max_sequence_length\":1024}", &c);
    assert_int_equal(c.max_positions, 1024);
    parse_ok("llama", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0},\"max_sequence_length\":1025}", &c);
    assert_int_equal(c.max_positions, 256); /* more than the factor stretches to */
    parse_ok("llama", "{\"max_sequence_length\":1024}", &c);
    assert_int_equal(c.max_positions, 256);
    parse_ok(
        "qwen3",
        "{\"max_position_embeddings\":40960,\"rope_theta\":1e6,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":"
        "4.0,\"original_max_position_embeddings\":32768}}",
        &c);
    assert_true(c.ropes[0].kind == IV_ROPE_YARN && c.ropes[0].factor == 4 && c.ropes[0].theta == 1e6 &&
                c.max_positions == 131072);
    assert_true(c.ropes[0].original_positions == 32768 && c.ropes[0].beta_fast == 32 && c.ropes[0].beta_slow == 1);
    assert_true(c.ropes[0].truncate && c.ropes[0].attention == 0 && c.ropes[0].mscale == 0 &&
                c.ropes[0].mscale_all_dim == 0);
    parse_ok("llama",
             "{\"max_position_embeddings\":65536,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":16,\"finetuned\":true,"
             "\"beta_slow\":null,\"mscale\":0.707,\"truncate\":false,\"attention_factor\":1.5}}",
             &c);
    assert_true(c.ropes[0].original_positions == 65536 && c.max_positions == 65536 && !c.ropes[0].truncate);
    assert_true(c.ropes[0].mscale == 0.707 && c.ropes[0].attention == 1.5 && c.ropes[0].beta_slow == 1);
    /* outside the rope settings it overrides the value inside them, as in transformers 5, except for settings by layer
     * type */
    parse_ok("llama",
             "{\"max_position_embeddings\":131072,\"original_max_position_embeddings\":8192,\"rope_scaling\":{\"rope_"
             "type\":\"yarn\","
             "\"factor\":4,\"attn_factor\":0.8782488562869419}}",
             &c);
    assert_true(c.ropes[0].original_positions == 8192 && c.ropes[0].attn_factor == 0.8782488562869419 &&
                c.ropes[0].attention == 0);
    parse_ok("llama",
             "{\"max_position_embeddings\":131072,\"original_max_position_embeddings\":8192,\"rope_parameters\":{"
             "\"rope_type\":"
             "\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,\"rope_theta\":500000}}",
             &c);
    assert_true(c.ropes[0].kind == IV_ROPE_LLAMA3 && c.ropes[0].original_positions == 8192);
    parse_ok("llama",
             "{\"original_max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
             "\"original_max_position_embeddings\":128}}",
             &c);
    assert_true(c.ropes[0].original_positions == 64);
    parse_ok("llama",
             "{\"original_max_position_embeddings\":64,\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\","
             "\"factor\":"
             "4,\"original_max_position_embeddings\":128}}}",
             &c);
    assert_true(c.ropes[0].original_positions == 128 && c.ropes[0].attn_factor == 1);
    parse_ok("qwen3", "{\"rope_parameters\":{\"rope_theta\":1e6}}", &c);
    assert_true(c.ropes[0].kind == IV_ROPE_DEFAULT && c.ropes[0].theta == 1e6);
    parse_ok("qwen3", "{\"rope_theta\":1e6,\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":\"default\"}}", &c);
    assert_true(c.ropes[0].kind == IV_ROPE_DEFAULT && c.ropes[0].theta == 1e6);
    parse_ok("qwen3",
             "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":5e5},"
             "\"sliding_attention\":{\"rope_theta\":500000}}}",
             &c);
    assert_true(c.ropes[0].kind == IV_ROPE_DEFAULT && c.ropes[0].theta == 5e5);
}

static void which_layers_slide(void **state) {
    (void)state;
    static const struct {
        const char *family, *edit;
        int64_t window;
        const char *layers; /* s or f */
    } cases[] = {
        {"qwen2", "{\"sliding_window\":32}", 0, "ffff"},
        {"qwen2", "{\"sliding_window\":32,\"use_sliding_window\":true}", 0, "ffff"}, /* from layer 28 on */
        {"qwen2", "{\"sliding_window\":32,\"use_sliding_window\":true,\"max_window_layers\":1}", 32, "fsss"},
        {"qwen2", "{\"use_sliding_window\":true,\"max_window_layers\":0}", 4096, "ssss"},
        {"qwen3", "{\"sliding_window\":null,\"use_sliding_window\":true,\"max_window_layers\":0}", 0, "ffff"},
        {"qwen3",
         "{\"sliding_window\":32,\"use_sliding_window\":true,\"max_window_layers\":1,\"layer_types\":"
         "[\"sliding_attention\",\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
         32, "sffs"},
        {"qwen3_moe", "{\"sliding_window\":32,\"use_sliding_window\":true}", 32, "ssss"},
        {"qwen3_moe", "{\"sliding_window\":32,\"use_sliding_window\":false}", 0, "ffff"},
        {"mistral", "{\"sliding_window\":null}", 0, "ffff"},
        {"mistral", "{\"sliding_window\":8}", 8, "ssss"},
        {"mistral", "{\"sliding_window\":8,\"use_sliding_window\":false}", 8, "ssss"},
        {"llama", "{\"sliding_window\":8}", 0, "ffff"},
        {"llama", "{\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]}", 0,
         "ffff"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_model_config c;
        parse_ok(cases[i].family, cases[i].edit, &c);
        assert_int_equal(c.sliding_window, cases[i].window);
        for (int l = 0; l < 4; l++)
            if ((c.layer[l].window > 0) != (cases[i].layers[l] == 's')) fail_msg("%s: layer %d", cases[i].edit, l);
    }
}

static void which_layers_have_experts(void **state) {
    (void)state;
    static const struct {
        const char *edit, *layers; /* m or d */
    } cases[] = {
        {"{}", "mmmm"},
        {"{\"decoder_sparse_step\":2}", "dmdm"},
        {"{\"mlp_only_layers\":[0,3]}", "dmmd"},
        {"{\"mlp_only_layers\":[1],\"decoder_sparse_step\":2}", "dddm"},
        {"{\"mlp_only_layers\":null,\"decoder_sparse_step\":5}", "dddd"},
        {"{\"num_experts\":\"-\",\"num_local_experts\":8}", "mmmm"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_model_config c;
        parse_ok("qwen3_moe", cases[i].edit, &c);
        assert_true(c.experts == 8 && c.experts_per_token == 2 && c.moe_intermediate_size == 32 && !c.norm_topk_prob);
        for (int l = 0; l < 4; l++)
            if ((c.layer[l].mlp == IV_MLP_EXPERTS) != (cases[i].layers[l] == 'm'))
                fail_msg("%s: layer %d", cases[i].edit, l);
    }
}

static void token_ids_and_dtype(void **state) {
    (void)state;
    iv_model_config c;
    parse_ok("llama", "{\"bos_token_id\":null,\"eos_token_id\":null,\"pad_token_id\":-1,\"torch_dtype\":\"float16\"}",
             &c);
    assert_true(c.bos_id == -1 && c.eos_count == 0 && c.pad_id == -1 && c.has_dtype && c.dtype == IV_F16);
    parse_ok("llama", "{\"bos_token_id\":99,\"eos_token_id\":[3,4,5],\"pad_token_id\":100,\"dtype\":\"bfloat16\"}", &c);
    assert_true(c.bos_id == 99 && c.eos_count == 3 && c.eos_ids[2] == 5 && c.pad_id == 100 && c.dtype == IV_BF16);
    parse_ok("llama",
             "{\"vocab_size\":2,\"dtype\":\"float32\",\"torch_dtype\":\"torch.float32\",\"hidden_act\":\"swish\"}", &c);
    assert_true(c.bos_id == 1 && c.eos_count == 0 && c.dtype == IV_F32);
    /* Ids of no token, which transformers accepts with a warning. */
    parse_ok("qwen2", "{\"bos_token_id\":151643,\"eos_token_id\":151645}", &c);
    assert_true(c.bos_id == -1 && c.eos_count == 0);
    parse_ok("llama", "{\"bos_token_id\":100,\"eos_token_id\":[100,99,-1,3]}", &c);
    assert_true(c.bos_id == -1 && c.eos_count == 2 && c.eos_ids[0] == 99 && c.eos_ids[1] == 3);
    parse_ok("llama", "{\"eos_token_id\":-1}", &c);
    assert_true(c.eos_count == 0);
}

static const struct {
    const char *family, *edit;
    iv_status status;
    const char *text;
} bad[] = {
    {"gpt2", "{}", IV_UNSUPPORTED, "'gpt2' is not supported (supported: qwen3, qwen3_moe, qwen2, llama, mistral, "},
    {"llama", "{\"model_type\":\"-\"}", IV_FORMAT, "model_type: wanted a string, found nothing"},
    {"llama", "{\"model_type\":3}", IV_FORMAT, "model_type: wanted a string, found 3"},
    {"llama", "{\"model_type\":\"llama\\u0000\"}", IV_FORMAT, "holds a NUL"},
    {"llama", "{\"architectures\":[\"LlamaForSequenceClassification\"]}", IV_UNSUPPORTED,
     "not a causal language model"},
    {"llama", "{\"architectures\":\"LlamaForCausalLM\"}", IV_FORMAT, "architectures: wanted an array"},
    {"llama", "{\"architectures\":[1]}", IV_FORMAT, "architectures[0]: wanted a string"},
    {"llama", "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":3}}", IV_UNSUPPORTED, "wanted 4 or 8"},
    {"llama", "{\"quantization_config\":{\"quant_method\":\"quark\"}}", IV_UNSUPPORTED, "'quark'"},
    {"llama", "{\"quantization_config\":{}}", IV_FORMAT, "quant_method"},
    {"llama", "{\"compression_config\":{\"quant_method\":\"compressed-tensors\"}}", IV_FORMAT,
     "config_groups: wanted an object"},
    {"llama", "{\"vocab_size\":\"-\"}", IV_FORMAT, "vocab_size: wanted an integer, found nothing"},
    {"llama", "{\"vocab_size\":0}", IV_FORMAT, "vocab_size: wanted an integer from 1 to 16777216, found 0"},
    {"llama", "{\"vocab_size\":16777217}", IV_FORMAT, "found 16777217"},
    {"llama", "{\"vocab_size\":\"100\"}", IV_FORMAT, "found string"},
    {"llama", "{\"vocab_size\":100.5}", IV_FORMAT, "found 100.5"},
    {"llama", "{\"hidden_size\":1048577}", IV_FORMAT, "hidden_size: wanted an integer from 1 to 1048576"},
    {"llama", "{\"hidden_size\":null}", IV_FORMAT, "hidden_size: wanted an integer, found nothing"},
    {"llama", "{\"intermediate_size\":-1}", IV_FORMAT, "intermediate_size"},
    {"llama", "{\"num_hidden_layers\":1025}", IV_FORMAT, "num_hidden_layers: wanted an integer from 1 to 1024"},
    {"llama", "{\"num_attention_heads\":4097}", IV_FORMAT, "num_attention_heads"},
    {"llama", "{\"num_attention_heads\":true}", IV_FORMAT, "found true"},
    {"llama", "{\"num_key_value_heads\":3}", IV_FORMAT, "a divisor of 4 heads, found 3"},
    {"llama", "{\"num_key_value_heads\":0}", IV_FORMAT, "num_key_value_heads"},
    {"llama", "{\"max_position_embeddings\":0}", IV_FORMAT, "max_position_embeddings"},
    {"llama", "{\"head_dim\":15}", IV_FORMAT, "head_dim: wanted an even number from 2 to 512, found 15"},
    {"llama", "{\"head_dim\":514}", IV_FORMAT, "head_dim"},
    {"llama", "{\"hidden_size\":66}", IV_FORMAT, "hidden_size: wanted a multiple of 4 heads, found 66"},
    {"llama", "{\"hidden_size\":4}", IV_FORMAT, "head_dim: wanted an even number from 2 to 512, found 1"},
    {"llama", "{\"hidden_size\":4096}", IV_FORMAT, "found 1024"},
    {"llama", "{\"rms_norm_eps\":0}", IV_FORMAT, "rms_norm_eps: wanted a number from 1e-30 to 1"},
    {"llama", "{\"rms_norm_eps\":\"1e-6\"}", IV_FORMAT, "rms_norm_eps"},
    {"llama", "{\"hidden_act\":\"gelu\"}", IV_UNSUPPORTED, "hidden_act: wanted silu, found 'gelu'"},
    {"llama", "{\"tie_word_embeddings\":1}", IV_FORMAT, "tie_word_embeddings: wanted true or false"},
    {"llama", "{\"attention_bias\":\"yes\"}", IV_FORMAT, "attention_bias"},
    {"llama", "{\"mlp_bias\":0}", IV_FORMAT, "mlp_bias"},
    {"llama", "{\"rope_theta\":0}", IV_FORMAT, "rope_theta: wanted a number from 1 to 1e+15"},
    {"llama", "{\"partial_rotary_factor\":0.5}", IV_UNSUPPORTED, "partial_rotary_factor: wanted 1, found 0.5"},
    {"llama", "{\"rope_scaling\":[]}", IV_FORMAT, "rope_scaling: wanted an object, found array"},
    {"llama", "{\"rope_scaling\":{\"factor\":2}}", IV_FORMAT, "rope_scaling.rope_type: wanted a string, found nothing"},
    {"llama", "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}", IV_UNSUPPORTED, "rope_type 'dynamic'"},
    {"llama", "{\"rope_parameters\":{\"rope_type\":\"longrope\"}}", IV_FORMAT,
     "rope_parameters.original_max_position_embeddings: wanted an integer, found nothing"},
    {"llama", "{\"is_causal\":false}", IV_UNSUPPORTED,
     "is_causal: wanted true (others are not implemented for llama), found false"},
    {"qwen3_vl", "{\"text_config\":{\"is_causal\":false}}", IV_UNSUPPORTED,
     "is_causal: wanted true (others are not implemented for qwen3_vl_text), found false"},
    {"qwen3_vl", "{\"is_causal\":false,\"text_config\":{}}", IV_UNSUPPORTED, "is_causal: wanted true"},
    {"qwen3_vl", "{\"text_config\":{\"model_type\":5}}", IV_FORMAT, "model_type: wanted a string"},
    {"mellum",
     "{\"original_max_position_embeddings\":8,\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"longrope\","
     "\"original_max_position_embeddings\":8,\"short_factor\":[1],\"long_factor\":[1]}},\"head_dim\":2}",
     IV_UNSUPPORTED, "longrope is not supported by layer type"},
    {"qwen3_vl", "{\"text_config\":[]}", IV_FORMAT, "text_config: wanted an object"},
    {"qwen3_vl", "{\"text_config\":{\"model_type\":\"gpt2\"}}", IV_UNSUPPORTED, "model_type 'gpt2' is not supported"},
    {"qwen3_vl", "{\"architectures\":[\"Qwen3VLForCausalLM\"]}", IV_UNSUPPORTED,
     "architecture 'Qwen3VLForCausalLM' is not a"},
    {"phi3", "{\"partial_rotary_factor\":0.1}", IV_UNSUPPORTED,
     "partial_rotary_factor: wanted an even part of head_dim 16, found 0.1 of it"},
    {"phi3",
     "{\"original_max_position_embeddings\":8,\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1],\"long_factor\":["
     "1]}}",
     IV_FORMAT, "rope_scaling.short_factor: wanted an array of 8 numbers, found array of 1"},
    {"mellum",
     "{\"num_experts\":4,\"num_experts_per_tok\":1,\"moe_intermediate_size\":8,\"mlp_layer_types\":[\"dense\"]}",
     IV_FORMAT, "mlp_layer_types: wanted an array of 4 entries"},
    {"llama", "{\"rope_scaling\":{\"type\":\"yarn\"}}", IV_FORMAT,
     "rope_scaling.factor: wanted a number, found nothing"},
    {"llama", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":1}}", IV_FORMAT,
     "rope_scaling.beta_fast: wanted more than beta_slow 1, found 1"},
    {"llama", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"attn_factor\":0.5,\"attention_factor\":1}}",
     IV_UNSUPPORTED, "rope_scaling.attn_factor: wanted 1 next to attention_factor, found 0.5"},
    {"llama", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"attn_factor\":0}}", IV_FORMAT,
     "rope_scaling.attn_factor: wanted"},
    {"llama", "{\"original_max_position_embeddings\":0,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", IV_FORMAT,
     "original_max_position_embeddings: wanted an integer from 1"},
    {"llama", "{\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", IV_FORMAT,
     "rope_theta: wanted more than 1 with yarn"},
    {"llama", "{\"rope_scaling\":{\"type\":\"mrope\",\"rope_type\":\"default\"}}", IV_FORMAT, "rope_type is 'default'"},
    {"llama", "{\"rope_scaling\":{\"type\":1}}", IV_FORMAT, "rope_scaling.type: wanted a string"},
    {"llama", "{\"rope_scaling\":{\"type\":\"linear\"}}", IV_FORMAT,
     "rope_scaling.factor: wanted a number, found nothing"},
    {"llama", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}", IV_FORMAT, "wanted a number from 1 to"},
    {"llama", "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", IV_FORMAT, "low_freq_factor: wanted a number"},
    {"llama", "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}}",
     IV_FORMAT, "original_max_position_embeddings: wanted an integer, found nothing"},
    {"llama",
     "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
     "\"original_max_position_embeddings\":64}}",
     IV_FORMAT, "high_freq_factor: wanted more than low_freq_factor 4, found 4"},
    {"llama", "{\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", IV_UNSUPPORTED,
     "rope_parameters.partial_rotary_factor: wanted 1"},
    {"llama", "{\"rope_theta\":10,\"rope_parameters\":{\"rope_theta\":20}}", IV_FORMAT, "rope_theta is 10, but 20"},
    {"llama",
     "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_type\":\"linear\","
     "\"factor\":4}}",
     IV_FORMAT, "rope_scaling and rope_parameters disagree"},
    {"qwen3",
     "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":10},\"sliding_attention\":{\"rope_theta\":20}}"
     "}",
     IV_UNSUPPORTED, "differ between 'full_attention' and 'sliding_attention'"},
    {"qwen3", "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":10},\"rope_theta\":20}}", IV_FORMAT,
     "rope_parameters.rope_theta: wanted an object"},
    {"qwen3", "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"dynamic\"}}}", IV_UNSUPPORTED,
     "rope_parameters.full_attention.rope_type 'dynamic'"},
    {"mistral", "{\"sliding_window\":0}", IV_FORMAT, "sliding_window: wanted an integer from 1"},
    {"qwen2", "{\"use_sliding_window\":\"no\"}", IV_FORMAT, "use_sliding_window"},
    {"qwen2", "{\"max_window_layers\":-1}", IV_FORMAT, "max_window_layers"},
    {"qwen2", "{\"layer_types\":[\"full_attention\"]}", IV_FORMAT, "an array of 4 entries, found array of 1"},
    {"qwen2", "{\"layer_types\":4}", IV_FORMAT, "layer_types"},
    {"qwen2", "{\"layer_types\":[1,2,3,4]}", IV_FORMAT, "layer_types[0]: wanted a string, found integer"},
    {"qwen2", "{\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\",\"full_attention\"]}",
     IV_UNSUPPORTED, "layer_types[1]: 'linear_attention' layers"},
    {"qwen2", "{\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]}",
     IV_FORMAT, "layer_types[1] slides, but there is no sliding_window"},
    {"mistral", "{\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]}",
     IV_UNSUPPORTED, "layer_types[1]: every layer of this mistral model is sliding_attention"},
    {"qwen3_moe", "{\"num_experts\":\"-\"}", IV_FORMAT, "num_experts: wanted an integer, found nothing"},
    {"qwen3_moe", "{\"num_experts\":4097}", IV_FORMAT, "num_experts"},
    {"qwen3_moe", "{\"num_local_experts\":4}", IV_FORMAT, "num_experts is 8, num_local_experts is 4"},
    {"qwen3_moe", "{\"num_experts_per_tok\":9}", IV_FORMAT, "num_experts_per_tok: wanted an integer from 1 to 8"},
    {"qwen3_moe", "{\"moe_intermediate_size\":0}", IV_FORMAT, "moe_intermediate_size"},
    {"qwen3_moe", "{\"decoder_sparse_step\":0}", IV_FORMAT, "decoder_sparse_step"},
    {"qwen3_moe", "{\"mlp_only_layers\":[4]}", IV_FORMAT, "mlp_only_layers[0]: wanted an integer from 0 to 3"},
    {"qwen3_moe", "{\"norm_topk_prob\":1}", IV_FORMAT, "norm_topk_prob"},
    {"llama", "{\"torch_dtype\":\"int8\"}", IV_UNSUPPORTED, "torch_dtype: wanted bfloat16, float16, float32"},
    {"llama", "{\"dtype\":\"float16\",\"torch_dtype\":\"bfloat16\"}", IV_FORMAT,
     "dtype says float16, torch_dtype says"},
    {"llama", "{\"bos_token_id\":16777216}", IV_FORMAT, "bos_token_id: wanted an integer from -1 to 16777215"},
    {"llama", "{\"eos_token_id\":[1,-2]}", IV_FORMAT, "eos_token_id[1]: wanted an integer from -1 to 16777215"},
    {"llama", "{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", IV_LIMIT, "17 entries, at most 16"},
    {"llama", "{\"pad_token_id\":\"x\"}", IV_FORMAT, "pad_token_id"},
};

static void bad_fields_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        iv_model_config c;
        iv_error err;
        expect_error(bad[i].edit, parse_edit(bad[i].family, bad[i].edit, &c, &err), &err, bad[i].status, bad[i].text);
        assert_true(strncmp(err.message, "c: ", 3) == 0);
    }
}

static const struct {
    const char *harmful, *message, *harmless;
} members[] = {
    {"{\"is_causal\":false}", "c: is_causal: wanted true (others are not implemented for ", "{\"is_causal\":true}"},
    {"{\"is_causal\":0}", "c: is_causal: wanted true (others are not implemented for ", "{\"is_causal\":null}"},
    {"{\"use_bidirectional_attention\":true}", "use_bidirectional_attention: wanted false",
     "{\"use_bidirectional_attention\":false}"},
    {"{\"per_layer_config\":{\"1\":{\"head_dim\":32}}}", "per_layer_config: wanted {}", "{\"per_layer_config\":{}}"},
    {"{\"attention_chunk_size\":8192}", "attention_chunk_size: wanted 0", "{\"attention_chunk_size\":null}"},
    {"{\"num_kv_shared_layers\":2}", "num_kv_shared_layers", "{\"num_kv_shared_layers\":0}"},
    {"{\"is_encoder_decoder\":true}", "is_encoder_decoder", "{\"is_encoder_decoder\":false}"},
    {"{\"pruned_heads\":{\"0\":[1]}}", "pruned_heads", "{\"pruned_heads\":{}}"},
    {"{\"final_logit_softcapping\":30.0}", "final_logit_softcapping: wanted 0 (others are not implemented for ",
     "{\"final_logit_softcapping\":null}"},
    {"{\"attention_multiplier\":0.015625}", "attention_multiplier: wanted null", "{\"attention_multiplier\":null}"},
    {"{\"embedding_multiplier\":12}", "embedding_multiplier: wanted 1", "{\"embedding_multiplier\":1.0}"},
    {"{\"mlp_multipliers\":[1,0.5]}", "mlp_multipliers: wanted [1,1]", "{\"mlp_multipliers\":[1.0,1.0]}"},
    {"{\"no_rope_layers\":[1,1,1,0]}", "no_rope_layers", "{\"no_rope_layers\":[]}"},
    {"{\"rope_interleaved\":true}", "rope_interleaved", "{\"rope_interleaved\":false}"},
    {"{\"hidden_activation\":\"gelu_pytorch_tanh\"}", "hidden_activation: wanted \"silu\"",
     "{\"hidden_activation\":\"silu\"}"},
    {"{\"scoring_func\":\"sigmoid\"}", "scoring_func: wanted \"softmax\"", "{\"scoring_func\":\"softmax\"}"},
    {"{\"shared_expert_intermediate_size\":64}", "shared_expert_intermediate_size",
     "{\"shared_expert_intermediate_size\":0}"},
    {"{\"rope_parameters\":{\"llama_4_scaling_beta\":0.1}}", "c: rope_parameters.llama_4_scaling_beta: wanted 0",
     "{\"rope_parameters\":{\"llama_4_scaling_beta\":0}}"},
    {"{\"attn_temperature_tuning\":4}", "attn_temperature_tuning",
     "{\"use_cache\":true,\"attention_dropout\":0.1,\"pretraining_tp\":2,\"_attn_implementation\":\"sdpa\"}"},
};

/* One harmful and one harmless value of every kind; the harmless ones are those of published files. */
static void members_that_change_the_arithmetic_are_refused(void **state) {
    (void)state;
    static const char *const family[] = {"qwen3", "qwen3_moe", "qwen2", "llama", "mistral"};
    iv_model_config c;
    iv_error err;
    for (size_t f = 0; f < sizeof family / sizeof *family; f++)
        for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
            expect_error(members[i].harmful, parse_edit(family[f], members[i].harmful, &c, &err), &err, IV_UNSUPPORTED,
                         members[i].message);
            parse_ok(family[f], members[i].harmless, &c);
        }
}

/* Members that a family reads, which others refuse. */
static void members_of_related_families(void **state) {
    (void)state;
    iv_model_config c;
    iv_error err;
    expect_error("norm", parse_edit("llama", "{\"use_qk_norm\":true}", &c, &err), &err, IV_UNSUPPORTED,
                 "use_qk_norm: wanted false");
    parse_ok("llama",
             "{\"model_type\":\"minimax_m2\",\"head_dim\":16,\"rotary_dim\":8,\"num_local_experts\":4,"
             "\"num_experts_per_tok\":2,\"scoring_func\":\"sigmoid\",\"use_routing_bias\":true,"
             "\"shared_intermediate_size\":0}",
             &c); /* MiniMax-M2 */
    assert_true(c.qk_norm && c.qk_norm_whole && c.ropes[0].rotated == 8 && c.router_correction && c.norm_topk_prob);
    expect_error("norm",
                 parse_edit("llama",
                            "{\"model_type\":\"minimax_m2\",\"num_local_experts\":4,\"num_experts_per_tok\":2,"
                            "\"scoring_func\":\"softmax\"}",
                            &c, &err),
                 &err, IV_UNSUPPORTED, "scoring_func: wanted sigmoid, found 'softmax'");
    parse_ok("llama",
             "{\"model_type\":\"llama4_text\",\"intermediate_size_mlp\":96,\"num_local_experts\":4,"
             "\"interleave_moe_layer_step\":2,\"attention_chunk_size\":32,\"no_rope_layers\":[],\"use_qk_norm\":true,"
             "\"no_rope_layer_interval\":2,\"attn_temperature_tuning\":4,\"num_experts_per_tok\":1}",
             &c); /* Llama 4 Maverick */
    assert_true(c.intermediate_size == 96 && c.shared_intermediate_size == c.moe_intermediate_size);
    assert_true(c.layer[0].mlp == IV_MLP_DENSE && c.layer[1].mlp == IV_MLP_EXPERTS && c.router_scales_inputs);
    assert_true(c.layer[0].window == -32 && c.layer[1].window == 0 && c.sliding_window == 32);
    const iv_rope_config *none = &c.ropes[c.layer[1].rope];
    assert_true(none->kind == IV_ROPE_NONE && none->query_shift == 1 && none->original_positions == 8192);
    expect_error(
        "known", parse_edit("llama", "{\"model_type\":\"laguna\"}", &c, &err), &err, IV_UNSUPPORTED,
        "model_type 'laguna' is not supported: it needs gates of attention's output by softplus, numbers of heads by "
        "layer (supported: qwen3, ");
#define MUSE                                                                                              \
    "{\"model_type\":\"muse_glimmer_text\",\"layer_types\":[\"sliding_attention\",\"sliding_attention\"," \
    "\"sliding_attention\",\"full_attention\"],\"layer_rope_theta\":[1e4,1e4,1e4,0],\"sliding_window\":32"
    parse_ok("llama", MUSE "}", &c);
    assert_true(c.embedding_norm && c.final_norm_plain && c.post_norm_eps == 1e-8 && c.unit_offset_norms);
    assert_true(c.qk_norm_plain && !c.qk_norm_behind && c.layer[0].attention_gate && c.logits_cap == 20);
    assert_true(c.ropes[c.layer[3].rope].kind == IV_ROPE_NONE && c.layer[3].window == 0);
    parse_ok("llama", MUSE ",\"qk_scale_factor\":2,\"output_multiplier\":0.25,\"post_norm_eps\":1e-3}", &c);
    assert_true(c.attention_scale == 2 / sqrt((double)c.head_dim) && c.logits_divisor == 4 && c.post_norm_eps == 1e-3);
    expect_error("no list", parse_edit("llama", "{\"model_type\":\"muse_glimmer_text\"}", &c, &err), &err, IV_FORMAT,
                 "layer_types: wanted an array, found nothing");
    static const char *const of_muse[] = {"{\"qk_scale_factor\":2}", "{\"output_multiplier\":0.5}",
                                          "{\"post_norm_eps\":1e-3}"};
    for (size_t i = 0; i < 3; i++) /* other families refuse what they do not read */
        assert_int_equal(parse_edit("llama", of_muse[i], &c, &err), IV_UNSUPPORTED);
    parse_ok("llama", "{\"model_type\":\"granite_swa\",\"sliding_window\":32,\"layer_rope_theta\":[0,1e4,1e4,1e4]}",
             &c);
    assert_true(c.attention_sinks && c.layer[0].window == 0 && c.layer[1].window == 32 && c.layer[0].rope == 1);
    assert_true(c.ropes[1].kind == IV_ROPE_NONE && c.ropes[0].theta == 1e4);
    expect_error("thetas",
                 parse_edit("llama", "{\"model_type\":\"granite_swa\",\"layer_rope_theta\":[0,1e4,2e4,1e4]}", &c, &err),
                 &err, IV_UNSUPPORTED, "layer_rope_theta[2]: wanted 10000 as in other layers, or 0, found 20000");
    parse_ok("llama",
             "{\"model_type\":\"cohere2\",\"logit_scale\":0.25,\"layer_norm_eps\":1e-4,\"sliding_window\":64,"
             "\"sliding_window_pattern\":2,\"position_embedding_type\":\"rope_gptj\",\"rotary_pct\":1.0,"
             "\"use_parallel_block\":true,\"use_gated_activation\":true}",
             &c); /* Command A */
    assert_true(c.layer_norm && c.rms_norm_eps == 1e-4 && c.logits_divisor == 4 && c.ropes[0].neighbours);
    assert_true(c.layer[0].norms == IV_NORMS_SHARED && c.layer[0].window == 64 && c.layer[0].rope == 0);
    assert_true(c.layer[1].window == 0 && c.ropes[c.layer[1].rope].kind == IV_ROPE_NONE);
    parse_ok("llama",
             "{\"model_type\":\"olmo3\",\"rope_theta\":500000,\"sliding_window\":64,\"rope_scaling\":{\"rope_type\":"
             "\"yarn\",\"factor\":8,\"original_max_position_embeddings\":64}}",
             &c); /* Olmo-3-7B: the scaling is of the layers that see all positions */
    assert_true(c.rope_count == 2 && c.ropes[1].kind == IV_ROPE_DEFAULT && c.layer[0].rope == 1);
    parse_ok("qwen3_moe", "{\"use_qk_norm\":true,\"qkv_bias\":false}", &c); /* Qwen3-Coder-480B-A35B */
}

/* Both spellings of heads of two sizes are one model, and what is not implemented is refused. */
static void gemma4(void **state) {
    (void)state;
    static const char *const spellings[] = {"config.json", "config_published_form.json"};
    uint8_t digest[2][32];
    iv_model_config c;
    iv_error err;
    for (size_t i = 0; i < 2; i++) {
        char path[4400];
        iv_buf text = {0};
        snprintf(path, sizeof path, "%s/tests/data/families/gemma4_text_a/%s", INVAR_SOURCE_DIR, spellings[i]);
        ASSERT_OK(iv_file_read(path, 1 << 20, &text, &err), &err);
        ASSERT_OK(iv_model_config_parse("c", text.data, text.len, &c, &err), &err);
        iv_digest *d = iv_digest_new();
        iv_config_describe(&c, d), iv_digest_finish(d, digest[i]);
        iv_buf_free(&text);
    }
    assert_memory_equal(digest[0], digest[1], sizeof digest[0]);
    assert_true(c.layer[3].wide && c.layer[3].values_are_keys && !c.layer[0].wide && c.layer[0].window == 8);
    assert_true(iv_config_head_dim(&c, 3) == 16 && iv_config_kv_heads(&c, 3) == 1 && c.ropes[0].head_dim == 16);
    assert_true(c.ropes[0].kind == IV_ROPE_PROPORTIONAL && c.ropes[0].rotated == 4 && c.layer[0].rope == 1);
    static const struct {
        const char *edit, *message;
    } refused[] = {
        {"{}", "hidden_size_per_layer_input: wanted 0, found 256, which is meant when it is absent"},
        {"{\"hidden_size_per_layer_input\":64}", "hidden_size_per_layer_input: wanted 0, found 64"},
        {"{\"hidden_size_per_layer_input\":0,\"num_kv_shared_layers\":1}", "num_kv_shared_layers: wanted 0"},
        {"{\"hidden_size_per_layer_input\":0,\"use_bidirectional_attention\":\"all\"}", "wanted null or \"vision\""},
        {"{\"hidden_size_per_layer_input\":0,\"per_layer_config\":{\"0\":{\"head_dim\":32}}}",
         "per_layer_config.0: wanted a layer of full_attention"},
        {"{\"hidden_size_per_layer_input\":0,\"per_layer_config\":{\"1\":{\"window\":32}}}",
         "per_layer_config.1.window is not supported"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char edit[300];
        snprintf(edit, sizeof edit, "{\"model_type\":\"gemma4_text\",\"sliding_window\":32%s%s",
                 refused[i].edit[1] == '}' ? "" : ",", refused[i].edit + 1);
        expect_error(edit, parse_edit("llama", edit, &c, &err), &err, IV_UNSUPPORTED, refused[i].message);
    }
}

static void what_is_not_a_config_is_named(void **state) {
    (void)state;
    scratch s;
    iv_model_config c;
    iv_error err;
    scratch_open(&s);
    expect_error("none", iv_model_config_read(s.dir, &c, &err), &err, IV_NOT_FOUND, "config.json: cannot open");
    scratch_write(&s, "config.json", "[]", 2);
    expect_error("array", iv_model_config_read(s.dir, &c, &err), &err, IV_FORMAT, "config.json: wanted an object");
    scratch_write(&s, "config.json", base, sizeof base - 2);
    expect_error("cut", iv_model_config_read(s.dir, &c, &err), &err, IV_FORMAT, "not valid JSON");
    assert_int_equal(truncate(scratch_path(&s, "config.json"), (off_t)IV_CONFIG_BYTES_MAX + 1), 0);
    expect_error("large", iv_model_config_read(s.dir, &c, &err), &err, IV_LIMIT, "4194305 bytes");
    assert_int_equal(unlink(scratch_path(&s, "config.json")), 0);
    assert_int_equal(mkdir(scratch_path(&s, "config.json"), 0777), 0);
    expect_error("dir", iv_model_config_read(s.dir, &c, &err), &err, IV_IO, "found a directory");
    scratch_close(&s);
}

static void real_configs(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        const char *family;
        int64_t hidden, layers, heads, kv_heads, head_dim, vocab, positions, experts;
        double theta, eps;
        iv_rope_kind rope;
        bool tied;
    } want[] = {
        {"tests/data/hf/llama31", "llama", 128, 2, 8, 4, 16, 512, 4096, 0, 500000, 1e-5, IV_ROPE_LLAMA3, false},
        {"tests/data/hf/mistral_v03", "mistral", 128, 2, 8, 4, 16, 512, 4096, 0, 1e6, 1e-5, IV_ROPE_DEFAULT, false},
        {"tests/data/hf/qwen2", "qwen2", 128, 2, 8, 4, 16, 512, 4096, 0, 1e6, 1e-6, IV_ROPE_DEFAULT, true},
        {"tests/data/hf/qwen3", "qwen3", 128, 2, 8, 4, 32, 512, 4096, 0, 1e6, 1e-6, IV_ROPE_DEFAULT, true},
        {"tests/data/hf/qwen3_moe", "qwen3_moe", 128, 2, 8, 4, 16, 512, 4096, 8, 1e6, 1e-6, IV_ROPE_DEFAULT, false},
        {"models/stories15m", "llama", 288, 6, 6, 6, 48, 32000, 256, 0, 10000, 1e-5, IV_ROPE_DEFAULT, true},
        {"models/tiny-math", "qwen3", 256, 6, 8, 4, 32, 1024, 2048, 0, 10000, 1e-6, IV_ROPE_DEFAULT, true},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const char *dir = data_path(want[i].dir);
        if (!dir) {
            printf("SKIPPED: %s is missing (set INVAR_SHARED)\n", want[i].dir);
            continue;
        }
        iv_model_config c;
        iv_error err;
        ASSERT_OK(iv_model_config_read(dir, &c, &err), &err);
        assert_string_equal(c.model_type, want[i].family);
        assert_int_equal(c.hidden_size, want[i].hidden);
        assert_int_equal(c.layers, want[i].layers);
        assert_int_equal(c.heads, want[i].heads);
        assert_int_equal(c.kv_heads, want[i].kv_heads);
        assert_int_equal(c.head_dim, want[i].head_dim);
        assert_int_equal(c.vocab_size, want[i].vocab);
        assert_int_equal(c.max_positions, want[i].positions);
        assert_int_equal(c.experts, want[i].experts);
        assert_int_equal(c.ropes[0].kind, want[i].rope);
        assert_true(c.ropes[0].theta == want[i].theta && c.rms_norm_eps == want[i].eps);
        assert_int_equal(c.tie_embeddings, want[i].tied);
        assert_true(c.has_dtype && c.dtype == IV_BF16 && c.sliding_window == 0);
        if (c.experts) assert_true(c.experts_per_token == 2 && c.moe_intermediate_size == 64 && c.norm_topk_prob);
    }
}

/* Python writes numbers that JSON does not have: they matter only where they are read. */
static void words_of_python(void **state) {
    (void)state;
    iv_model_config c;
    iv_error err;
    static const char *const ignored[] = {"\"time_step_limit\":[0.0,Infinity]",
                                          "\"x\":{\"y\":NaN,\"z\":\"NaN, Infinity\"}", "\"x\" : -Infinity "};
    static const struct {
        const char *more, *message;
    } read[] = {
        {"\"rms_norm_eps\":NaN",
         "c: rms_norm_eps: wanted a number from 1e-30 to 1, found NaN, which JSON does not have"},
        {"\"max_position_embeddings\":Infinity", "found Infinity, which JSON does not have"},
        {"\"hidden_act\":NaN", "c: hidden_act: wanted a string, found NaN, which JSON does not have"},
        {"\"eos_token_id\":[-Infinity]", "c: eos_token_id[0]: wanted an integer"},
        {"\"rope_scaling\":Infinity", "found Infinity"},
        {"\"x\":1,\"x\":2", "one object has a key twice: duplicate object key near '\"x\"'"},
        {"\"x\":Infinite", "not valid JSON: invalid token near 'Infinite'"},
        {"\"x\":NaN,\"y\":nan", "not valid JSON"},
    };
    char json[1000];
    static const char rest[] =
        "\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":64,\"intermediate_size\":128,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4";
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        snprintf(json, sizeof json, "{%s,\"max_position_embeddings\":512,%s}", rest, ignored[i]);
        ASSERT_OK(iv_model_config_parse("c", json, strlen(json), &c, &err), &err);
    }
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
        bool positions = strstr(read[i].more, "max_position") != NULL;
        snprintf(json, sizeof json, "{%s%s,%s}", rest, positions ? "" : ",\"max_position_embeddings\":512",
                 read[i].more);
        assert_int_equal(iv_model_config_parse("c", json, strlen(json), &c, &err), IV_FORMAT);
        if (!strstr(err.message, read[i].message)) fail_msg("%s: %s", read[i].more, err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(words_of_python),
                                       cmocka_unit_test(family_defaults),
                                       cmocka_unit_test(kv_heads_absent_and_null),
                                       cmocka_unit_test(biases),
                                       cmocka_unit_test(numbers_may_be_spelled_as_reals),
                                       cmocka_unit_test(both_spellings_of_rope),
                                       cmocka_unit_test(which_layers_slide),
                                       cmocka_unit_test(which_layers_have_experts),
                                       cmocka_unit_test(token_ids_and_dtype),
                                       cmocka_unit_test(bad_fields_are_named),
                                       cmocka_unit_test(members_that_change_the_arithmetic_are_refused),
                                       cmocka_unit_test(members_of_related_families),
                                       cmocka_unit_test(gemma4),
                                       cmocka_unit_test(what_is_not_a_config_is_named),
                                       cmocka_unit_test(real_configs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
