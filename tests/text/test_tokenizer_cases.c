/* test_tokenizer_cases.c: made-up and, optionally, real tokenizers against answers of the reference library, written by
 * tokenizer_cases.py. INVAR_TOKENIZER_CASES names one more file of such cases. */
#include "support.h"

#include "base/file.h"
#include "format/json.h"
#include "text/tokenizer.h"

static iv_error err;

enum { CASES_BYTES_MAX = 512 << 20, SHOWN_MAX = 20 };

typedef struct tally {
    size_t tokenizers, cases, refused, wrong;
    bool joined; /* this tokenizer fuses all tokens before it detects byte tokens: a suffix has no separate text */
} tally;

static void show(tally *sum, const char *name, const json_t *c, const char *what) {
    if (sum->wrong++ >= SHOWN_MAX) return;
    char *text = json_dumps(c, JSON_COMPACT);
    printf("%s: %s: %s\n", name, what, text);
    free(text);
}

static bool same_ids(const iv_ids *got, const json_t *want) {
    bool same = got->count == json_array_size(want);
    for (size_t i = 0; same && i < got->count; i++) same = got->data[i] == json_integer_value(json_array_get(want, i));
    return same;
}

/* Whole decoding and decoding token by token. */
static bool same_text(const iv_tokenizer *t, const iv_ids *ids, bool skip, const json_t *want) {
    iv_buf whole = {0}, parts = {0};
    iv_token_stream *s;
    ASSERT_OK(iv_tokenizer_decode(t, ids->data, ids->count, skip, &whole, &err), &err);
    ASSERT_OK(iv_token_stream_open(t, skip, &s, &err), &err);
    for (size_t i = 0; i < ids->count; i++) ASSERT_OK(iv_token_stream_push(s, ids->data[i], &parts, &err), &err);
    ASSERT_OK(iv_token_stream_flush(s, &parts, &err), &err);
    iv_token_stream_close(s);
    size_t n = json_string_length(want);
    bool same = whole.len == n && parts.len == n && (n == 0 || memcmp(whole.data, json_string_value(want), n) == 0) &&
                (n == 0 || memcmp(parts.data, json_string_value(want), n) == 0);
    iv_buf_free(&whole);
    iv_buf_free(&parts);
    return same;
}

/* A stream that follows the first ids gives the decoding of all ids minus the decoding of the first ids, if that is a
 * prefix. A broken character, or spaces stripped only at an end, belong to neither part. */
static bool same_rest(const iv_tokenizer *t, const iv_ids *ids, size_t first, bool skip) {
    iv_buf whole = {0}, before = {0}, rest = {0};
    iv_token_stream *s;
    ASSERT_OK(iv_tokenizer_decode(t, ids->data, ids->count, skip, &whole, &err), &err);
    ASSERT_OK(iv_tokenizer_decode(t, ids->data, first, skip, &before, &err), &err);
    ASSERT_OK(iv_token_stream_open(t, skip, &s, &err), &err);
    ASSERT_OK(iv_token_stream_follow(s, ids->data, first, false, &err), &err);
    for (size_t i = first; i < ids->count; i++) ASSERT_OK(iv_token_stream_push(s, ids->data[i], &rest, &err), &err);
    ASSERT_OK(iv_token_stream_flush(s, &rest, &err), &err);
    iv_token_stream_close(s);
    bool apart = whole.len >= before.len && (!before.len || memcmp(whole.data, before.data, before.len) == 0) &&
                 !(before.len && memmem(before.data, before.len, "\xef\xbf\xbd", 3));
    size_t n = apart ? whole.len - before.len : 0;
    bool same = !apart || (rest.len == n && (n == 0 || memcmp(rest.data, whole.data + before.len, n) == 0));
    iv_buf_free(&whole), iv_buf_free(&before), iv_buf_free(&rest);
    return same;
}

