/* generation_config.json: everything optional, everything in range. */
#include "scratch.h"
#include "format/generation_config.h"

static iv_status parse(const char *json, iv_generation_config *g, iv_error *err) {
    return iv_generation_config_parse("g", json, strlen(json), g, err);
}

static void every_field(void **state) {
    (void)state;
    iv_generation_config g;
    iv_error err;
    ASSERT_OK(parse("{\"do_sample\":true,\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,\"min_p\":0,"
                    "\"repetition_penalty\":1.05,\"max_new_tokens\":2048,\"max_length\":32768,\"bos_token_id\":1,"
                    "\"pad_token_id\":0,\"eos_token_id\":[151645,151643],\"transformers_version\":\"4.51.0\"}",
                    &g, &err),
              &err);
    assert_true(g.has_do_sample && g.do_sample);
    assert_true(g.has_temperature && g.temperature == 0.6);
    assert_true(g.has_top_k && g.top_k == 20);
    assert_true(g.has_top_p && g.top_p == 0.95);
    assert_true(g.has_min_p && g.min_p == 0);
    assert_true(g.has_repetition_penalty && g.repetition_penalty == 1.05);
    assert_true(g.has_max_new_tokens && g.max_new_tokens == 2048);
    assert_true(g.has_max_length && g.max_length == 32768);
    assert_true(g.has_bos && g.bos_id == 1 && g.has_pad && g.pad_id == 0);
    assert_true(g.has_eos && g.eos_count == 2 && g.eos_ids[0] == 151645 && g.eos_ids[1] == 151643);
}

static void top_k_is_off_by_zero_or_minus_one(void **state) {
    (void)state;
    static const char *const off[] = {"{\"top_k\":0}", "{\"top_k\":-1}"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        iv_generation_config g;
        iv_error err;
        ASSERT_OK(parse(off[i], &g, &err), &err);
        assert_true(g.has_top_k && g.top_k == 0);
    }
}

static void nothing_is_required(void **state) {
    (void)state;
    static const iv_generation_config none;
    static const char *const empty[] = {"{}",
                                        "{\"eos_token_id\":-1}",
                                        "{\"eos_token_id\":[]}",
                                        "{\"temperature\":null,\"eos_token_id\":null,\"bos_token_id\":null}",
                                        "{\"unknown\":[1,2]}",
                                        "{\"pad_token_id\":-1}"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        iv_generation_config g;
        iv_error err;
        ASSERT_OK(parse(empty[i], &g, &err), &err);
        assert_memory_equal(&g, &none, sizeof g);
    }
}

