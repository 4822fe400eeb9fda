/* Packed models by the program: FP8 blocks, INT8 by row, and GGUF as a file and as a directory that holds only it. The
 * copy that `export` writes has the same answers and fingerprint; `verify` finds no difference. */
#include "program.h"

#define MODELS "tests/data/packed_models/"

static const struct packed {
    const char *model, *format;
} models[] = {{MODELS "qwen3_fp8_a", "mostly fp8"},
              {MODELS "llama_w8a8_int8_a", "mostly bfloat16"} /* the embedding and the head */,
              {MODELS "gguf_llama_q8_0_a", "mostly Q8_0"},
              {MODELS "gguf_qwen3_q4_0_a/model.gguf", "mostly Q4_0"}};
enum { COUNT = sizeof models / sizeof *models };

/* The digest of an answer, and the fingerprint if the copy has the types of the model. */
static void answer(const char *model, const char *dtype, char out[256]) {
    bool same_types = strcmp(dtype, "auto") == 0;
    RUN("generate", model, "--ids", "1,5,7,11", "--max-tokens", "12", "--seed", "7", "--dtype", dtype);
    expect_ok();
    const char *print = strstr(came.err, "\nfingerprint "), *digest = strstr(came.err, "\ndigest ");
    assert_true(print && digest);
    snprintf(out, 256, "%.*s %.*s", same_types ? (int)strcspn(print + 1, "\n") : 0, print + 1,
             (int)strcspn(digest + 1, "\n"), digest + 1);
}

static void copies_have_the_same_bits(void **state) {
    (void)state;
    static const char *const dtypes[] = {"auto", "float32", "float16"};
    for (size_t i = 0; i < COUNT; i++) {
        char model[4096], name[16];
        snprintf(model, sizeof model, "%s", source_path(models[i].model));
        for (size_t d = 0; d < 3; d++) {
            char own[256], copied[256];
            snprintf(name, sizeof name, "%zu-%zu", i, d);
            RUN("export", model, in_folder(name), "--dtype", dtypes[d]);
            expect_ok();
            answer(model, dtypes[d], own);
            answer(in_folder(name), dtypes[d], copied);
            assert_string_equal(own, copied);
        }
    }
}

static void formats_are_shown(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT; i++) {
        RUN("inspect", source_path(models[i].model));
        expect_ok();
        expect_out(models[i].format);
        expect_out("In memory as bfloat16");
        expect_out("\n  expanded "); /* and so more than what is held */
        if (i == 0) expect_out("activations        not quantized, though the files ask for it");
        if (i == 1) expect_out("activations        quantized by --arithmetic i8 and i8x2 alone, though the files ask");
    }
}

static void verify_finds_no_difference(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT; i += 2) {
        RUN("verify", source_path(models[i].model), "--max-tokens", "4", "--axes", "batch,chunk,threads,isa,tp,weights",
            "--combinations", "2", "--scalar-tokens", "20");
        expect_ok();
        expect_out("unique outputs 1 at most");
    }
}

/* The bytes of the logits of some ids. */
static size_t logits_of(const char *model, char *out) {
    RUN("logits", model, "--ids", "1,5,7,9,11,2", "--dtype", "bfloat16", "--out", in_folder("logits"));
    expect_ok();
    return read_back("logits", out);
}

static void weights_never_change_a_bit(void **state) {
    (void)state;
    static const char *const dtypes[] = {"bfloat16", "float16", "float32"};
    static char want[OUTPUT_MAX], got[OUTPUT_MAX];
    for (size_t i = 0; i < COUNT; i++)
        for (size_t d = 0; d < 3; d++) {
            char model[4096];
            snprintf(model, sizeof model, "%s", source_path(models[i].model));
            RUN("logits", model, "--ids", "1,5,7,9,11,2", "--dtype", dtypes[d], "--weights", "expanded", "--out",
                in_folder("logits"));
            expect_ok();
            size_t n = read_back("logits", want);
            RUN("logits", model, "--ids", "1,5,7,9,11,2", "--dtype", dtypes[d], "--out", in_folder("logits"));
            expect_ok();
            assert_true(n > 1000 && n == read_back("logits", got));
            assert_memory_equal(want, got, n);
        }
    RUN("logits", source_path(models[0].model), "--ids", "1", "--weights", "8bit", "--out", in_folder("logits"));
    expect_error(2, "--weights: wanted one of: auto packed expanded, found '8bit'");
}

