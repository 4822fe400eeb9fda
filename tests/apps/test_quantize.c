/* invar quantize: the report and its JSON; every format's directory has one set of logits, packed, expanded and
 * exported, and compressed_tensors' weights; every family; refused calls, after which nothing is left. */
#include "program.h"

#include <dirent.h>

static const char *const formats[] = {"fp8", "int8", "w8a8", "int4", "mxfp4", "nvfp4"};
enum { FORMATS = sizeof formats / sizeof *formats };

static double number(const json_t *root, const char *name) { return json_number_value(json_object_get(root, name)); }

static void the_report_says_what_it_costs(void **state) {
    (void)state;
    double kl = 0;
    for (size_t i = 0; i < FORMATS; i++) {
        RUN("quantize", "tiny-math", in_folder(formats[i]), "--format", formats[i], "--json");
        expect_ok();
        json_t *root = expect_json();
        bool four = strchr(formats[i], '4') != NULL;
        assert_string_equal(json_string_value(json_object_get(root, "format")), formats[i]);
        assert_int_equal(json_integer_value(json_object_get(root, "quantized")), 42);
        assert_int_equal(json_integer_value(json_object_get(root, "model_bytes")), 9968896);
        assert_int_equal(json_integer_value(json_object_get(root, "report_tokens")), 256);
        double share = number(root, "bytes") / number(root, "model_bytes"), own = number(root, "kl_divergence");
        assert_true(four ? share < 0.33 : share < 0.54);
        assert_true(own > 0 && own < (four ? 0.2 : 0.01) && number(root, "top1_agreement") > (four ? 0.8 : 0.95));
        if (strcmp(formats[i], "fp8") == 0) kl = own;
        json_decref(root);
    }
    write_file("text", "12 + 30 = 42", 12); /* another text has another divergence */
    RUN("quantize", "tiny-math", in_folder("fp8"), "--overwrite", "--json", "--text", in_folder("text"));
    expect_ok();
    json_t *root = expect_json();
    assert_true(number(root, "report_tokens") < 20 && number(root, "kl_divergence") != kl);
    json_decref(root);
    RUN("inspect", in_folder("nvfp4"));
    expect_ok();
    expect_out("mostly nvfp4");
}

static size_t logits_of(const char *model, const char *weights, char *out) {
    RUN("logits", model, "--ids", "1,5,7,9,11,2", "--weights", weights, "--out", in_folder("logits"));
    expect_ok();
    return read_back("logits", out);
}

static void expect_same_logits(const char *model, const char *other, const char *weights) {
    static char want[OUTPUT_MAX], got[OUTPUT_MAX];
    size_t n = logits_of(model, "packed", want);
    assert_true(n > 1000 && n == logits_of(other, weights, got));
    if (memcmp(want, got, n) != 0) fail_msg("%s: other logits than %s %s", model, other, weights);
}

/* Exit code 77: compressed_tensors is not there. */
static void compare_with_oracle(const char *quantized, const char *expanded) {
    char command[16384];
    const char *python = getenv("INVAR_TORCH_PYTHON");
    snprintf(command, sizeof command, "'%s' '%s' '%s' '%s' >&2", python ? python : "python3",
             source_path("tests/scripts/check_quantized.py"), quantized, expanded);
    int status = system(command);
    if (status == 77 << 8 || status == 127 << 8)
        printf("SKIPPED: compressed_tensors: not installed\n");
    else
        assert_int_equal(status, 0);
}

static void every_form_has_the_same_logits(void **state) {
    (void)state;
    for (size_t i = 0; i < FORMATS; i++) {
        char model[4096], name[32];
        snprintf(model, sizeof model, "%s", in_folder(formats[i]));
        snprintf(name, sizeof name, "%s-out", formats[i]);
        expect_same_logits(model, model, "expanded");
        RUN("export", model, in_folder(name));
        expect_ok();
        expect_same_logits(model, in_folder(name), "auto");
        compare_with_oracle(model, in_folder(name));
    }
}

/* Orders of rows, stacked tensors, experts, towers: of each family the layers that are quantized. */
static void every_family_has_the_same_logits(void **state) {
    (void)state;
    DIR *d = opendir(source_path("tests/data/families"));
    assert_non_null(d);
    size_t compared = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char model[4096], path[512], name[100];
        snprintf(name, sizeof name, "%.90s", e->d_name);
        snprintf(path, sizeof path, "tests/data/families/%s/model.safetensors", name);
        if (name[0] == '.' || access(source_path(path), F_OK) != 0) continue;
        snprintf(path, sizeof path, "tests/data/families/%s", name);
        RUN("quantize", source_path(path), in_folder(name), "--format", compared % 2 ? "int8" : "fp8",
            "--report-tokens", "0");
        expect_ok();
        snprintf(model, sizeof model, "%s", in_folder(name));
        expect_same_logits(model, model, "expanded");
        compared++;
    }
    closedir(d);
    assert_true(compared > 20);
}

