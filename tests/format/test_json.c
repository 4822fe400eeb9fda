/* Strict JSON: numbers of any size next to each other; typed reads: absent and null are equal, numbers may be integers
 * or reals, ranges are inclusive. */
#include "scratch.h"
#include "base/utf8.h"
#include "format/json.h"

/* ---- parsing ---- */

static json_t *parse(const char *text) {
    json_t *v = NULL;
    iv_error err;
    ASSERT_OK(iv_json_parse("f", text, strlen(text), &v, &err), &err);
    return v;
}

/* Only integers beyond 64 bits become reals, in any position. */
static void wide_integers(void **state) {
    (void)state;
    static const struct {
        const char *text, *dumped;
    } cases[] = {
        {"[7, 9223372036854775807, -9223372036854775808]", "[7,9223372036854775807,-9223372036854775808]"},
        {"[7, 9223372036854775808]", "[7,9.2233720368547758e18]"},
        {"[-9223372036854775809, 7,-0]", "[-9.2233720368547758e18,7,0]"},
        {"{\"a\":{\"b\":18446744073709551615,\"c\":[1,2,3]},\"seed\":7}",
         "{\"a\":{\"b\":1.8446744073709552e19,\"c\":[1,2,3]},\"seed\":7}"},
        {"12345678901234567890", "1.2345678901234567e19"},
        {" 12345678901234567890\n", "1.2345678901234567e19"},
        {"[\"12345678901234567890\", \"\\\\\", \"\\\",99999999999999999999\", 99999999999999999999, 5]",
         "[\"12345678901234567890\",\"\\\\\",\"\\\",99999999999999999999\",1e20,5]"},
        {"[12345678901234567890.5, 12345678901234567890e1, 1E2, 99999999999999999999, 1e-2]",
         "[1.2345678901234567e19,1.2345678901234568e20,100.0,1e20,0.01]"},
        {"[1,\n{\"k\":[true,null,98765432109876543210],\"l\":-3}]",
         "[1,{\"k\":[true,null,9.8765432109876543e19],\"l\":-3}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = parse(cases[i].text);
        char *dumped = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        assert_string_equal(dumped, cases[i].dumped);
        free(dumped), json_decref(v);
    }
}

/* An error after a wide integer is reported at its position. */
static void errors_beside_wide_integers(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"[12345678901234567890,\n 12345678901234567890, x]", "f:2:24: not valid JSON"},
        {"[12345678901234567890", "f:1:21: not valid JSON"},
        {"[12345678901234567890, 1e999]", "f:1:28: not valid JSON: real number overflow"},
        {"{\"a\":12345678901234567890,\"a\":1}", "duplicate"},
        {"[12345678901234567890] 1", "f:1:24: not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = NULL;
        iv_error err = {0};
        assert_int_equal(iv_json_parse("f", cases[i].text, strlen(cases[i].text), &v, &err), IV_FORMAT);
        if (!strstr(err.message, cases[i].part)) fail_msg("%s: %s", cases[i].text, err.message);
        assert_null(v);
    }
}

static void bytes_that_are_no_json(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {{"1\0", 2}, {"[1\0,2]", 6}, {"{\"a\":1.5\0}", 9}, {"\0", 1}, {"[12345678901234567890\0]", 23}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = NULL;
        iv_error err = {0};
        assert_int_equal(iv_json_parse("f", cases[i].text, cases[i].n, &v, &err), IV_FORMAT);
        if (!strstr(err.message, "not valid JSON")) fail_msg("%s", err.message);
        assert_null(v);
    }
}