static void check_case(tally *sum, const char *name, const iv_tokenizer *t, const json_t *c) {
    const json_t *text = json_object_get(c, "text"), *id;
    iv_ids ids = {0};
    size_t i;
    sum->cases++;
    if (text) {
        unsigned flags = (json_is_true(json_object_get(c, "add")) ? IV_ENCODE_ADD_SPECIAL : 0) |
                         (json_is_true(json_object_get(c, "parse")) ? IV_ENCODE_PARSE_SPECIAL : 0);
        ASSERT_OK(iv_tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, &ids, &err), &err);
        if (!same_ids(&ids, json_object_get(c, "ids"))) {
            show(sum, name, c, "ids differ");
            for (i = 0; sum->wrong <= SHOWN_MAX && i < ids.count; i++)
                printf("%d%s", ids.data[i], i + 1 < ids.count ? "," : "\n");
        }
    } else {
        json_array_foreach(json_object_get(c, "decode"), i, id) {
            assert_true(iv_ids_push(&ids, (int32_t)json_integer_value(id)));
        }
    }
    if (!same_text(t, &ids, false, json_object_get(c, "decoded"))) show(sum, name, c, "decoded text differs");
    const json_t *skipped = json_object_get(c, "skipped");
    if (!same_text(t, &ids, true, skipped ? skipped : json_object_get(c, "decoded")))
        show(sum, name, c, "decoded without special differs");
    for (size_t first = 0; !sum->joined && first <= ids.count && first < 40; first++)
        if (!same_rest(t, &ids, first, first % 2)) show(sum, name, c, "decoded after a prompt differs");
    iv_ids_free(&ids);
}

static void check_tokenizer(tally *sum, const json_t *entry) {
    const char *name = json_string_value(json_object_get(entry, "name"));
    const json_t *json = json_object_get(entry, "json"), *c;
    iv_tokenizer *t;
    size_t i;
    iv_status status = json ? iv_tokenizer_parse(name, json_string_value(json), json_string_length(json), &t, &err)
                            : iv_tokenizer_open(json_string_value(json_object_get(entry, "dir")), &t, &err);
    sum->tokenizers++;
    const char *decoder = json ? strstr(json_string_value(json), "\"decoder\"") : NULL;
    const char *fuse = decoder ? strstr(decoder, "\"Fuse\"") : NULL;
    sum->joined = fuse && strstr(fuse, "\"ByteLevel\"");
    if (status != IV_OK) {
        /* Only files that the reference accepts although they cannot work, such as two tokens with the same text. */
        sum->refused++;
        printf("%s: refused: %s\n", name, err.message);
        return;
    }
    json_array_foreach(json_object_get(entry, "cases"), i, c) { check_case(sum, name, t, c); }
    iv_tokenizer_close(t);
}

static tally check_file(const char *path) {
    json_t *list, *entry;
    tally sum = {0};
    size_t i;
    ASSERT_OK(iv_json_read(path, CASES_BYTES_MAX, &list, &err), &err);
    json_array_foreach(list, i, entry) { check_tokenizer(&sum, entry); }
    json_decref(list);
    printf("%s: %zu tokenizers, %zu refused, %zu cases, %zu wrong\n", path, sum.tokenizers, sum.refused, sum.cases,
           sum.wrong);
    assert_true(sum.cases > 0);
    assert_int_equal(sum.wrong, 0);
    return sum;
}

static void test_saved_cases(void **state) {
    (void)state;
    assert_int_equal(check_file(source_path("tests/data/tokenizer_cases.json")).refused, 0);
    assert_int_equal(check_file(source_path("tests/data/tokenizer_cases_made.json")).refused, 0);
}

static void test_more_cases(void **state) {
    (void)state;
    const char *path = getenv("INVAR_TOKENIZER_CASES");
    if (!path) {
        printf("SKIPPED: no more cases (set INVAR_TOKENIZER_CASES to a file by tokenizer_cases.py)\n");
        skip();
    }
    check_file(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_saved_cases), cmocka_unit_test(test_more_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
