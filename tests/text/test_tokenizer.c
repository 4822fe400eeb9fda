/* test_tokenizer.c: the tokenizer against what the reference library gave (oracle files), and its own
 * contract: limits, errors, streaming, speed, and damaged files. */
#include "support.h"

#include "base/digest.h"
#include "base/file.h"
#include "format/json.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <time.h>

static iv_error err;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static iv_tokenizer *parse(const char *json) {
    iv_tokenizer *t;
    ASSERT_OK(iv_tokenizer_parse("test", json, strlen(json), &t, &err), &err);
    return t;
}

/* ---- oracles ---- */

static void check_ids(const char *where, size_t index, const iv_ids *got, const json_t *want) {
    size_t n = json_array_size(want);
    for (size_t i = 0; i < n && i < got->len; i++)
        if (got->data[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s case %zu: id %zu is %d, wanted %" JSON_INTEGER_FORMAT, where, index, i, got->data[i],
                     json_integer_value(json_array_get(want, i)));
    if (got->len != n) fail_msg("%s case %zu: %zu ids, wanted %zu", where, index, got->len, n);
}

static void check_text(const char *where, size_t index, const iv_buf *got, const json_t *want) {
    if (got->len != json_string_length(want) ||
        memcmp(got->data ? got->data : "", json_string_value(want), got->len))
        fail_msg("%s case %zu: decoded \"%s\", wanted \"%s\"", where, index, got->data,
                 json_string_value(want));
}

/* Pushes one by one; every append must be whole characters and the sum must be the whole decoding. */
static void check_stream(const iv_tokenizer *t, const iv_ids *ids, bool skip_special) {
    iv_token_stream *s;
    iv_buf whole = {0}, sum = {0};
    ASSERT_OK(iv_tokenizer_decode(t, ids->data, ids->len, skip_special, &whole, &err), &err);
    ASSERT_OK(iv_token_stream_open(t, skip_special, &s, &err), &err);
    for (size_t i = 0; i <= ids->len; i++) {
        size_t before = sum.len;
        if (i < ids->len)
            ASSERT_OK(iv_token_stream_push(s, ids->data[i], &sum, &err), &err);
        else
            ASSERT_OK(iv_token_stream_flush(s, &sum, &err), &err);
        json_t *whole_characters = json_stringn(sum.data ? sum.data + before : "", sum.len - before);
        assert_non_null(whole_characters);
        json_decref(whole_characters);
    }
    assert_int_equal(sum.len, whole.len);
    if (whole.len) assert_memory_equal(sum.data, whole.data, whole.len);
    iv_token_stream_close(s);
    iv_buf_free(&whole);
    iv_buf_free(&sum);
}

/* One list of {text, ids, ids_no_special?, decoded}; returns how many there were. */
static size_t check_cases(const char *where, const iv_tokenizer *t, const json_t *cases) {
    size_t i;
    const json_t *c;
    json_array_foreach(cases, i, c) {
        const json_t *text = json_object_get(c, "text"), *plain = json_object_get(c, "ids_no_special");
        const json_t *want = json_object_get(c, "ids");
        const char *s = json_string_value(text);
        iv_ids ids = {0};
        iv_buf decoded = {0};
        assert_true(json_is_string(text) && json_is_array(want));
        unsigned flags = IV_ENCODE_ADD_SPECIAL | IV_ENCODE_PARSE_SPECIAL;
        ASSERT_OK(iv_tokenizer_encode(t, s, json_string_length(text), flags, &ids, &err), &err);
        check_ids(where, i, &ids, want);
        ASSERT_OK(iv_tokenizer_decode(t, ids.data, ids.len, false, &decoded, &err), &err);
        check_stream(t, &ids, true);
        check_stream(t, &ids, false);
        if (plain) {
            iv_ids_clear(&ids);
            iv_buf_clear(&decoded);
            ASSERT_OK(
                iv_tokenizer_encode(t, s, json_string_length(text), IV_ENCODE_PARSE_SPECIAL, &ids, &err),
                &err);
            check_ids(where, i, &ids, plain);
            ASSERT_OK(iv_tokenizer_decode(t, ids.data, ids.len, false, &decoded, &err), &err);
        }
        check_text(where, i, &decoded, json_object_get(c, "decoded"));
        iv_ids_free(&ids);
        iv_buf_free(&decoded);
    }
    return json_array_size(cases);
}

static void check_oracle(const char *dir_name, const char *oracle_name, const char *member) {
    char dir[4096];
    iv_tokenizer *t;
    json_t *oracle;
    const char *path = shared_path(dir_name);
    SKIP_WITHOUT(path, dir_name);
    snprintf(dir, sizeof dir, "%s", path);
    path = shared_path(oracle_name);
    SKIP_WITHOUT(path, oracle_name);
    double start = seconds();
    ASSERT_OK(iv_tokenizer_open(dir, &t, &err), &err);
    double loaded = seconds() - start;
    ASSERT_OK(iv_json_read(path, 64 << 20, &oracle, &err), &err);
    size_t n = check_cases(dir_name, t, member ? json_object_get(oracle, member) : oracle);
    assert_true(n > 0);
    printf("%s: %zu cases, loaded in %.1f ms\n", dir_name, n, 1e3 * loaded);
    json_decref(oracle);
    iv_tokenizer_close(t);
}

static void test_oracle_qwen3(void **state) {
    (void)state;
    check_oracle("tokenizers/qwen3", "tokenizers/qwen3/oracle.json", NULL);
}

static void test_oracle_llama3_1(void **state) {
    (void)state;
    check_oracle("tokenizers/llama3_1", "tokenizers/llama3_1/oracle.json", NULL);
}

static void test_oracle_mistral_nemo(void **state) {
    (void)state;
    check_oracle("tokenizers/mistral_nemo", "tokenizers/mistral_nemo/oracle.json", NULL);
}

static void test_oracle_gpt2(void **state) {
    (void)state;
    check_oracle("tokenizers/gpt2", "tokenizers/gpt2/oracle.json", NULL);
}

static void test_oracle_stories15m(void **state) {
    (void)state;
    check_oracle("models/stories15m", "models/stories15m/oracle_tokenizer.json", NULL);
}

static void test_oracle_tiny_math(void **state) {
    (void)state;
    check_oracle("models/tiny-math", "models/tiny-math/oracle.json", "encode");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle_qwen3),      cmocka_unit_test(test_oracle_llama3_1),
        cmocka_unit_test(test_oracle_gpt2),       cmocka_unit_test(test_oracle_mistral_nemo),
        cmocka_unit_test(test_oracle_stories15m), cmocka_unit_test(test_oracle_tiny_math),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
