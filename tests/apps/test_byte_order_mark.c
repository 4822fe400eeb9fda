/* Files with a byte order mark, as Windows editors write them: the mark is not part of the text. A model's own files
 * are read as by transformers: JSON with a byte order mark is refused with a reason. */
#include "program.h"

#define MARK "\xef\xbb\xbf"
#define REQUEST                                                                                  \
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":" \
    "\"1 +\",\"max_tokens\":3,\"seed\":1}}\n"

static void put(const char *name, const char *text) { write_file(name, text, strlen(text)); }

static void texts(void **state) {
    (void)state;
    char *plain;
    put("mark.txt", MARK "2 + 2 =");
    RUN("tokenize", "tiny-math", "--json", "--text", "2 + 2 =");
    expect_ok();
    assert_non_null(plain = strdup(came.out));
    RUN("tokenize", "tiny-math", "--json", "--text-file", in_folder("mark.txt"));
    expect_ok();
    assert_string_equal(came.out, plain);
    RUN_WITH(MARK "2 + 2 =", "tokenize", "tiny-math", "--json");
    expect_ok();
    assert_string_equal(came.out, plain);
    RUN_WITH(MARK MARK "2 + 2 =", "tokenize", "tiny-math",
             "--json"); /* the first is a byte order mark, the second is text */
    expect_ok();
    assert_string_not_equal(came.out, plain);
    RUN("tokenize", "tiny-math", "--json", "--text", MARK "2 + 2 ="); /* no file */
    expect_ok();
    assert_string_not_equal(came.out, plain);
    write_file("wide.txt",
               "\xff\xfe"
               "2\0",
               4);
    RUN("tokenize", "tiny-math", "--text-file", in_folder("wide.txt"));
    expect_error(1, "wide.txt: wanted UTF-8, found the byte order mark of UTF-16");
    free(plain);
}

static void prompts_and_constraints(void **state) {
    (void)state;
    char *plain;
    put("prompt.txt", MARK "2 + 2 =");
    put("schema.json", MARK "{\"type\":\"integer\",\"minimum\":5,\"maximum\":5}");
    put("rules.gbnf", MARK "root ::= \"yes\"");
    RUN("generate", "tiny-math", "-p", "2 + 2 =", "--temperature", "0", "--max-tokens", "6", "--quiet");
    expect_ok();
    assert_non_null(plain = strdup(came.out));
    RUN("generate", "tiny-math", "--prompt-file", in_folder("prompt.txt"), "--temperature", "0", "--max-tokens", "6",
        "--quiet");
    expect_ok();
    assert_string_equal(came.out, plain);
    free(plain);
    RUN("generate", "tiny-math", "-p", "2", "--json-schema", in_folder("schema.json"), "--quiet");
    expect_ok();
    assert_string_equal(came.out, "5");
    RUN("generate", "tiny-math", "-p", "2", "--grammar-file", in_folder("rules.gbnf"), "--quiet", "--receipt",
        in_folder("receipt.json"));
    expect_ok();
    assert_string_equal(came.out, "yes");
    static char receipt[OUTPUT_MAX + 3] = MARK;
    read_back("receipt.json", receipt + 3);
    put("marked.json", receipt);
    RUN("replay", in_folder("marked.json"));
    expect_ok();
    assert_non_null(strstr(came.out, "equal"));
}

static void templates(void **state) {
    (void)state;
    put("mark.jinja", MARK "{{ n }}.");
    put("mark.json", MARK "{\"n\": 3}");
    put("empty.jinja", "");
    RUN("render", "--template", in_folder("mark.jinja"), "--input", in_folder("mark.json"));
    expect_ok();
    assert_string_equal(came.out, "3.");
    RUN("render", "--template", in_folder("empty.jinja"), "--input", in_folder("mark.json"));
    expect_ok();
    assert_string_equal(came.out, "");
}

static void batches(void **state) {
    (void)state;
    put("in.jsonl", MARK REQUEST);
    RUN("batch", "tiny-math", "-i", in_folder("in.jsonl"), "-o", in_folder("out.jsonl"), "--max-model-len", "256");
    expect_ok();
    assert_non_null(strstr(came.err, "1 answered now, 0 refused"));
    RUN_WITH(MARK REQUEST, "batch", "tiny-math", "-i", "-", "-o", "-", "--max-model-len", "256");
    expect_ok();
    assert_non_null(strstr(came.err, "1 answered now, 0 refused"));
    put("in.jsonl", REQUEST MARK REQUEST); /* only the first one is a byte order mark */
    unlink(in_folder("out.jsonl"));
    RUN("batch", "tiny-math", "-i", in_folder("in.jsonl"), "-o", in_folder("out.jsonl"), "--max-model-len", "256");
    expect_ok();
    assert_non_null(strstr(came.err, "1 answered now, 1 refused"));
    read_back("out.jsonl", came.out);
    assert_non_null(strstr(came.out, "line 2: not valid JSON: found a byte order mark (EF BB BF) at its beginning"));
}

static void models(void **state) {
    (void)state;
    static char config[OUTPUT_MAX];
    char dir[300], file[400];
    snprintf(dir, sizeof dir, "%s", in_folder("model"));
    snprintf(file, sizeof file, "%s/config.json", dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    FILE *from = fopen(source_path("models/tiny-math/config.json"), "rb");
    assert_non_null(from);
    size_t n = fread(config, 1, sizeof config, from);
    fclose(from);
    FILE *to = fopen(file, "wb");
    assert_non_null(to);
    assert_true(fwrite(MARK, 1, 3, to) == 3 && fwrite(config, 1, n, to) == n);
    assert_int_equal(fclose(to), 0);
    RUN("inspect", dir);
    expect_error(1, "config.json: not valid JSON: found a byte order mark (EF BB BF) at its beginning");
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(prompts_and_constraints),
                                       cmocka_unit_test(templates), cmocka_unit_test(batches),
                                       cmocka_unit_test(models)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