static void members(void **state) {
    (void)state;
    static const struct {
        const char *object, *text; /* of the member "k"; NULL: none */
    } cases[] = {
        {"{}", NULL},
        {" { } ", NULL},
        {"{\"k\":1}", "1"},
        {"{\"k\" : -1.50e+3 }", "-1.50e+3"},
        {" {\"j\":{\"k\":[0]},\t\"k\"\n:\n[ {\"k\":\"}]\"} , 2 ]\n}\n", "[ {\"k\":\"}]\"} , 2 ]"},
        {"{\"k\":1,\"k\":2}", "2"},
        {"{\"k\":1,\"\\u006b\":\"\\\"\\\\\"}", "\"\\\"\\\\\""},
        {"{\"a\":\"k\",\"\":null,\"kk\":true,\"K\":[]}", NULL},
        {"{\"a\":[[],{}],\"k\":12345678901234567890,\"b\":false}", "12345678901234567890"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = NULL;
        iv_error err;
        const char *text = NULL;
        size_t n = strlen(cases[i].object), bytes = 0;
        char *exact = malloc(n); /* so that a read past the end is detected */
        memcpy(exact, cases[i].object, n);
        ASSERT_OK(iv_json_parse_repeating("f", exact, n, &v, &err), &err);
        assert_true(iv_json_member_text(exact, n, "k", &text, &bytes) == (cases[i].text != NULL));
        if (cases[i].text && (bytes != strlen(cases[i].text) || memcmp(text, cases[i].text, bytes) != 0))
            fail_msg("%s: %.*s", cases[i].object, (int)bytes, text);
        free(exact), json_decref(v);
    }
}

static void elements(void **state) {
    (void)state;
    static const struct {
        const char *list, *texts[4];
    } cases[] = {
        {"[]", {NULL}},
        {" [ ] ", {NULL}},
        {"[1]", {"1"}},
        {"[ {\"a\":[1,2]} ,\n18446744073709551615,\"],\" ]", {"{\"a\":[1,2]}", "18446744073709551615", "\"],\""}},
        {"[[],[[]]]", {"[]", "[[]]"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t at = 0, bytes, n = strlen(cases[i].list), count = 0;
        const char *text;
        for (; iv_json_element_text(cases[i].list, n, &at, &text, &bytes); count++) {
            assert_non_null(cases[i].texts[count]);
            assert_int_equal(bytes, strlen(cases[i].texts[count]));
            assert_memory_equal(text, cases[i].texts[count], bytes);
        }
        assert_null(cases[i].texts[count]);
    }
}

static void unsigned_integers(void **state) {
    (void)state;
    uint64_t v = 7;
    assert_true(iv_json_unsigned("18446744073709551615", 20, &v) && v == UINT64_MAX);
    assert_true(iv_json_unsigned("0", 1, &v) && v == 0);
    static const char *const wrong[] = {"", "-1", "1.0", "1e3", "18446744073709551616", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(iv_json_unsigned(wrong[i], strlen(wrong[i]), &v));
}

/* A shortened value ends between characters, with "...". */
static void values_are_shown(void **state) {
    (void)state;
    char found[IV_JSON_SHOWN_BYTES], text[200] = "";
    assert_string_equal(iv_json_shown(NULL, found), "nothing");
    for (size_t more = 0; more < 3; more++) {
        memset(text, 'a', more);
        for (size_t at = more; at < 90; at += 3) memcpy(text + at, "\u65e5", 4);
        json_t *v = json_string(text);
        iv_json_shown(v, found);
        json_decref(v);
        size_t n = strlen(found), bad;
        assert_in_range(n, IV_JSON_SHOWN_BYTES - 3, IV_JSON_SHOWN_BYTES - 1);
        assert_string_equal(found + n - 3, "...");
        assert_true(iv_utf8_valid((const uint8_t *)found, n, &bad));
        assert_memory_equal(found + 1, text, n - 4);
    }
}

/* ---- typed reads of an object's members ---- */

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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_integers),
        cmocka_unit_test(errors_beside_wide_integers),
        cmocka_unit_test(bytes_that_are_no_json),
        cmocka_unit_test(members),
        cmocka_unit_test(elements),
        cmocka_unit_test(unsigned_integers),
        cmocka_unit_test(values_are_shown),
        cmocka_unit_test(integers),
        cmocka_unit_test(absent_and_null_leave_the_default),
        cmocka_unit_test(reals_bools_and_strings),
        cmocka_unit_test(lists_and_inner_objects),
    };
    return cmocka_run_group_tests(tests, open_object, close_object);
}
