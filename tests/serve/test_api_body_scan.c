/* Scans of bodies before parsing: refusals, and lists of ids that are not parsed as values. */
#include "support.h"

#include "serve/api/body_scan.h"

static iv_status check(const void *user, const char *name, iv_error *err) {
    (void)user;
    if (strcmp(name, "prompt") == 0 || strcmp(name, "n") == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: this field is not known here", name);
}

static const iv_body_form form = {.check = check, .ids = "prompt"};

/* The text after the scan, and the lists. */
static iv_status scan(const char *text, char out[400], iv_body_lists *lists, iv_error *err) {
    *lists = (iv_body_lists){0};
    snprintf(out, 400, "%s", text);
    return iv_body_scan(out, strlen(out), &form, lists, err);
}

static void test_lists(void **state) {
    (void)state;
    static const struct {
        const char *text, *left;
        size_t lists, at, count;
        int32_t last;
    } cases[] = {
        {"{\"prompt\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,2147483647]}",
         "{\"prompt\":[1                                             ]}", 1, IV_BODY_WHOLE, 16, 2147483647},
        {"{\"prompt\": [[1, 2],[ 0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0\n]]}",
         "{\"prompt\": [[1, 2],[ 0                              \n]]}", 1, 1, 16, 0},
        /* not taken: too few, too large, not integers, another field, nested deeper */
        {"{\"prompt\":[1,2,3]}", NULL, 0, 0, 0, 0},
        {"{\"prompt\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2147483648]}", NULL, 0, 0, 0, 0},
        {"{\"prompt\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1.0]}", NULL, 0, 0, 0, 0},
        {"{\"prompt\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,-1]}", NULL, 0, 0, 0, 0},
        {"{\"prompt\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,01]}", NULL, 0, 0, 0, 0},
        {"{\"prompt\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,]}", NULL, 0, 0, 0, 0},
        {"{\"prompt\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", NULL, 0, 0, 0, 0},
        {"{\"n\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}", NULL, 0, 0, 0, 0},
        {"{\"prompt\":[[[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]]]}", NULL, 0, 0, 0, 0},
        {"{\"n\":\"\\\"prompt\\\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]\"}", NULL, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        iv_body_lists lists;
        iv_ids ids = {0};
        iv_error err;
        ASSERT_OK(scan(cases[i].text, text, &lists, &err), &err);
        assert_string_equal(text, cases[i].left ? cases[i].left : cases[i].text);
        assert_int_equal(lists.count, cases[i].lists);
        if (lists.count) {
            assert_false(iv_body_lists_take(&lists, cases[i].at + 1, &ids));
            assert_true(iv_body_lists_take(&lists, cases[i].at, &ids));
            assert_int_equal(ids.count, cases[i].count);
            assert_int_equal(ids.data[ids.count - 1], cases[i].last);
            assert_false(iv_body_lists_take(&lists, cases[i].at, &(iv_ids){0}));
            iv_ids_free(&ids);
        }
        iv_body_lists_free(&lists);
    }
}

static void test_fields(void **state) {
    (void)state;
    static const char *const refused[] = {"{\"x\":1}", "{\"n\":{\"x\":[1]},\"x\" : []}", "{\"n\":1,\"x\":\"null\"}"};
    static const char *const left[] = {"{\"x\":null}",    "{\"n\":{\"x\":1}}", "{\"n\":\"x\"}",
                                       "{\"\\u0078\":1}", "[\"x\"]",           "\"x\"",
                                       "{\"x\"",          "{\"n\":1,"};
    char text[400];
    iv_body_lists lists;
    iv_error err;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(scan(refused[i], text, &lists, &err), IV_INVALID);
        assert_string_equal(err.message, "x: this field is not known here");
    }
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) ASSERT_OK(scan(left[i], text, &lists, &err), &err);
}

/* Many small values in a large body; the same inside strings costs nothing more. */
static void test_tree(void **state) {
    (void)state;
    enum { BYTES = 3 << 20 };
    static const char *const things[] = {"{},", "[],", "\"\",", "1,", "[[[]]],", "{\"a\":1},"};
    char *text = malloc(BYTES + 64);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof things / sizeof *things; i++)
        for (int inside = 0; inside < 2; inside++) {
            iv_body_lists lists = {0};
            iv_error err;
            size_t n = (size_t)sprintf(text, inside ? "{\"n\":\"" : "{\"n\":[");
            while (n < BYTES)
                for (const char *c = things[i]; *c; c++) {
                    if (inside && *c == '"') text[n++] = '\\';
                    text[n++] = *c;
                }
            n += (size_t)sprintf(text + n, inside ? "\"}" : "1]}");
            iv_status status = iv_body_scan(text, n, &form, &lists, &err);
            assert_int_equal(status, inside ? IV_OK : IV_LIMIT);
        }
    free(text);
}

/* Texts that are parsed later count together. */
static void test_texts(void **state) {
    (void)state;
    static char text[30000];
    for (size_t i = 0; i + 3 < sizeof text; i += 3) memcpy(text + i, "{},", 3);
    iv_body_tree tree = {0};
    iv_error err;
    size_t count = 0;
    while (iv_body_tree_add(&tree, "arguments", text, strlen(text), &err) == IV_OK) assert_true(count++ < 10);
    assert_int_equal(count, 3);
    assert_int_equal(err.status, IV_LIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists), cmocka_unit_test(test_fields),
                                       cmocka_unit_test(test_tree), cmocka_unit_test(test_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
