/* The JSON writer: jansson reads its output back. */
#include "base/json_out.h"
#include "format/json.h"
#include "support.h"

#include <math.h>

static json_t *read_back_json(iv_json_out *o) {
    iv_error err;
    json_t *v = NULL;
    assert_false(o->failed);
    ASSERT_OK(iv_json_parse("written", o->buf->data, o->buf->len, &v, &err), &err);
    iv_buf_free(o->buf);
    return v;
}

static void values(void **state) {
    (void)state;
    static const char text[] = "q\" b\\ \n\r\t\x01\x7f nul\0 é 漢 🙂 bad \xff\xc3(";
    iv_buf b = {0};
    iv_json_out o = {.buf = &b};
    int32_t ids[] = {1, -2, INT32_MAX};
    iv_out_open(&o, '{');
    iv_out_key(&o, "text"), iv_out_string(&o, text, sizeof text - 1);
    iv_out_kv_text(&o, "none", NULL), iv_out_kv_uint(&o, "uint", UINT64_MAX / 2), iv_out_kv_bool(&o, "yes", true);
    iv_out_key(&o, "ids"), iv_out_ids(&o, ids, 3);
    iv_out_key(&o, "empty"), iv_out_open(&o, '['), iv_out_close(&o, ']');
    iv_out_key(&o, "raw"), iv_out_raw(&o, "[1,{}]", 6);
    iv_out_key(&o, "list"), iv_out_open(&o, '['), iv_out_null(&o), iv_out_real(&o, 1.5), iv_out_int(&o, -1);
    iv_out_close(&o, ']'), iv_out_close(&o, '}');
    json_t *v = read_back_json(&o);
    const json_t *s = json_object_get(v, "text");
    static const char wanted[] = "q\" b\\ \n\r\t\x01\x7f nul\0 é 漢 🙂 bad \xef\xbf\xbd\xef\xbf\xbd(";
    assert_int_equal(json_string_length(s), sizeof wanted - 1);
    assert_memory_equal(json_string_value(s), wanted, sizeof wanted - 1);
    assert_true(json_is_null(json_object_get(v, "none")) && json_is_true(json_object_get(v, "yes")));
    assert_int_equal(json_integer_value(json_object_get(v, "uint")), INT64_MAX);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(v, "ids"), 2)), INT32_MAX);
    assert_int_equal(json_array_size(json_object_get(v, "list")), 3);
    json_decref(v);
}

/* Every float reads back as itself; the nine-digit form is a real to every reader. */
static void floats(void **state) {
    (void)state;
    uint32_t bits = 1;
    for (size_t i = 0; i < 200000; i++) {
        float v;
        iv_buf b = {0};
        iv_json_out o = {.buf = &b};
        bits = bits * 1664525u + 1013904223u;
        memcpy(&v, &bits, sizeof v);
        if (i < 4) v = (float[]){0.0f, -0.0f, 1.0f, -17.0f}[i];
        if (!isfinite(v)) continue;
        iv_out_float(&o, v);
        assert_false(o.failed);
        float again = strtof(b.data, NULL);
        if (memcmp(&again, &v, sizeof v) != 0) fail_msg("%a was printed as %s", (double)v, b.data);
        assert_non_null(strpbrk(b.data, ".e"));
        iv_buf_clear(&b);
        o.comma = false;
        iv_out_shortest(&o, v);
        assert_true(strtof(b.data, NULL) == v);
        iv_buf_free(&b);
    }
    iv_buf b = {0};
    iv_json_out o = {.buf = &b};
    iv_out_open(&o, '['), iv_out_float(&o, -INFINITY), iv_out_float(&o, NAN), iv_out_shortest(&o, 0.6f);
    iv_out_close(&o, ']');
    assert_string_equal(b.data, "[-9999.0,-9999.0,0.6]");
    iv_buf_free(&b);
}

static void doubles(void **state) {
    (void)state;
    static const double values[] = {0.1, 1.0 / 3, 20, 1e300, 5e-324, -2.5};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        iv_buf b = {0};
        iv_json_out o = {.buf = &b};
        iv_out_double(&o, values[i]);
        assert_true(strtod(b.data, NULL) == values[i]);
        iv_buf_free(&b);
    }
    iv_buf b = {0};
    iv_json_out o = {.buf = &b};
    iv_out_open(&o, '['), iv_out_double(&o, 20), iv_out_double(&o, NAN), iv_out_shortest(&o, -INFINITY);
    iv_out_close(&o, ']');
    assert_string_equal(b.data, "[20,null,null]");
    iv_buf_free(&b);
}

/* A file gets the same values; spaced output has a space after each comma and colon. */
static void files_and_spaces(void **state) {
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    iv_json_out o = {.file = file, .spaced = true};
    iv_out_kv_open(&o, NULL, '{'), iv_out_kv_int(&o, "a", -1), iv_out_kv_open(&o, "b", '[');
    iv_out_kv_uint(&o, NULL, 1), iv_out_kv_shortest(&o, NULL, 0.1f), iv_out_close(&o, ']');
    iv_out_kv_string(&o, "c", "x\r", 2), iv_out_kv_null(&o, "d"), iv_out_close(&o, '}');
    assert_int_equal(fclose(file), 0);
    assert_false(o.failed);
    assert_string_equal(text, "{\"a\": -1, \"b\": [1, 0.1], \"c\": \"x\\r\", \"d\": null}");
    free(text);
    file = fopen("/dev/null", "r");
    o = (iv_json_out){.file = file};
    iv_out_int(&o, 1);
    assert_true(o.failed);
    fclose(file);
}

static void failed_allocations_are_kept(void **state) {
    (void)state;
    iv_buf b = {.limit = 8};
    iv_json_out o = {.buf = &b};
    iv_out_open(&o, '[');
    for (int i = 0; i < 20; i++) iv_out_int(&o, i);
    assert_true(o.failed);
    iv_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(floats),
        cmocka_unit_test(doubles),
        cmocka_unit_test(files_and_spaces),
        cmocka_unit_test(failed_allocations_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
