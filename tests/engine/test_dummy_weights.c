/* Engines over dummy weights: a config.json is enough for every family; the tensors are those of a real checkpoint;
 * every execution gives the same bits; another seed is another model. */
#include "made_model.h"
#include "base/arena.h"
#include "model/tensors.h"

static const char *const families[] = {"qwen3", "qwen3_moe", "qwen2", "llama31", "mistral_v03"};
enum { FAMILY_COUNT = sizeof families / sizeof *families, VOCAB_MAX = 1024 };
static const int32_t prompt[] = {1, 200, 3, 77, 5, 6, 7, 99, 9};

/* A directory with only tests/data/hf/NAME/config.json. */
static void config_alone(scratch *s, const char *name) {
    char file[4200];
    iv_buf config = {0};
    iv_error err;
    scratch_open(s);
    snprintf(file, sizeof file, "%s/%s/config.json", source_path("tests/data/hf"), name);
    ASSERT_OK(iv_file_read(file, 1 << 16, &config, &err), &err);
    scratch_write(s, "config.json", config.data, config.len);
    iv_buf_free(&config);
}

static iv_engine_options dummy_options(const char *dir) {
    iv_engine_options o = made_options(dir);
    o.load_format = "dummy", o.max_num_batched_tokens = 4;
    return o;
}

static answer *answer_with(const iv_engine_options *o, char fingerprint[128]) {
    iv_engine *e = open_with(o);
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    snprintf(fingerprint, 128, "%s", info.fingerprint);
    iv_request r = ask_ids(e, prompt, sizeof prompt / sizeof *prompt, 12);
    r.temperature = 1;
    answer *a = answer_to(e, &r);
    iv_engine_close(e);
    return a;
}

static void families_without_files(void **state) {
    (void)state;
    for (size_t i = 0; i < FAMILY_COUNT; i++)
        for (int arithmetic = 0; arithmetic < 2; arithmetic++) {
            scratch s;
            char one[128], other[128];
            config_alone(&s, families[i]);
            iv_engine_options o = dummy_options(s.dir);
            o.arithmetic = arithmetic ? "tc16" : "fma32";
            answer *want = answer_with(&o, one);
            assert_int_equal(want->count, 12);
            o.threads = 2, o.max_num_batched_tokens = 64, o.tensor_parallel_size = 2, o.isa = "scalar";
            answer *got = answer_with(&o, other);
            assert_string_equal(one, other);
            assert_same_answer(families[i], want, got);
            answers_free(got, 1);
            o.dummy_seed = 1;
            got = answer_with(&o, other);
            assert_string_not_equal(one, other);
            assert_string_not_equal(want->digest, got->digest);
            answers_free(want, 1), answers_free(got, 1);
            scratch_close(&s);
        }
}

/* Names, types and shapes are those of the families' checkpoints. */
static void tensors_are_the_checkpoints(void **state) {
    (void)state;
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        char dir[4200];
        iv_model_config config;
        iv_checkpoint *real, *dummy;
        iv_error err;
        snprintf(dir, sizeof dir, "%s/%s", source_path("tests/data/hf"), families[i]);
        ASSERT_OK(iv_model_config_read(dir, &config, &err), &err);
        ASSERT_OK(iv_checkpoint_open(dir, &real, &err), &err);
        ASSERT_OK(iv_tensors_dummy(&config, iv_checkpoint_at(real, 0)->dtype, 0, &dummy, &err), &err);
        assert_int_equal(iv_checkpoint_count(dummy), iv_checkpoint_count(real));
        for (size_t k = 0; k < iv_checkpoint_count(real); k++) {
            const iv_tensor_info *want = iv_checkpoint_at(real, k), *got = iv_checkpoint_at(dummy, k);
            assert_string_equal(got->name, want->name);
            assert_int_equal(got->dtype, want->dtype), assert_int_equal(got->ndim, want->ndim);
            assert_memory_equal(got->shape, want->shape, (size_t)want->ndim * sizeof *want->shape);
        }
        iv_checkpoint_close(real), iv_checkpoint_close(dummy);
    }
}

