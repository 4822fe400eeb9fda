/* invar replay as a user runs it: receipts recomputed in other configurations, damaged receipts, receipts of other
 * makers. */
#include "program.h"

#define MODEL INVAR_SOURCE_DIR "/models/tiny-math"
enum { RECEIPTS = 3, RECEIPT_MAX = 1 << 16 };

static char receipts[RECEIPTS][RECEIPT_MAX];

/* Receipts of a greedy answer, a sampled one and one that a stop string ends. */
static int make_receipts(void **state) {
    if (make_folder(state) != 0) return -1;
    RUN("generate", MODEL, "--chat", "-p", "What is 17 * 6?", "--temperature", "0", "--seed", "1", "--quiet",
        "--receipt", in_folder("0"));
    expect_ok();
    RUN("generate", MODEL, "-p", "Tom has", "--temperature", "2", "--top-p", "1", "--top-k", "0", "--seed", "7",
        "--max-tokens", "30", "--ignore-eos", "--quiet", "--receipt", in_folder("1"));
    expect_ok();
    RUN("generate", MODEL, "--chat", "-p", "What is 9 + 8?", "--temperature", "0", "--stop", "</think>", "--quiet",
        "--receipt", in_folder("2"), "--logit-bias", "3=0.1");
    expect_ok();
    FILE *all = fopen(in_folder("all.jsonl"), "w");
    for (size_t i = 0; i < RECEIPTS; i++) {
        char name[2] = {(char)('0' + i), 0}, text[OUTPUT_MAX];
        size_t n = read_back(name, text);
        assert_true(n > 0 && n < RECEIPT_MAX && strchr(text, '\n') == text + n - 1);
        memcpy(receipts[i], text, n + 1);
        fputs(text, all);
        if (i == 0) fputs("\n", all); /* empty lines are skipped */
    }
    fclose(all);
    return 0;
}

/* Receipt i with the first `from` replaced, in a file. */
static const char *changed(size_t i, const char *from, const char *to) {
    static char text[2 * RECEIPT_MAX];
    const char *at = strstr(receipts[i], from);
    if (!at) fail_msg("no '%s' in receipt %zu", from, i);
    int n = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - receipts[i]), receipts[i], to, at + strlen(from));
    write_file("changed", text, (size_t)n);
    return in_folder("changed");
}

/* Exit code 1 and one error line after the output. */
static void expect_unequal(const char *words, const char *line) {
    if (came.code != 1 || !strstr(came.err, line) || strncmp(came.err, "invar: ", 7) != 0)
        fail_msg("wanted exit code 1 and '%s', found %d: %s", line, came.code, came.err);
    expect_out(words);
}

static void equal_in_every_way(void **state) {
    (void)state;
    static char first[OUTPUT_MAX];
    RUN("replay", in_folder("all.jsonl"));
    expect_ok();
    memcpy(first, came.out, came.out_bytes + 1);
    const char *one = strstr(first, "all.jsonl:1  equal  "), *two = strstr(first, "all.jsonl:3  equal  30 tokens"),
               *three = strstr(first, "all.jsonl:4  equal  ");
    assert_true(one && two && three && one < two && two < three);
    RUN("replay", in_folder("all.jsonl"), "--threads", "1", "--isa", "scalar", "--max-num-batched-tokens", "3");
    expect_ok();
    assert_string_equal(came.out, first);
    RUN("replay", in_folder("all.jsonl"), MODEL, "--tp", "2", "--max-num-seqs", "1");
    expect_ok();
    assert_string_equal(came.out, first);
    RUN("replay", in_folder("all.jsonl"), "--json", "--max-model-len", "512", "--no-enable-prefix-caching");
    expect_ok();
    json_t *o = expect_json();
    assert_int_equal(json_integer_value(json_object_get(o, "equal")), RECEIPTS);
    assert_int_equal(json_array_size(json_object_get(o, "results")), RECEIPTS);
    json_decref(o);
}