/* W8A8 as published: activations token by token; the report runs it so. Smoothing needs texts, and changes the norms.
 */
static void w8a8(void **state) {
    (void)state;
    static const char texts[] = "{\"text\": \"12 + 30 = 42. What is 17 * 6? It is 102.\"}\n"
                                "{\"text\": \"What comes next: 60, 73, 86, 99? It is 112.\"}\n";
    static char config[OUTPUT_MAX], plain[OUTPUT_MAX], smoothed[OUTPUT_MAX];
    const char *const wanted[] = {"\"strategy\": \"token\"", "\"dynamic\": true", "int-quantized"};
    size_t n = read_back("w8a8/config.json", config);
    config[n < OUTPUT_MAX ? n : OUTPUT_MAX - 1] = 0;
    for (size_t i = 0; i < 3; i++) assert_non_null(strstr(config, wanted[i]));
    RUN("inspect", in_folder("w8a8"));
    expect_ok();
    expect_out("quantized by --arithmetic i8 and i8x2 alone");
    write_file("texts.jsonl", texts, sizeof texts - 1);
    RUN("quantize", "tiny-math", in_folder("smooth"), "--format", "w8a8", "--smooth", "0.5", "--calibrate",
        in_folder("texts.jsonl"), "--json");
    expect_ok();
    json_t *root = expect_json();
    assert_int_equal(json_integer_value(json_object_get(root, "smoothed_norms")), 12);
    assert_true(number(root, "calibration_tokens") > 20 && number(root, "kl_divergence") < 0.02);
    assert_true(number(root, "kl_divergence") != number(root, "nearest_kl_divergence"));
    json_decref(root);
    n = logits_of(in_folder("w8a8"), "auto", plain);
    assert_int_equal(n, logits_of(in_folder("smooth"), "auto", smoothed));
    assert_memory_not_equal(plain, smoothed, n);
    RUN("quantize", "tiny-math", in_folder("no"), "--format", "w8a8", "--smooth", "0.5");
    expect_error(2, "--smooth: wanted --calibrate FILE with texts, found none");
    RUN("quantize", "tiny-math", in_folder("no"), "--smooth", "0.5", "--method", "gptq", "--calibrate",
        in_folder("texts.jsonl"));
    expect_error(2, "--smooth: is of --method nearest, found gptq");
    RUN("quantize", "tiny-math", in_folder("no"), "--smooth", "0.5", "--damping", "1", "--calibrate",
        in_folder("texts.jsonl"));
    expect_error(2, "--damping: is of --method gptq");
}

static void expect_nothing(const char *name) { assert_int_not_equal(access(in_folder(name), F_OK), 0); }

static void what_is_refused(void **state) {
    (void)state;
    RUN("quantize", "tiny-math");
    expect_error(2, "wanted MODEL and DIR, found MODEL alone (see invar help quantize)");
    RUN("quantize", "tiny-math", in_folder("no"), "--format", "q4_k");
    expect_error(1, "format q4_k is read, not written: wanted fp8, int8, w8a8, int4, mxfp4 or nvfp4");
    RUN("quantize", "tiny-math", in_folder("no"), "--format", "fp16");
    expect_error(1, "for a file whose name ends with .gguf, found 'fp16'");
    RUN("quantize", "tiny-math", in_folder("no"), "--format", "int4", "--group-size", "96");
    expect_error(1, "rows of 256 do not divide into groups of 96 (--group-size sets another)");
    expect_nothing("no");
    RUN("quantize", "tiny-math", in_folder("no"), "--format", "int4", "--group-size", "24");
    expect_error(1, "group_size: wanted a multiple of 16, found 24");
    RUN("quantize", "tiny-math", in_folder("no"), "--format", "mxfp4", "--group-size", "64");
    expect_error(1, "group_size: format mxfp4 has its own");
    RUN("quantize", "tiny-math", in_folder("no"), "--text", in_folder("none"));
    expect_error(1, "none");
    RUN("quantize", source_path("tests/data/packed_models/qwen3_fp8_a"), in_folder("no"));
    expect_error(1, "is stored as fp8: invar export expands a model first");
    expect_nothing("no");
    RUN("quantize", "tiny-math", folder);
    expect_error(1, "the directory is not empty (--overwrite replaces a model there)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_report_says_what_it_costs), cmocka_unit_test(every_form_has_the_same_logits),
        cmocka_unit_test(w8a8), cmocka_unit_test(every_family_has_the_same_logits), cmocka_unit_test(what_is_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
