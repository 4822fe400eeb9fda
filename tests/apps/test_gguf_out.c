/* GGUF files that invar writes: every family whose GGUF is read has its logits again, blocks are those of the gguf
 * package, tokenizer and template come back; what a GGUF would not give back is refused by name. */
#include "program.h"

static size_t logits_of(const char *model, char *out) {
    RUN("logits", model, "--ids", "1,5,7,9,11,2", "--dtype", "bfloat16", "--out", in_folder("logits"));
    expect_ok();
    return read_back("logits", out);
}

/* A copy of a family's directory, which may be changed. */
static const char *copy_of(const char *name) {
    char command[16384], path[128];
    snprintf(path, sizeof path, "tests/data/families/%s", name);
    snprintf(command, sizeof command, "mkdir -p '%s' && cp -r '%s'/* '%s' && chmod -R u+w '%s'", in_folder(name),
             source_path(path), in_folder(name), in_folder(name));
    assert_int_equal(system(command), 0);
    return in_folder(name);
}

/* Without the settings of added tokens that GGUF has no place for. */
static void plain_tokens(const char *file) {
    static const char *const settings[] = {"single_word", "lstrip", "rstrip", "normalized"};
    json_t *root = json_load_file(in_folder(file), 0, NULL), *token;
    size_t i;
    assert_non_null(root);
    json_array_foreach(json_object_get(root, "added_tokens"), i, token) {
        for (size_t k = 0; k < 4; k++) json_object_set_new(token, settings[k], json_false());
    }
    assert_int_equal(json_dump_file(root, in_folder(file), 0), 0);
    json_decref(root);
}

/* Its layers have the pattern of the family's GGUF files. */
static const char *gemma(void) {
    copy_of("gemma3_text_a");
    plain_tokens("gemma3_text_a/tokenizer.json");
    json_t *config = json_load_file(in_folder("gemma3_text_a/config.json"), 0, NULL);
    assert_non_null(config);
    json_object_del(config, "layer_types");
    assert_int_equal(json_dump_file(config, in_folder("gemma3_text_a/config.json"), 0), 0);
    json_decref(config);
    return in_folder("gemma3_text_a");
}

static const char *mixtral(void) {
    copy_of("mixtral_a");
    plain_tokens("mixtral_a/tokenizer.json");
    return in_folder("mixtral_a");
}

static const char *const families[] = {"hf/llama31",   "hf/qwen2", "hf/qwen3", "hf/mistral_v03",
                                       "hf/qwen3_moe", "mixtral",  "gemma"};
enum { FAMILIES = sizeof families / sizeof *families };

static const char *family(size_t i) {
    char path[64];
    snprintf(path, sizeof path, "tests/data/%s", families[i]);
    if (i + 1 == FAMILIES) return gemma();
    return i + 2 == FAMILIES ? mixtral() : source_path(path);
}

static void every_family_comes_back(void **state) {
    (void)state;
    static char want[OUTPUT_MAX], got[OUTPUT_MAX];
    for (size_t i = 0; i < FAMILIES; i++) {
        char model[4096];
        snprintf(model, sizeof model, "%s", family(i));
        size_t n = logits_of(model, want);
        for (size_t dtype = 0; dtype < 2; dtype++) {
            RUN("export", model, in_folder("f.gguf"), "--overwrite", "--dtype", dtype ? "float32" : "auto");
            if (came.code) fail_msg("%s: %s", families[i], came.err);
            assert_true(n > 1000 && n == logits_of(in_folder("f.gguf"), got));
            if (memcmp(want, got, n) != 0) fail_msg("%s: other logits from its GGUF", families[i]);
        }
    }
}

/* Exit code 77: gguf is not there. */
static void compare_with_oracle(const char *model, const char *file, const char *expanded) {
    char command[32768];
    const char *python = getenv("INVAR_GGUF_PYTHON");
    snprintf(command, sizeof command, "'%s' '%s' '%s' '%s' '%s' >&2", python ? python : "python3",
             source_path("tests/scripts/check_gguf.py"), model, file, expanded);
    int status = system(command);
    if (status == 77 << 8 || status == 127 << 8)
        printf("SKIPPED: gguf: not installed\n");
    else
        assert_int_equal(status, 0);
}

static void blocks_are_those_of_gguf(void **state) {
    (void)state;
    static const char *const formats[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "f16", "bf16", "f32"};
    static const char *const models[] = {"models/tiny-math", "tests/data/hf/mistral_v03"};
    static char want[OUTPUT_MAX], got[OUTPUT_MAX];
    for (size_t m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
            char model[4096], file[64];
            snprintf(model, sizeof model, "%s", source_path(models[m]));
            snprintf(file, sizeof file, "%s.gguf", formats[i]);
            RUN("quantize", model, in_folder(file), "--format", formats[i], "--report-tokens", "0", "--overwrite",
                "--json");
            expect_ok();
            RUN("export", in_folder(file), in_folder("expanded"), "--overwrite", "--dtype", "bfloat16");
            expect_ok();
            size_t n = logits_of(in_folder(file), want);
            assert_true(n == logits_of(in_folder("expanded"), got));
            assert_memory_equal(want, got, n);
            compare_with_oracle(model, in_folder(file), in_folder("expanded"));
        }
}