static void a_changed_request_shows(void **state) {
    (void)state;
    RUN("replay", changed(1, "\"seed\":\"7\"", "\"seed\":\"8\""));
    expect_unequal("changed:1  differs: token ", "receipts: 0 equal, 1 differ");
    RUN("replay", changed(1, "\"temperature\":2.0", "\"temperature\":1.5"), "--json");
    expect_unequal("\"verdict\": \"differs\"", "1 differ");
    /* Without the stop string: the same tokens, another end. */
    RUN("replay", changed(2, "\"stop\":[\"</think>\"]", "\"stop\":[]"));
    expect_unequal("wanted the end by stop at '</think>', found length", "1 differ");
    RUN("replay", changed(2, "\"stop\":\"</think>\"", "\"stop\":\"<think>\""));
    expect_unequal("wanted the end by stop at '<think>', found stop at '</think>'", "1 differ");
}

static void other_makers_are_distinguished(void **state) {
    (void)state;
    const char *all = in_folder("all.jsonl");
    RUN("replay", all, "--arithmetic", "tc16");
    expect_unequal("all.jsonl:3  other maker: the fingerprints differ: arithmetic fma32, here tc16\n",
                   "0 equal, 0 differ, 3 from another maker (--force");
    RUN("replay", all, "--numerics", "bio", "--dtype", "float32");
    expect_unequal("numerics invar, here bio; dtype bfloat16, here float32", "3 from another maker");
    RUN("replay", all, INVAR_SOURCE_DIR "/tests/data/hf/qwen3");
    expect_unequal("a receipt from another model: configuration ", "3 from another maker");
    expect_out("; weights ");
    RUN("replay", changed(0, "\"numerics_version\":3", "\"numerics_version\":1"));
    expect_unequal("numerics version 1, here 3", "1 from another maker");
}

static void force_says_where_they_part(void **state) {
    (void)state;
    RUN("replay", in_folder("0"), "--arithmetic", "tc16", "--force");
    expect_unequal(" ulp apart; ", "1 differ");
    RUN("replay", in_folder("0"), "--arithmetic", "tc16", "--force", "--json");
    assert_int_equal(came.code, 1);
    json_t *o = expect_json(), *item = json_array_get(json_object_get(o, "results"), 0),
           *first = json_object_get(item, "first_difference");
    assert_true(json_is_integer(json_object_get(first, "position")));
    assert_true(json_integer_value(json_object_get(first, "ulps")) > 0 ||
                !json_equal(json_object_get(first, "token"), json_object_get(first, "found_token")));
    assert_string_not_equal(text_of(item, "digest"), text_of(item, "found_digest"));
    json_decref(o);
    /* A model without these tokens: the receipt fails, the command does not. */
    RUN("replay", in_folder("0"), INVAR_SOURCE_DIR "/tests/data/hf/qwen3", "--force");
    expect_unequal("0:1  failed: ", "1 failed");
}

/* Bits of other methods depend on the batch: replay says so at their differences, and not at those of the law. */
static void baselines_are_named(void **state) {
    (void)state;
    RUN("generate", MODEL, "--chat", "-p", "What is 17 * 6?", "--temperature", "0", "--max-tokens", "8", "--quiet",
        "--numerics", "vanilla", "--receipt", in_folder("vanilla"));
    expect_ok();
    RUN("replay", in_folder("vanilla"), "--arithmetic", "tc16", "--force");
    expect_unequal("positions differ; the bits of numerics vanilla depend on the batch\n",
                   "1 differ (1 of them by numerics whose bits depend on the batch, as expected), 0 from");
    RUN("replay", in_folder("vanilla"), "--arithmetic", "tc16", "--force", "--json");
    assert_int_equal(came.code, 1);
    expect_out("\"depends_on_the_batch\": true");
    RUN("replay", in_folder("0"), "--arithmetic", "tc16", "--force");
    assert_int_equal(came.code, 1);
    assert_true(!strstr(came.out, "depend on the batch") && !strstr(came.err, "depend on the batch"));
}

