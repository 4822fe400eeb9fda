/* The files next to the weights: config.json with another type, copied and refused files, the state after a failure.
 */
#include "scratch.h"
#include "base/file.h"
#include "format/model_dir.h"

static void the_type_in_a_config_changes_alone(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"{\"torch_dtype\": \"bfloat16\", \"x\": 1e-05}", "{\"torch_dtype\": \"float16\", \"x\": 1e-05}"},
        {"{\n  \"dtype\" : \"bfloat16\"\n}\n", "{\n  \"dtype\" : \"float16\"\n}\n"},
        {"{\"dtype\":\"float32\",\"torch_dtype\":\"float32\"}", "{\"dtype\":\"float16\",\"torch_dtype\":\"float16\"}"},
        {"{\"torch_dtype\": \"torch.bfloat16\"}", "{\"torch_dtype\": \"torch.float16\"}"},
        {"{\"torch_dtype\": null, \"a\": 1}", "{\"torch_dtype\": \"float16\", \"a\": 1}"},
        {"{\"torch_dtype\": null}", "{\"torch_dtype\": \"float16\"}"},
        {"{\"torch_dtype\": \"float16\"}", "{\"torch_dtype\": \"float16\"}"},
        {"{\"q\": {\"dtype\": \"int8\"}, \"l\": [{\"torch_dtype\": 1}], \"dtype\": \"float32\"}",
         "{\"q\": {\"dtype\": \"int8\"}, \"l\": [{\"torch_dtype\": 1}], \"dtype\": \"float16\"}"},
        {"{\"a\": \"dtype\", \"b\": \"\\\"dtype\\\": {[\", \"dtype\": \"float32\"}",
         "{\"a\": \"dtype\", \"b\": \"\\\"dtype\\\": {[\", \"dtype\": \"float16\"}"},
        {"{\"a\": NaN}", "{\n  \"torch_dtype\": \"float16\",\"a\": NaN}"},
        {" {}", " {\n  \"torch_dtype\": \"float16\"\n}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_buf out = {0};
        iv_error err;
        ASSERT_OK(iv_config_with_dtype("x", cases[i].from, strlen(cases[i].from), IV_F16, &out, &err), &err);
        assert_int_equal(out.len, strlen(cases[i].to));
        assert_memory_equal(out.data, cases[i].to, out.len);
        iv_buf_free(&out);
    }
    iv_buf out = {0};
    iv_error err;
    expect_error("no JSON", iv_config_with_dtype("x", "{\"dtype\":", 9, IV_F16, &out, &err), &err, IV_FORMAT, "x");
    expect_error("no object", iv_config_with_dtype("x", "[]", 2, IV_F16, &out, &err), &err, IV_FORMAT, "object");
    iv_buf_free(&out);
}

static void put(const scratch *s, const char *name, const char *text) { scratch_write(s, name, text, strlen(text)); }

static void assert_file(const char *dir, const char *name, const char *want) {
    char path[1200];
    iv_buf text = {0};
    iv_error err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!want) {
        assert_false(iv_file_exists(path));
        return;
    }
    ASSERT_OK(iv_file_read(path, 1 << 20, &text, &err), &err);
    assert_string_equal(text.data, want);
    iv_buf_free(&text);
}