/* The text of an answer, and the ids of a text with special tokens. */
static void answer(const char *model, char out[4096]) {
    RUN("generate", model, "--chat", "-p", "Compute 10 - 39.", "--temperature", "0", "--top-p", "1", "--top-k", "0");
    expect_ok();
    const char *digest = strstr(came.err, "\ndigest ");
    assert_non_null(digest);
    size_t n = (size_t)snprintf(out, 2048, "%.1000s %.80s", came.out, digest);
    RUN_WITH("<|im_start|>user\nA caf\xc3\xa9 has 12345 chairs,  and\n\n3 tables.<|im_end|>", "tokenize", model,
             "--json");
    expect_ok();
    snprintf(out + n, 4096 - n, " %.1500s", came.out);
}

static void text_comes_back(void **state) {
    (void)state;
    char want[4096], got[4096];
    RUN("export", "tiny-math", in_folder("math.gguf"), "--json");
    expect_ok();
    json_t *root = expect_json();
    assert_int_equal(json_integer_value(json_object_get(root, "files")), 1);
    json_decref(root);
    answer("tiny-math", want), answer(in_folder("math.gguf"), got);
    assert_string_equal(want, got);
    RUN("quantize", "tiny-math", in_folder("math.gguf"), "--format", "q8_0", "--overwrite");
    expect_ok();
    expect_out("43 layers in q8_0, 1 file, 5.31 MB of 9.97 MB (53 %)");
    expect_out("over 256 tokens: KL divergence ");
}

/* SentencePiece's kind, with scores. */
static void scores_come_back(void **state) {
    (void)state;
    static char want[OUTPUT_MAX];
    const char *shared = getenv("INVAR_SHARED");
    char path[4096];
    snprintf(path, sizeof path, "%s/models/stories15m", shared ? shared : INVAR_SOURCE_DIR "/../shared");
    if (access(path, R_OK) != 0) {
        printf("SKIPPED: %s is missing\n", path);
        skip();
    }
    RUN("export", path, in_folder("stories.gguf"));
    expect_ok();
    for (size_t i = 0; i < 2; i++) {
        RUN_WITH("Once upon a time,  there was a <s> caf\xc3\xa9 \xf0\x9f\x98\x80.\n", "tokenize",
                 i ? in_folder("stories.gguf") : path, "--json");
        expect_ok();
        if (i) assert_string_equal(want, came.out);
        snprintf(want, sizeof want, "%s", came.out);
    }
}

static void what_is_refused(void **state) {
    (void)state;
    RUN("quantize", "tiny-math", in_folder("no"), "--format", "q8_0");
    expect_error(1, "format q8_0: wanted a file whose name ends with .gguf, found ");
    RUN("quantize", "tiny-math", in_folder("no.gguf"), "--format", "int4");
    expect_error(1, "format int4: wanted a directory, found ");
    RUN("quantize", "tiny-math", in_folder("no.gguf"), "--format", "q4_k_m");
    expect_error(1, "format q4_k_m is read, not written: wanted fp8, int8,");
    RUN("quantize", "tiny-math", in_folder("no.gguf"), "--format", "q4_0", "--group-size", "64");
    expect_error(1, "group_size: format q4_0 has its own");
    RUN("export", "tiny-math", in_folder("no.gguf"), "--max-shard-size", "1M");
    expect_error(2, "--max-shard-size: a GGUF is written as one file");
    RUN("export", "tiny-math", in_folder("no.gguf"), "--lora", in_folder("none"), "--merge");
    expect_error(1, "no.gguf: an adapter is merged into a directory, which can be exported as GGUF after that");
    write_file("ids.jsonl", "{\"ids\": [1, 2]}\n", 16);
    RUN("quantize", "tiny-math", in_folder("no.gguf"), "--format", "q4_0", "--calibrate", in_folder("ids.jsonl"));
    expect_error(1, "method gptq: format q4_0 is rounded to nearest");
    RUN("quantize", source_path("tests/data/packed_models/qwen3_fp8_a"), in_folder("no.gguf"), "--format", "q8_0");
    expect_error(1, "is stored as fp8: invar export expands a model first");
    RUN("export", source_path("tests/data/families/gemma2_a"), in_folder("no.gguf"));
    expect_error(
        1, "model_type gemma2: GGUF is written for llama, mistral, mixtral, qwen2, qwen3, qwen3_moe and gemma3_text");
    RUN("export", source_path("tests/data/families/gemma3_text_a"), in_folder("no.gguf"));
    expect_error(1, "GGUF has no place for");
    RUN("export", source_path("tests/data/families/mixtral_a"), in_folder("no.gguf"));
    expect_error(1, "one of which the token '<extra_1>' has");
    assert_int_not_equal(access(in_folder("no.gguf"), F_OK), 0);
    RUN("export", "tiny-math", in_folder("there.gguf"));
    expect_ok();
    RUN("export", "tiny-math", in_folder("there.gguf"));
    expect_error(1, "there.gguf: is there already (--overwrite replaces it)");
    RUN("export", in_folder("there.gguf"), in_folder("there.gguf"), "--overwrite");
    expect_error(1, "there.gguf: is the model itself");
    assert_int_equal(mkdir(in_folder("folder.gguf"), 0700), 0);
    RUN("export", "tiny-math", in_folder("folder.gguf"));
    expect_error(1, "folder.gguf: wanted a file, found a directory");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family_comes_back),
                                       cmocka_unit_test(blocks_are_those_of_gguf), cmocka_unit_test(text_comes_back),
                                       cmocka_unit_test(scores_come_back), cmocka_unit_test(what_is_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
