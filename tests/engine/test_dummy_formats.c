/* Dummy weights of a configuration with quantization_config: packed as its files would have them, distributed as plain
 * ones, the same packed and expanded, for any ranks; another seed is another model. */
#include "made_model.h"
#include "base/arena.h"
#include "model/tensors.h"

#include <jansson.h>
#include <math.h>

static const char *const formats[] = {"awq",
                                      "ct_float_block",
                                      "ct_float_channel",
                                      "ct_float_tensor",
                                      "ct_int_asymmetric",
                                      "ct_int_channel",
                                      "ct_mxfp4",
                                      "ct_mxfp8",
                                      "ct_nvfp4",
                                      "ct_pack4",
                                      "ct_pack4_asymmetric",
                                      "ct_pack4_channel",
                                      "ct_pack8",
                                      "ct_pack8_asymmetric",
                                      "fp8_block",
                                      "fp8_tensor",
                                      "gptq4",
                                      "gptq8",
                                      "modelopt_nvfp4",
                                      "packed_models/gpt_oss_mxfp4_a"};
enum { FORMATS = sizeof formats / sizeof *formats };
static const int32_t prompt[] = {1, 200, 3, 77, 5, 6, 7, 99, 9};

/* Qwen3's configuration with the quantization_config of tests/data/packed/NAME, or a whole one. */
static void config_of(scratch *s, const char *name) {
    char file[4200], base[4200];
    bool whole = strchr(name, '/') != NULL;
    snprintf(file, sizeof file, "%s/%s%s/config.json", source_path("tests/data"), whole ? "" : "packed/", name);
    snprintf(base, sizeof base, "%s/hf/qwen3/config.json", source_path("tests/data"));
    json_t *given = json_load_file(file, 0, NULL), *config = whole ? json_incref(given) : json_load_file(base, 0, NULL);
    assert_true(given && config);
    json_t *quantization = json_object_get(given, "quantization_config");
    assert_non_null(quantization);
    json_object_set(config, "quantization_config", quantization);
    scratch_open(s);
    assert_int_equal(json_dump_file(config, scratch_path(s, "config.json"), 0), 0);
    json_decref(given), json_decref(config);
}

/* Every packed tensor has the deviation of plain dummy weights, 0.0203. */
static void check_values(const scratch *s, const char *name) {
    iv_model_config config;
    iv_checkpoint *c;
    iv_error err;
    size_t packed = 0, bytes;
    ASSERT_OK(iv_model_config_read(s->dir, &config, &err), &err);
    ASSERT_OK(iv_tensors_dummy_of(s->dir, &config, IV_BF16, IV_BF16, 7, &c, &err), &err);
    for (size_t i = 0; i < iv_checkpoint_count(c); i++) {
        const iv_tensor_info *t = iv_checkpoint_at(c, i);
        uint16_t *x = malloc(t->bytes);
        double sum = 0, squares = 0;
        if (iv_checkpoint_format(c, i, &bytes)) {
            packed++;
            assert_true(bytes < t->bytes * 3 / 4);
            ASSERT_OK(iv_checkpoint_read(c, t, x, 0, t->bytes, &err), &err);
            for (size_t k = 0; k < t->elements; k++) {
                double v = (double)iv_bf16_to_f32(x[k]);
                sum += v, squares += v * v;
            }
            double n = (double)t->elements, deviation = sqrt(squares / n);
            if (!(fabs(sum / n) < 0.006 && deviation > 0.014 && deviation < 0.027))
                fail_msg("%s: %s: mean %g, deviation %g", name, t->name, sum / n, deviation);
        }
        free(x);
    }
    assert_true(packed >= (strchr(name, '/') ? 4 : 14));
    assert_true(iv_checkpoint_stored_bytes(c) < iv_checkpoint_bytes(c));
    iv_checkpoint_close(c);
}

static answer *answer_with(const iv_engine_options *o, char fingerprint[128]) {
    iv_engine *e = open_with(o);
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    snprintf(fingerprint, 128, "%s", info.fingerprint);
    iv_request r = ask_ids(e, prompt, sizeof prompt / sizeof *prompt, 8);
    r.temperature = 1;
    answer *a = answer_to(e, &r);
    iv_engine_close(e);
    return a;
}

static void every_format(void **state) {
    (void)state;
    for (size_t i = 0; i < FORMATS; i++) {
        scratch s;
        char one[128], other[128];
        config_of(&s, formats[i]);
        check_values(&s, formats[i]);
        iv_engine_options o = made_options(s.dir);
        o.load_format = "dummy", o.weights = "packed";
        answer *want = answer_with(&o, one);
        assert_int_equal(want->count, 8);
        o.weights = "expanded", o.threads = 2;
        answer *got = answer_with(&o, other);
        assert_string_equal(one, other);
        assert_same_answer(formats[i], want, got);
        answers_free(got, 1);
        o.weights = "packed", o.tensor_parallel_size = 2;
        got = answer_with(&o, other);
        assert_string_equal(one, other);
        assert_same_answer(formats[i], want, got);
        answers_free(got, 1);
        o.dummy_seed = 1;
        got = answer_with(&o, other);
        assert_string_not_equal(one, other);
        answers_free(want, 1), answers_free(got, 1);
        scratch_close(&s);
    }
}

/* Parts of bytes are those of the whole. */
static void any_range(void **state) {
    (void)state;
    rng r = rng_start("dummy formats");
    for (size_t i = 0; i < FORMATS; i++) {
        scratch s;
        iv_model_config config;
        iv_checkpoint *c;
        iv_error err;
        config_of(&s, formats[i]);
        ASSERT_OK(iv_model_config_read(s.dir, &config, &err), &err);
        ASSERT_OK(iv_tensors_dummy_of(s.dir, &config, IV_BF16, IV_F32, 7, &c, &err), &err);
        for (size_t k = 0; k < 8; k++) {
            const iv_tensor_info *t = iv_checkpoint_at(c, rng_below(&r, (uint32_t)iv_checkpoint_count(c)));
            size_t at = rng_below(&r, (uint32_t)t->bytes), n = rng_below(&r, (uint32_t)(t->bytes - at)) + 1;
            unsigned char *whole = malloc(t->bytes), *part = malloc(n);
            ASSERT_OK(iv_checkpoint_read(c, t, whole, 0, t->bytes, &err), &err);
            ASSERT_OK(iv_checkpoint_read(c, t, part, at, n, &err), &err);
            assert_memory_equal(part, whole + at, n);
            free(whole), free(part);
        }
        iv_checkpoint_close(c);
        scratch_close(&s);
    }
}

/* Groups that do not divide the rows are refused as those of files. */
static void groups_that_do_not_fit(void **state) {
    (void)state;
    scratch s;
    iv_engine *e = NULL;
    iv_error err;
    config_of(&s, "ct_pack4");
    json_t *config = json_load_file(scratch_path(&s, "config.json"), 0, NULL), *group;
    const char *key;
    json_object_foreach(json_object_get(json_object_get(config, "quantization_config"), "config_groups"), key, group) {
        json_object_set_new(json_object_get(group, "weights"), "group_size", json_integer(0));
    }
    assert_int_equal(json_dump_file(config, scratch_path(&s, "config.json"), 0), 0);
    json_decref(config);
    iv_engine_options o = made_options(s.dir);
    o.load_format = "dummy";
    assert_int_not_equal(iv_engine_open(&o, &e, &err), IV_OK);
    assert_non_null(strstr(err.message, "group_size"));
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_format), cmocka_unit_test(any_range),
                                       cmocka_unit_test(groups_that_do_not_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
