/* test_tokenizer_parts.c: small parts of the tokenizer against their definitions. */
#include "support.h"

#include "base/buf.h"
#include "base/utf8.h"
#include "format/tokenizer_json.h"
#include "text/charset.h"
#include "text/regex.h"
#include "text/normalize.h"

static iv_error err;

static void test_byte_level_is_one_to_one(void **state) {
    (void)state;
    size_t mapped = 0;
    for (unsigned b = 0; b < 256; b++) {
        char utf8[2];
        uint32_t cp;
        size_t n = iv_byte_level_encode((uint8_t)b, utf8);
        assert_int_equal(iv_utf8_decode((const uint8_t *)utf8, n, &cp), n);
        assert_int_equal(iv_byte_level_decode(cp), b);
        assert_true(cp > 0x20 && cp != 0x7f); /* printable */
    }
    for (uint32_t cp = 0; cp < 0x1000; cp++) mapped += iv_byte_level_decode(cp) >= 0;
    assert_int_equal(mapped, 256);
}

static void test_token_map(void **state) {
    (void)state;
    iv_arena arena = {0};
    iv_token_map map = {0};
    enum { COUNT = 5000 };
    static char names[COUNT][8];
    assert_null(iv_token_map_find(&map, "a", 1));
    assert_true(iv_token_map_init(&map, &arena, COUNT + 1));
    for (int i = 0; i < COUNT; i++) {
        int n = snprintf(names[i], sizeof names[i], "t%d", i);
        assert_true(iv_token_map_put(&map, (iv_str){names[i], (size_t)n}, 3 * i));
    }
    assert_true(iv_token_map_put(&map, (iv_str){"", 0}, 1)); /* the empty text is allowed */
    for (int i = 0; i < COUNT; i++) {
        const iv_token *t = iv_token_map_find(&map, names[i], strlen(names[i]));
        assert_true(t && t->id == 3 * i);
    }
    assert_null(iv_token_map_find(&map, "t", 1));
    assert_null(iv_token_map_find(&map, "t1\0", 3));
    assert_int_equal(iv_token_map_find(&map, "x", 0)->id, 1);
    iv_arena_free(&arena);

    assert_true(iv_token_map_init(&map, &arena, 2));
    assert_true(iv_token_map_put(&map, (iv_str){"a", 1}, 0));
    assert_false(iv_token_map_put(&map, (iv_str){"a", 1}, 1));
    iv_arena_free(&arena);
}

static void test_ids(void **state) {
    (void)state;
    iv_ids a = {0}, b = {0};
    for (int32_t i = 0; i < 1000; i++) assert_true(iv_ids_push(&a, i));
    assert_true(iv_ids_append(&b, a.data, a.count) && iv_ids_append(&b, a.data, a.count));
    assert_int_equal(b.count, 2000);
    for (int32_t i = 0; i < 2000; i++) assert_int_equal(b.data[i], i % 1000);
    b.count = 0;
    assert_true(iv_ids_append(&b, NULL, 0) && b.count == 0);
    iv_ids_free(&a);
    iv_ids_free(&b);
}

static void check_normal(iv_normalizer_kind form, const char *text, const char *want) {
    iv_buf out = {0};
    ASSERT_OK(iv_unicode_normalize(form, text, strlen(text), &out, &err), &err);
    assert_string_equal(out.data ? out.data : "", want);
    iv_buf_free(&out);
}

static void test_unicode_forms(void **state) {
    (void)state;
    check_normal(IV_NORMALIZE_NFC, "e\u0301 \u212b", "\u00e9 \u00c5");
    check_normal(IV_NORMALIZE_NFD, "\u00e9\uac01", "e\u0301\u1100\u1161\u11a8");
    check_normal(IV_NORMALIZE_NFC, "\u1100\u1161\u11a8", "\uac01");
    check_normal(IV_NORMALIZE_NFKC, "\ufb01\u2460\uff21", "fi1A");
    check_normal(IV_NORMALIZE_NFKD, "\u00bd", "1\u20442");
    check_normal(IV_NORMALIZE_NFD, "a\u0315\u0300\u05ae\u0327",
                 "a\u0327\u05ae\u0300\u0315");                /* classes 232 230 228 202 */
    check_normal(IV_NORMALIZE_NFC, "\u0958", "\u0915\u093c"); /* a composition exclusion */
    /* U+1ABF (class 220) is newer than Unicode 9: it is not moved, and nothing combines across it. */
    check_normal(IV_NORMALIZE_NFC, "a\u0315\u1abf", "a\u0315\u1abf");
    check_normal(IV_NORMALIZE_NFC, "e\u1abf\u0301", "e\u1abf\u0301");
    check_normal(IV_NORMALIZE_NFKC, "\u32ff", "\u32ff");
}