static void bad_files(void **state) {
    (void)state;
    char two[2 * RECEIPT_MAX];
    write_file("empty", "\n\n", 2);
    RUN("replay", in_folder("empty"));
    expect_error(1, "empty: wanted a receipt, found none");
    RUN("replay", in_folder("absent"));
    expect_error(1, "absent: cannot open");
    RUN("replay", folder);
    expect_error(1, "found a directory");
    int n = snprintf(two, sizeof two, "%s{\"a\": 1}\n", receipts[0]);
    write_file("two", two, (size_t)n);
    RUN("replay", in_folder("two"));
    expect_error(1, "two:2: not a receipt: it has no field \"receipt\"");
    write_file("cut", receipts[0], 200);
    RUN("replay", in_folder("cut"));
    expect_error(1, "cut:1:1:");
    RUN("replay", changed(0, "\"receipt\":1", "\"receipt\":9"));
    expect_error(1, "changed:1: receipt: this program reads version 1, found 9");
    char bits[] = "\"logprob_bits\":\"xxxxxxxx", other[sizeof bits];
    memcpy(bits + 16, strstr(receipts[0], "\"logprob_bits\":\"") + 16, 8);
    memcpy(other, bits, sizeof bits);
    other[22] = bits[22] == '0' ? '1' : '0';
    RUN("replay", changed(0, bits, other));
    expect_error(1, "the receipt is damaged");
    RUN("replay", in_folder("0"), MODEL, "third");
    expect_error(2, "wanted one RECEIPTS and one MODEL, found 'third' as well");
    RUN("replay", in_folder("0"), "--max-model-len", "8");
    assert_int_equal(came.code, 1);
}

static void the_model_is_found(void **state) {
    (void)state;
    RUN("replay", changed(0, "\"model\":\"" INVAR_SOURCE_DIR "/models", "\"model\":\"/elsewhere"));
    expect_ok();
    RUN("replay", changed(0, "/models/tiny-math\"", "/models/no-such-model\""));
    expect_unequal("changed:1  failed: the receipt's model: ", "1 failed");
    RUN("replay", in_folder("changed"), "tiny-math");
    expect_ok();
}

/* A receipt that cannot be computed does not prevent the others; a different fingerprint is shown in full. */
static void the_rest_is_computed(void **state) {
    (void)state;
    char many[4 * RECEIPT_MAX];
    static const char *const from[] = {"/models/tiny-math\"", "\"arithmetic\":\"fma32\"",
                                       "\"fingerprint\":\"iv3-fma32-"},
                             *const to[] = {"/models/no-such-model\"", "\"arithmetic\":\"other\"",
                                            "\"fingerprint\":\"iv3-fma32-x"};
    size_t n = 0;
    for (size_t i = 0; i < 3; i++) {
        char one[RECEIPT_MAX] = "";
        FILE *file = fopen(changed(0, from[i], to[i]), "r");
        assert_non_null(file);
        assert_non_null(fgets(one, sizeof one, file));
        fclose(file);
        n += (size_t)snprintf(many + n, sizeof many - n, "%s", one);
    }
    n += (size_t)snprintf(many + n, sizeof many - n, "%s", receipts[0]);
    write_file("many", many, n);
    RUN("replay", in_folder("many"));
    expect_unequal("many:1  failed: the receipt's model: ", "receipts: 1 equal, 0 differ, 1 from another maker");
    assert_non_null(strstr(came.out, "many:2  failed: arithmetic: wanted auto, fma32, tc16, i8 or i8x2 "));
    assert_non_null(strstr(came.out, "many:3  other maker: the fingerprints differ: fingerprint iv3-fma32-xbfloat16-"));
    assert_non_null(strstr(came.out, "many:4  equal"));
}

/* A receipt that does not fit is not computed: truncated, it would differ. */
static void what_is_too_long_fails(void **state) {
    (void)state;
    RUN("replay", in_folder("all.jsonl"), "--max-model-len", "33");
    expect_unequal("all.jsonl:1  failed: max_model_len: wanted 37 or more",
                   "receipts: 2 equal, 0 differ, 0 from another maker, 1 failed");
    RUN("replay", in_folder("0"), "--max-model-len", "37");
    expect_ok();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_in_every_way),
        cmocka_unit_test(a_changed_request_shows),
        cmocka_unit_test(other_makers_are_distinguished),
        cmocka_unit_test(force_says_where_they_part),
        cmocka_unit_test(baselines_are_named),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(the_model_is_found),
        cmocka_unit_test(the_rest_is_computed),
        cmocka_unit_test(what_is_too_long_fails),
    };
    return cmocka_run_group_tests(tests, make_receipts, remove_folder);
}