/* One unit in the last place of one scale is another model. */
static void a_changed_scale_is_another_model(void **state) {
    (void)state;
    static char bytes[OUTPUT_MAX], want[OUTPUT_MAX], got[OUTPUT_MAX];
    FILE *f = fopen(source_path(MODELS "gguf_llama_q8_0_a/model.gguf"), "rb");
    assert_non_null(f);
    size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    write_file("same.gguf", bytes, size);
    size_t n = logits_of(in_folder("same.gguf"), want);
    bytes[size - 34] ^= 1; /* the last tensor's last block of Q8_0 begins with its scale */
    write_file("changed.gguf", bytes, size);
    assert_true(n > 1000 && n == logits_of(in_folder("changed.gguf"), got));
    if (memcmp(want, got, n) == 0) fail_msg("a scale was changed, the logits were not");
}

/* A copy of Gemma 3's checkpoint whose layers have the pattern of its GGUF files. */
static const char *gemma(void) {
    char command[16384];
    snprintf(command, sizeof command,
             "cp -r '%s' '%s' && chmod -R u+w '%s' && python3 -c 'import json, sys; f = sys.argv[1]; c = "
             "json.load(open(f)); "
             "del c[\"layer_types\"]; json.dump(c, open(f, \"w\"))' '%s/config.json'",
             source_path("tests/data/families/gemma3_text_a"), in_folder("gemma"), in_folder("gemma"),
             in_folder("gemma"));
    assert_int_equal(system(command), 0);
    return in_folder("gemma");
}

/* Every family as GGUF: names, q and k of llama, biases, experts, rotary scaling, Gemma's norms and windows. */
static void families_have_the_same_logits(void **state) {
    (void)state;
    static const char *const names[] = {"hf/llama31",   "hf/qwen2",           "hf/qwen3",
                                        "hf/qwen3_moe", "families/mixtral_a", "gemma"};
    static char want[OUTPUT_MAX], got[OUTPUT_MAX], command[16384];
    if (system("python3 -c '' >/dev/null 2>&1") != 0) {
        printf("SKIPPED: families as GGUF: no python3\n");
        skip();
    }
    for (size_t i = 0; i < 6; i++) {
        char model[4096], script[4096], folder_name[64];
        snprintf(folder_name, sizeof folder_name, "tests/data/%s", names[i]);
        snprintf(model, sizeof model, "%s", i < 5 ? source_path(folder_name) : gemma());
        snprintf(script, sizeof script, "%s", source_path("tests/scripts/to_gguf.py"));
        snprintf(command, sizeof command, "python3 '%s' '%s' '%s'", script, model, in_folder("f.gguf"));
        assert_int_equal(system(command), 0);
        size_t n = logits_of(model, want);
        assert_true(n > 1000 && n == logits_of(in_folder("f.gguf"), got));
        if (memcmp(want, got, n) != 0) fail_msg("%s: other logits from its GGUF", names[i]);
    }
}

/* Written into a directory that holds a GGUF, the copy is the model there. */
static void a_copy_next_to_a_gguf(void **state) {
    (void)state;
    char model[4096];
    snprintf(model, sizeof model, "%s", source_path(models[2].model));
    RUN("export", "tiny-math", in_folder("both"));
    expect_ok();
    RUN("export", model, in_folder("both"), "--overwrite");
    expect_ok();
    write_file("both/x.gguf", "GGUF", 4);
    RUN("export", model, in_folder("both"), "--overwrite");
    expect_ok();
    RUN("inspect", in_folder("both"));
    expect_ok();
    expect_out("mostly bfloat16");
}

static void what_is_refused(void **state) {
    (void)state;
    write_file("cut.gguf", "GGUF\3\0\0\0\1", 9);
    RUN("generate", in_folder("cut.gguf"), "--ids", "1");
    expect_error(1, "cut.gguf: 8 bytes at byte 8 do not fit a file of 9 (cut short?)");
    write_file("not.gguf", "GGML", 4);
    RUN("inspect", in_folder("not.gguf"));
    expect_error(1, "a file that does not begin as GGUF does");
    RUN("inspect", source_path("tests/data/packed_models/qwen3_fp8_a/config.json"));
    expect_error(1, "a file: give the directory that it is in");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_have_the_same_bits),  cmocka_unit_test(formats_are_shown),
        cmocka_unit_test(verify_finds_no_difference), cmocka_unit_test(families_have_the_same_logits),
        cmocka_unit_test(a_copy_next_to_a_gguf),      cmocka_unit_test(what_is_refused),
        cmocka_unit_test(weights_never_change_a_bit), cmocka_unit_test(a_changed_scale_is_another_model)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