/* Real files next to the configuration are not read. */
static void files_are_ignored(void **state) {
    (void)state;
    made_model m;
    scratch s;
    char alone[128], with_files[128], real[128];
    made_open(&m, "qwen3");
    config_alone(&s, "qwen3");
    iv_engine_options o = dummy_options(s.dir);
    answer *want = answer_with(&o, alone);
    o.model = made_write(&m);
    answer *got = answer_with(&o, with_files);
    assert_string_equal(alone, with_files);
    assert_same_answer("next to files", want, got);
    answers_free(got, 1);
    o.load_format = "auto";
    got = answer_with(&o, real);
    assert_string_not_equal(alone, real);
    answers_free(want, 1), answers_free(got, 1);
    scratch_close(&s);
    made_close(&m);
}

static void held_in_another_type(void **state) {
    (void)state;
    scratch s;
    char name[128];
    config_alone(&s, "qwen3");
    iv_engine_options o = dummy_options(s.dir);
    o.dtype = "float16";
    answers_free(answer_with(&o, name), 1);
    assert_non_null(strstr(name, "float16"));
    o.dtype = "float32";
    answers_free(answer_with(&o, name), 1);
    assert_non_null(strstr(name, "float32"));
    scratch_close(&s);
}

static void refusals(void **state) {
    (void)state;
    scratch s;
    iv_engine *e = NULL;
    iv_error err;
    config_alone(&s, "qwen3");
    iv_engine_options o = made_options(s.dir);
    expect_error("auto", iv_engine_open(&o, &e, &err), &err, IV_NOT_FOUND, "found neither");
    o.load_format = "gguf";
    expect_error("gguf", iv_engine_open(&o, &e, &err), &err, IV_INVALID,
                 "load_format: wanted auto or dummy, found 'gguf'");
    static const char *const parts[] = {"{\"model_type\": \"llama\", \"hidden_size\": 16, \"intermediate_size\": 16,",
                                        "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"vocab_size\": 9,",
                                        "\"max_position_embeddings\": 64, \"dtype\": \"float64\"}"};
    char config[400];
    snprintf(config, sizeof config, "%s%s%s", parts[0], parts[1], parts[2]);
    scratch_write(&s, "config.json", config, strlen(config));
    o.load_format = "dummy";
    expect_error("float64", iv_engine_open(&o, &e, &err), &err, IV_UNSUPPORTED,
                 "config.json: dtype: wanted bfloat16, float16 or float32 for dummy weights, found float64");
    assert_null(e);
    scratch_close(&s);
}

/* The shapes of the benchmarks have the parameter counts that their authors publish. */
static void benchmark_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double billions;
    } shapes[] = {{"qwen3-8b", 8.19}, {"qwen3-32b", 32.76}, {"qwen3-30b-a3b", 30.53}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char dir[4200];
        iv_model_config config;
        iv_checkpoint *c;
        iv_error err;
        snprintf(dir, sizeof dir, "%s/%s", source_path("bench/gpu/configs"), shapes[i].name);
        ASSERT_OK(iv_model_config_read(dir, &config, &err), &err);
        ASSERT_OK(iv_tensors_dummy(&config, IV_BF16, 0, &c, &err), &err);
        double billions = (double)iv_checkpoint_bytes(c) / 2e9;
        if (fabs(billions - shapes[i].billions) > 0.01)
            fail_msg("%s: %.3f billion parameters, wanted %.2f", shapes[i].name, billions, shapes[i].billions);
        iv_checkpoint_close(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_without_files),
        cmocka_unit_test(tensors_are_the_checkpoints),
        cmocka_unit_test(files_are_ignored),
        cmocka_unit_test(held_in_another_type),
        cmocka_unit_test(refusals),
        cmocka_unit_test(benchmark_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