/* Settings that transformers applies and invar does not are listed, unless they are neutral. */
static void unapplied(void **state) {
    (void)state;
    static const struct {
        const char *json, *lines;
    } cases[] = {
        {"{\"no_repeat_ngram_size\":3}", "no_repeat_ngram_size 3"},
        {"{\"no_repeat_ngram_size\":0,\"num_beams\":1,\"typical_p\":1.0,\"suppress_tokens\":[],\"bad_words_ids\":null,"
         "\"guidance_scale\":1,\"length_penalty\":1.0,\"remove_invalid_values\":false,\"transformers_version\":\"5\","
         "\"use_cache\":true,\"output_scores\":true,\"epsilon_cutoff\":0.0}",
         ""},
        {"{\"typical_p\":0.9,\"num_beams\":4,\"suppress_tokens\":[1,2],\"begin_suppress_tokens\":[220],\"penalty_"
         "alpha\":0.6,"
         "\"forced_eos_token_id\":2,\"bad_words_ids\":[[1,2],[3]],\"encoder_repetition_penalty\":1.2,\"max_time\":NaN}",
         "max_time NaN\nnum_beams 4\ntypical_p 0.9\nencoder_repetition_penalty 1.2\nbad_words_ids [[1,2],[3]]\n"
         "suppress_tokens [1,2]\nbegin_suppress_tokens [220]\nforced_eos_token_id 2\npenalty_alpha 0.6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_generation_config g;
        iv_error err;
        ASSERT_OK(parse(cases[i].json, &g, &err), &err);
        assert_string_equal(g.unapplied, cases[i].lines);
    }
}

static void bad_values_are_named(void **state) {
    (void)state;
    static const struct {
        const char *json;
        iv_status status;
        const char *text;
    } bad[] = {
        {"", IV_FORMAT, "not valid JSON"},
        {"[]", IV_FORMAT, "wanted an object, found array"},
        {"{\"do_sample\":1}", IV_FORMAT, "do_sample: wanted true or false, found 1"},
        {"{\"temperature\":-0.1}", IV_FORMAT, "temperature: wanted a number from 0 to 100"},
        {"{\"temperature\":101}", IV_FORMAT, "found 101"},
        {"{\"temperature\":\"hot\"}", IV_FORMAT, "found string"},
        {"{\"temperature\":NaN}", IV_FORMAT, "found NaN, which JSON does not have"},
        {"{\"temperature\":1e999}", IV_FORMAT, "not valid JSON"},
        {"{\"top_k\":-2}", IV_FORMAT, "top_k: wanted an integer from -1"},
        {"{\"top_k\":1.5}", IV_FORMAT, "found 1.5"},
        {"{\"top_p\":1.1}", IV_FORMAT, "top_p: wanted a number from 0 to 1"},
        {"{\"top_p\":0}", IV_FORMAT, "top_p: wanted a number above 0, found 0"},
        {"{\"min_p\":-1}", IV_FORMAT, "min_p"},
        {"{\"repetition_penalty\":0}", IV_FORMAT, "repetition_penalty: wanted a number above 0"},
        {"{\"max_new_tokens\":0}", IV_FORMAT, "max_new_tokens: wanted an integer from 1"},
        {"{\"max_length\":[]}", IV_FORMAT, "max_length"},
        {"{\"bos_token_id\":-2}", IV_FORMAT, "bos_token_id"},
        {"{\"eos_token_id\":-2}", IV_FORMAT, "eos_token_id: wanted an integer from -1"},
        {"{\"eos_token_id\":[1,16777216]}", IV_FORMAT, "eos_token_id[1]"},
        {"{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", IV_LIMIT, "17 entries, at most 16"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        iv_generation_config g;
        iv_error err;
        expect_error(bad[i].json, parse(bad[i].json, &g, &err), &err, bad[i].status, bad[i].text);
    }
}

static void the_file_is_optional(void **state) {
    (void)state;
    static const iv_generation_config none;
    scratch s;
    iv_generation_config g;
    iv_error err;
    scratch_open(&s);
    ASSERT_OK(iv_generation_config_read(s.dir, &g, &err), &err);
    assert_memory_equal(&g, &none, sizeof g);
    scratch_write(&s, "generation_config.json", "{\"top_k\":3}", 11);
    ASSERT_OK(iv_generation_config_read(s.dir, &g, &err), &err);
    assert_true(g.has_top_k && g.top_k == 3);
    scratch_write(&s, "generation_config.json", "{", 1);
    expect_error("bad", iv_generation_config_read(s.dir, &g, &err), &err, IV_FORMAT, "generation_config.json:1:1");
    assert_int_equal(unlink(scratch_path(&s, "generation_config.json")), 0);
    assert_int_equal(mkdir(scratch_path(&s, "generation_config.json"), 0777), 0);
    expect_error("dir", iv_generation_config_read(s.dir, &g, &err), &err, IV_IO, "found a directory");
    scratch_close(&s);
}

static void real_files(void **state) {
    (void)state;
    iv_generation_config g;
    iv_error err;
    ASSERT_OK(iv_generation_config_read(source_path("models/tiny-math"), &g, &err), &err);
    assert_true(g.has_do_sample && g.do_sample && g.temperature == 0.6 && g.top_k == 20 && g.top_p == 0.95);
    assert_true(g.eos_count == 1 && g.eos_ids[0] == 688 && g.pad_id == 686 && !g.has_bos && !g.has_min_p);
    ASSERT_OK(iv_generation_config_read(source_path("tests/data/hf/qwen3"), &g, &err), &err);
    assert_true(!g.has_eos && !g.has_temperature);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field),         cmocka_unit_test(top_k_is_off_by_zero_or_minus_one),
        cmocka_unit_test(nothing_is_required), cmocka_unit_test(bad_values_are_named),
        cmocka_unit_test(unapplied),           cmocka_unit_test(the_file_is_optional),
        cmocka_unit_test(real_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