static void a_new_directory_gets_the_files(void **state) {
    (void)state;
    scratch s, to;
    iv_model_dir d;
    iv_error err;
    char path[600];
    scratch_open(&s), scratch_open(&to);
    put(&s, "config.json", "{\"torch_dtype\": \"float32\" }"), put(&s, "tokenizer.json", "t"),
        put(&s, "README.md", "r");
    snprintf(path, sizeof path, "%s/new", to.dir);
    ASSERT_OK(iv_model_dir_open(path, s.dir, false, false, IV_BF16, &d, &err), &err);
    assert_file(path, "config.json", NULL);
    ASSERT_OK(iv_model_dir_clear(&d, &err), &err);
    ASSERT_OK(iv_model_dir_close(&d, IV_OK, &err), &err);
    assert_file(path, "config.json", "{\"torch_dtype\": \"float32\" }");
    assert_file(path, "tokenizer.json", "t");
    assert_file(path, "README.md", NULL);
    expect_error("again", iv_model_dir_open(path, s.dir, false, false, IV_BF16, &d, &err), &err, IV_INVALID,
                 "not empty");
    assert_file(path, "tokenizer.json", "t");
    /* Over it: another type, another tokenizer; a file that is no model's stays. */
    scratch in = {0};
    snprintf(in.dir, sizeof in.dir, "%.500s", path);
    put(&in, "notes.txt", "n"), put(&in, "vocab.json", "old"), put(&in, "model.safetensors", "w");
    ASSERT_OK(iv_model_dir_open(path, s.dir, true, true, IV_BF16, &d, &err), &err);
    assert_file(path, "model.safetensors", "w");
    ASSERT_OK(iv_model_dir_clear(&d, &err), &err);
    assert_file(path, "config.json", NULL), assert_file(path, "model.safetensors", NULL);
    ASSERT_OK(iv_model_dir_close(&d, IV_OK, &err), &err);
    assert_file(path, "config.json", "{\"torch_dtype\": \"bfloat16\" }");
    assert_file(path, "vocab.json", NULL), assert_file(path, "notes.txt", "n");
    scratch_close(&in), scratch_close(&s), scratch_close(&to);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    scratch s;
    iv_model_dir d;
    iv_error err;
    char path[600], link[600];
    scratch_open(&s);
    snprintf(path, sizeof path, "%s/x", s.dir);
    expect_error("no config", iv_model_dir_open(path, s.dir, false, false, IV_BF16, &d, &err), &err, IV_NOT_FOUND,
                 "config.json");
    assert_int_equal(scratch_count(&s), 0);
    put(&s, "config.json", "{}"), put(&s, "file", "");
    expect_error("itself", iv_model_dir_open(s.dir, s.dir, true, false, IV_BF16, &d, &err), &err, IV_INVALID,
                 "is the model itself");
    snprintf(link, sizeof link, "%s/link", s.dir);
    assert_int_equal(symlink(s.dir, link), 0);
    expect_error("by a link", iv_model_dir_open(link, s.dir, true, false, IV_BF16, &d, &err), &err, IV_INVALID,
                 "is the model itself");
    expect_error("a file", iv_model_dir_open(scratch_path(&s, "file"), s.dir, true, false, IV_BF16, &d, &err), &err,
                 IV_INVALID, "found a file");
    snprintf(path, sizeof path, "%s/no/such", s.dir);
    expect_error("deep", iv_model_dir_open(path, s.dir, true, false, IV_BF16, &d, &err), &err, IV_IO,
                 "cannot make the directory");
    assert_int_equal(scratch_count(&s), 3);
    scratch_close(&s);
}

static void a_failure_takes_it_all_back(void **state) {
    (void)state;
    scratch s, to;
    iv_model_dir d;
    iv_error err, failed;
    char path[600];
    scratch_open(&s), scratch_open(&to);
    put(&s, "config.json", "{}"), put(&s, "generation_config.json", "{}");
    snprintf(path, sizeof path, "%s/new", to.dir);
    ASSERT_OK(iv_model_dir_open(path, s.dir, false, false, IV_BF16, &d, &err), &err);
    iv_fail(&failed, IV_IO, "weights");
    assert_int_equal(iv_model_dir_close(&d, IV_IO, &failed), IV_IO);
    assert_string_equal(failed.message, "weights");
    assert_int_equal(scratch_count(&to), 0);
    /* A file that cannot be read, after others were copied. */
    assert_int_equal(mkdir(scratch_path(&s, "tokenizer.json"), 0700), 0);
    ASSERT_OK(iv_model_dir_open(path, s.dir, false, false, IV_BF16, &d, &err), &err);
    assert_int_not_equal(iv_model_dir_close(&d, IV_OK, &err), IV_OK);
    assert_int_equal(scratch_count(&to), 0);
    scratch_close(&s), scratch_close(&to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_type_in_a_config_changes_alone),
        cmocka_unit_test(a_new_directory_gets_the_files),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_failure_takes_it_all_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
