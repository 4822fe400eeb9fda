/* invar export: the report, its JSON, the same answers from the copy, and refused calls. */
#include "program.h"

static void a_copy_gives_the_same_answer(void **state) {
    (void)state;
    static char want[OUTPUT_MAX];
    const char *copy = in_folder("copy");
    RUN("export", "tiny-math", copy);
    expect_ok();
    expect_out(
        ": 68 tensors in 1 file, 9.97 MB\nweights sha256:16d4ee43d255c541b8881ce469542b99ffe8cfb87fca02cd4df17cae");
    RUN("generate", "tiny-math", "--chat", "-p", "What is 17 * 6?", "--seed", "7", "--json", "--receipt",
        in_folder("a"));
    expect_ok();
    const char *digest = strstr(came.out, "\"digest\"");
    assert_non_null(digest);
    snprintf(want, sizeof want, "%.80s", digest);
    RUN("generate", copy, "--chat", "-p", "What is 17 * 6?", "--seed", "7", "--json");
    expect_ok();
    expect_out(want);
    RUN("replay", in_folder("a"), copy);
    expect_ok(); /* fingerprint, configuration, tokenizer and template too */
}

static void json_for_a_program(void **state) {
    (void)state;
    RUN("export", "tiny-math", in_folder("half"), "--dtype", "float16", "--max-shard-size", "4M", "--threads", "1",
        "--json");
    expect_ok();
    json_t *root = expect_json();
    assert_int_equal(json_integer_value(json_object_get(root, "tensors")), 68);
    assert_int_equal(json_integer_value(json_object_get(root, "files")), 3);
    assert_int_equal(json_integer_value(json_object_get(root, "bytes")), 9968896);
    assert_string_equal(json_string_value(json_object_get(root, "directory")), in_folder("half"));
    json_decref(root);
    RUN("inspect", in_folder("half"));
    expect_ok();
    expect_out("68 in 3 files, mostly float16");
}

static void what_is_refused(void **state) {
    (void)state;
    RUN("export", "tiny-math");
    expect_error(2, "wanted MODEL and DIR, found MODEL alone (see invar help export)");
    RUN("export", "tiny-math", "a", "b");
    expect_error(2, "wanted one MODEL and one DIR, found 'b' as well");
    RUN("export", "tiny-math", in_folder("full"), "--dtype", "int8");
    expect_error(2, "--dtype: wanted one of: auto bfloat16 float16 float32, found 'int8'");
    write_file("file", "x", 1);
    RUN("export", "tiny-math", in_folder("file"));
    expect_error(1, "wanted a directory, found a file");
    RUN("export", "tiny-math", folder);
    expect_error(1, "the directory is not empty (--overwrite replaces a model there)");
    RUN("export", "no-such-model", in_folder("full"));
    expect_error(1, "no-such-model: no such model directory");
    assert_int_not_equal(access(in_folder("full"), F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_copy_gives_the_same_answer),
                                       cmocka_unit_test(json_for_a_program), cmocka_unit_test(what_is_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