/* A run of marks that is sorted by counting gives the result of a short one. */
static void test_long_runs_of_marks(void **state) {
    (void)state;
    iv_buf in = {0}, want = {0}, out = {0};
    assert_true(iv_buf_putc(&in, 'x') && iv_buf_putc(&want, 'x'));
    for (int i = 0; i < 40; i++) assert_true(iv_buf_puts(&in, i % 2 ? "\u0327" : "\u0315"));
    for (int i = 0; i < 40; i++) assert_true(iv_buf_puts(&want, i < 20 ? "\u0327" : "\u0315"));
    ASSERT_OK(iv_unicode_normalize(IV_NORMALIZE_NFD, in.data, in.len, &out, &err), &err);
    assert_string_equal(out.data, want.data);
    iv_buf_free(&in);
    iv_buf_free(&want);
    iv_buf_free(&out);
}

/* Every match in the text, joined by "|". */
static void check_matches(const char *pattern, const char *text, const char *want) {
    iv_pattern p = {{pattern, strlen(pattern)}, true};
    iv_regex *re;
    iv_regex_work *work = iv_regex_work_new();
    iv_regex_scan scan = {0};
    iv_buf got = {0};
    assert_non_null(work);
    ASSERT_OK(iv_regex_open(pattern, &p, &re, &err), &err);
    for (bool found = true;;) {
        ASSERT_OK(iv_regex_next(re, work, text, strlen(text), &scan, &found, &err), &err);
        if (!found) break;
        assert_true(iv_buf_append(&got, text + scan.start, scan.end - scan.start) && iv_buf_putc(&got, '|'));
    }
    if (strcmp(got.data ? got.data : "", want) != 0)
        fail_msg("%s found \"%s\", wanted \"%s\"", pattern, got.data, want);
    iv_buf_free(&got);
    iv_regex_work_free(work);
    iv_regex_close(re);
}

/* Differences of Oniguruma and PCRE2. Each line was confirmed with the reference library. */
static void test_dialect(void **state) {
    (void)state;
    check_matches("\\s+", "a\u180eb\u00a0\u2003c", "\u00a0\u2003|");
    check_matches("\\h+", "zfF0 \t", "fF0|");
    check_matches("\\v", "\v\n\u2028", "\v|");
    check_matches("a{,2}", "aaa", "aa|a|");
    check_matches("a{,b", "a{,b", "a{,b|");
    check_matches("[\\w]", "\u00bd\u0903\u24b6x", "\u0903|\u24b6|x|");
    check_matches("\\w", "\u00bd\u2460", "\u00bd|");
    check_matches("[^\\S\\n]+", " \n\t ", " |\t |");
    check_matches("[^\\P{L}x]+", "abxc1", "ab|c|");
    check_matches("[\\W\\d]", "a-1", "-|1|");
    check_matches("\\p{^L}+", "ab12", "12|");
    check_matches("(?i:'s)", "'S'\u017f", "'S|'\u017f|");
    check_matches("\\p{Lu}", "\U00010d50\U00010d70", "\U00010d50|"); /* Unicode 16 */
    check_matches("\\p{Han}+", "\u3001\u6771\U00031350", "\u6771\U00031350|");
    check_matches("\\bfoo\\b", "foo foo\u00e9 foo\u00bd foo", "foo|foo|");
    check_matches("^.", "a\nb\r", "a|b|");
    check_matches(".", "\r\u2028\n", "\r|\u2028|");
    check_matches("\\u00e9|\\x{1F600}", "\u00e9\U0001f600", "\u00e9|\U0001f600|");
    check_matches("[a-]", "-a", "-|a|");
    check_matches("(a)|#b c", "a#b c", "a|#b c|");
    check_matches("\\s*", "a b", "| ||"); /* empty, the space, empty: none right after the space itself */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level_is_one_to_one),
        cmocka_unit_test(test_token_map),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_unicode_forms),
        cmocka_unit_test(test_long_runs_of_marks),
        cmocka_unit_test(test_dialect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
