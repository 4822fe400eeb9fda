/* Typed reads: absent and null are one thing, numbers may be spelled either way, ranges are inclusive. */
#include "scratch.h"
#include "format/json_object.h"

static json_t *root;
static iv_json_object object;

static int open_object(void **state) {
    (void)state;
    static const char json[] = "{\"i\":7,\"r\":1e6,\"f\":0.5,\"t\":true,\"n\":null,\"s\":\"x\",\"nul\":\"a\\u0000b\","
                               "\"list\":[1,2.0,3],\"bad\":[1,\"x\"],\"empty\":[],\"huge\":1e300,\"o\":{\"k\":-1}}";
    iv_error err;
    if (iv_json_parse("f", json, sizeof json - 1, &root, &err) != IV_OK) return -1;
    return iv_json_object_of("f", "", root, &object, &err) == IV_OK ? 0 : -1;
}

static int close_object(void **state) {
    (void)state;
    json_decref(root);
    return 0;
}

static void integers(void **state) {
    (void)state;
    static const struct {
        const char *key;
        int64_t min, max, want;
        const char *text; /* of the error, or NULL */
    } cases[] = {
        {"i", 0, 10, 7, NULL},
        {"i", 7, 7, 7, NULL},
        {"i", 8, 10, 0, "f: i: wanted an integer from 8 to 10, found 7"},
        {"i", 0, 6, 0, "found 7"},
        {"r", 0, 1000000, 1000000, NULL},
        {"r", 0, 999999, 0, "found 1000000"},
        {"f", 0, 10, 0, "found 0.5"},
        {"huge", 0, INT64_MAX, 0, "found 1e+300"},
        {"t", 0, 10, 0, "found true"},
        {"s", 0, 10, 0, "found string"},
        {"list", 0, 10, 0, "found array"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t v = -5;
        bool found;
        iv_error err;
        iv_status got = iv_json_object_int(&object, cases[i].key, cases[i].min, cases[i].max, &v, &found, &err);
        if (cases[i].text)
            expect_error(cases[i].text, got, &err, IV_FORMAT, cases[i].text);
        else
            ASSERT_OK(got, &err);
        assert_true(found);
        assert_int_equal(v, cases[i].text ? -5 : cases[i].want);
    }
}

static void absent_and_null_leave_the_default(void **state) {
    (void)state;
    static const char *const keys[] = {"n", "nothing"};
    for (size_t i = 0; i < 2; i++) {
        int64_t v = 5;
        double r = 5;
        bool b = true, found = true;
        size_t count = 5;
        const char *s = "5";
        iv_error err;
        assert_false(iv_json_object_has(&object, keys[i]));
        ASSERT_OK(iv_json_object_int(&object, keys[i], 0, 1, &v, &found, &err), &err);
        assert_false(found);
        ASSERT_OK(iv_json_object_real(&object, keys[i], 0, 1, &r, &found, &err), &err);
        assert_false(found);
        ASSERT_OK(iv_json_object_bool(&object, keys[i], &b, &found, &err), &err);
        assert_false(found);
        ASSERT_OK(iv_json_object_string(&object, keys[i], &s, &found, &err), &err);
        assert_false(found);
        ASSERT_OK(iv_json_object_ints(&object, keys[i], 0, 1, &v, 1, &count, &found, &err), &err);
        assert_false(found);
        assert_true(v == 5 && r == 5 && b && count == 5);
        assert_string_equal(s, "5");
    }
}

static void reals_bools_and_strings(void **state) {
    (void)state;
    double r;
    bool b, found;
    const char *s;
    iv_error err;
    ASSERT_OK(iv_json_object_real(&object, "i", 0, 7, &r, &found, &err), &err);
    assert_true(r == 7);
    ASSERT_OK(iv_json_object_real(&object, "f", 0.5, 0.5, &r, &found, &err), &err);
    assert_true(r == 0.5);
    expect_error("range", iv_json_object_real(&object, "f", 0.6, 1, &r, &found, &err), &err, IV_FORMAT,
                 "f: f: wanted a number from 0.6 to 1, found 0.5");
    expect_error("type", iv_json_object_real(&object, "t", 0, 1, &r, &found, &err), &err, IV_FORMAT, "found true");
    ASSERT_OK(iv_json_object_bool(&object, "t", &b, &found, &err), &err);
    assert_true(b);
    expect_error("bool", iv_json_object_bool(&object, "i", &b, &found, &err), &err, IV_FORMAT,
                 "wanted true or false, found 7");
    ASSERT_OK(iv_json_object_string(&object, "s", &s, &found, &err), &err);
    assert_string_equal(s, "x");
    expect_error("string", iv_json_object_string(&object, "f", &s, &found, &err), &err, IV_FORMAT,
                 "wanted a string, found 0.5");
    expect_error("nul", iv_json_object_string(&object, "nul", &s, &found, &err), &err, IV_FORMAT, "holds a NUL");
}

static void lists_and_inner_objects(void **state) {
    (void)state;
    int64_t v[3];
    size_t count;
    bool found;
    iv_error err;
    iv_json_object inner;
    ASSERT_OK(iv_json_object_ints(&object, "list", 1, 3, v, 3, &count, &found, &err), &err);
    assert_true(count == 3 && v[0] == 1 && v[1] == 2 && v[2] == 3);
    ASSERT_OK(iv_json_object_ints(&object, "i", 7, 7, v, 3, &count, &found, &err), &err);
    assert_true(count == 1 && v[0] == 7);
    ASSERT_OK(iv_json_object_ints(&object, "empty", 7, 7, v, 3, &count, &found, &err), &err);
    assert_int_equal(count, 0);
    expect_error("capacity", iv_json_object_ints(&object, "list", 1, 3, v, 2, &count, &found, &err), &err, IV_LIMIT,
                 "f: list: 3 entries, at most 2");
    expect_error("item", iv_json_object_ints(&object, "list", 1, 2, v, 3, &count, &found, &err), &err, IV_FORMAT,
                 "list[2]: wanted an integer from 1 to 2, found 3");
    expect_error("item", iv_json_object_ints(&object, "bad", 1, 2, v, 3, &count, &found, &err), &err, IV_FORMAT,
                 "bad[1]: wanted an integer from 1 to 2, found string");
    ASSERT_OK(iv_json_object_of("f", "o.", json_object_get(root, "o"), &inner, &err), &err);
    expect_error("path", iv_json_object_int(&inner, "k", 0, 1, v, &found, &err), &err, IV_FORMAT, "f: o.k: wanted");
    expect_error("not one", iv_json_object_of("f", "list.", json_object_get(root, "list"), &inner, &err), &err,
                 IV_FORMAT, "f: list: wanted an object, found array");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(integers), cmocka_unit_test(absent_and_null_leave_the_default),
                                       cmocka_unit_test(reals_bools_and_strings),
                                       cmocka_unit_test(lists_and_inner_objects)};
    return cmocka_run_group_tests(tests, open_object, close_object);
}
