/* The kinds of values that a schema allows, and the targets of its references. */
#include "support.h"
#include "base/buf.h"
#include "format/json.h"
#include "format/json_schema.h"
#include "format/schema_words.h"

enum { N = IV_KIND_NULL, B = IV_KIND_BOOLEAN, I = IV_KIND_INTEGER, F = IV_KIND_INTEGER | IV_KIND_NUMBER };
enum { S = IV_KIND_STRING, A = IV_KIND_ARRAY, O = IV_KIND_OBJECT };

static json_t *parse(const char *text) {
    json_t *v;
    iv_error err;
    ASSERT_OK(iv_json_parse("test", text, strlen(text), &v, &err), &err);
    return v;
}

static unsigned kinds_in(json_t *schema, const char *name) {
    size_t looks;
    return iv_json_parameter_kinds(schema, name, &looks);
}

static void kinds_of_a_property(void **state) {
    (void)state;
    static const struct {
        const char *x; /* the property's schema */
        unsigned kinds;
    } cases[] = {
        {"{\"type\":\"string\"}", S},
        {"{\"type\":\"integer\"}", I},
        {"{\"type\":\"number\"}", F},
        {"{\"type\":[\"boolean\",\"null\"]}", B | N},
        /* no constraint: a string */
        {"{}", S},
        {"true", S},
        {"{\"description\":\"any\"}", S},
        {"{\"type\":\"tuple\"}", S},
        {"{\"type\":7}", S},
        {"{\"anyOf\":[{},{\"description\":\"any\"}]}", S},
        {"{\"$ref\":\"#/nowhere\"}", S},
        {"{\"$ref\":\"other.json\"}", S},
        {"{\"$ref\":\"#/$defs/self\"}", S},
        /* values */
        {"{\"enum\":[\"a\",1,null]}", S | I | N},
        {"{\"enum\":[\"a\",1,null],\"type\":[\"string\",\"null\"]}", S | N},
        {"{\"const\":1.5}", IV_KIND_NUMBER},
        {"{\"const\":2.0}", I},
        {"{\"enum\":[[],{},true]}", A | O | B},
        /* branches unite, all else intersects */
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", S | N},
        {"{\"oneOf\":[{\"type\":\"array\"},{\"const\":1}],\"type\":[\"array\",\"string\"]}", A},
        {"{\"allOf\":[{\"type\":[\"string\",\"integer\"]},{\"type\":[\"integer\",\"null\"]}]}", I},
        {"{\"anyOf\":[{},{\"type\":\"integer\"}]}", S | I},
        {"{\"$ref\":\"#/$defs/point\"}", O},
        {"{\"$ref\":\"#/$defs/maybe\",\"description\":\"x\"}", O | N},
        {"false", S}, /* no constraint on the properties */
        /* other keywords count if there is no type */
        {"{\"minLength\":1}", S},
        {"{\"minimum\":1}", F},
        {"{\"items\":{}}", A},
        {"{\"properties\":{}}", O},
        {"{\"minLength\":1,\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", S | N},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[600];
        snprintf(
            text, sizeof text,
            "{\"properties\":{\"x\":%s},\"$defs\":{\"point\":{\"type\":\"object\"},\"maybe\":{\"anyOf\":[{\"$ref\":"
            "\"#/$defs/point\"},{\"type\":\"null\"}]},\"self\":{\"$ref\":\"#/$defs/self\"}}}",
            cases[i].x);
        json_t *v = parse(text);
        unsigned found = kinds_in(v, "x");
        if (found != cases[i].kinds) fail_msg("%s: wanted %u, found %u", cases[i].x, cases[i].kinds, found);
        json_decref(v);
    }
}

static void properties_by_place(void **state) {
    (void)state;
    static const struct {
        const char *schema, *name;
        unsigned kinds;
    } cases[] = {
        {"{\"properties\":{\"x\":{\"type\":\"integer\"}}}", "y", S},
        {"{\"properties\":{},\"additionalProperties\":{\"type\":\"integer\"}}", "y", I},
        {"{\"additionalProperties\":true}", "y", S},
        {"{\"additionalProperties\":false}", "y", S},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"properties\":{\"x\":{\"type\":\"array\"}}}}}", "x", A},
        {"{\"allOf\":[{\"properties\":{\"x\":{\"type\":\"array\"}}},{\"properties\":{\"y\":{\"type\":\"null\"}}}]}",
         "x", A},
        {"{\"anyOf\":[{\"properties\":{\"x\":{\"type\":\"array\"}}},{\"properties\":{\"x\":{\"type\":\"null\"}}}]}",
         "x", A | N},
        {"null", "x", S},
        {"[]", "x", S},
        {"\"x\"", "x", S},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = parse(cases[i].schema);
        if (kinds_in(v, cases[i].name) != cases[i].kinds) fail_msg("%s", cases[i].schema);
        json_decref(v);
    }
}

/* Exponential branches and cyclic references are bounded. */
static void no_schema_takes_long(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{\"properties\":{\"x\":{\"$ref\":\"#/a\"}},\"a\":{\"anyOf\":[{\"$ref\":\"#/a\"},{\"$ref\":\"#/a\"}]}}",
        "{\"allOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}"};
    for (size_t i = 0; i < 2; i++) {
        json_t *v = parse(texts[i]);
        assert_int_equal(kinds_in(v, "x"), S);
        json_decref(v);
    }
}

/* All work is counted, and bounded. */
static void looks_are_counted(void **state) {
    (void)state;
    enum { ENTRIES = 1000, MOST = 200000 };
    static const struct {
        const char *before, *entry, *after;
        bool again; /* repeated until the budget is spent */
    } cases[] = {{"{\"properties\":{\"x\":{\"enum\":[", "1", "]}}}", false},
                 {"{\"properties\":{\"x\":{\"type\":[", "\"null\"", "]}}}", false},
                 {"{\"properties\":{\"x\":{\"anyOf\":[", "true", "]}}}", false},
                 {"{\"allOf\":[", "true", "]}", false},
                 {"{\"allOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},", "true", "]}", true},
                 {"{\"allOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}],\"anyOf\":[", "true", "]}", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_buf b = {0};
        size_t looks;
        assert_true(iv_buf_puts(&b, cases[i].before));
        for (size_t k = 0; k < ENTRIES; k++)
            assert_true(iv_buf_puts(&b, k ? "," : "") && iv_buf_puts(&b, cases[i].entry));
        assert_true(iv_buf_puts(&b, cases[i].after));
        json_t *v = parse(b.data);
        iv_json_parameter_kinds(v, "x", &looks);
        if (looks < ENTRIES || looks > (cases[i].again ? MOST : 3 * ENTRIES))
            fail_msg("%s: %zu looks", cases[i].before, looks);
        json_decref(v);
        iv_buf_free(&b);
    }
}

static void pointers(void **state) {
    (void)state;
    static const struct {
        const char *pointer, *wanted; /* as a string there; NULL: nothing */
    } cases[] = {{"#/a", "1"},    {"#/b/1", "3"},  {"#/b/2", NULL}, {"#/b/x", NULL}, {"#/c~1d/~0", "4"},
                 {"#/%24e", "5"}, {"#/a/f", NULL}, {"a", NULL},     {"#a", NULL},    {"", NULL}};
    json_t *v = parse("{\"a\":\"1\",\"b\":[\"2\",\"3\"],\"c/d\":{\"~\":\"4\"},\"$e\":\"5\"}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = json_string_value(iv_json_pointer(v, cases[i].pointer));
        if (!found != !cases[i].wanted || (found && strcmp(found, cases[i].wanted) != 0))
            fail_msg("%s: wanted %s, found %s", cases[i].pointer, cases[i].wanted ? cases[i].wanted : "nothing",
                     found ? found : "nothing");
    }
    assert_ptr_equal(iv_json_pointer(v, "#"), v);
    json_decref(v);
}

/* ---- labels -------------------------------------------------------------------------------------------- */

static bool add_label(void *user, const char *where, const char *what) {
    iv_buf *out = user;
    iv_buf_printf(out, "%s %s;", where, what);
    return strcmp(what, "stop") != 0;
}

static void labels(void **state) {
    (void)state;
    static const struct {
        const char *schema, *labels;
    } cases[] = {
        {"true", ""},
        {"7", ""},
        {"{\"x-a\":1,\"markdownDescription\":\"\",\"nullable\":true}", "# x-a;# markdownDescription;# nullable;"},
        {"{\"$schema\":\"s\",\"title\":\"t\",\"description\":\"d\",\"default\":1,\"examples\":[{\"x\":1}],"
         "\"$comment\":\"c\",\"deprecated\":true,\"readOnly\":true,\"writeOnly\":true}",
         ""},
        {"{\"enum\":[{\"x\":1}],\"const\":{\"x\":1},\"x-b\":{\"properties\":{\"a\":{\"y\":1}}}}", "# x-b;"},
        {"{\"properties\":{\"title\":{\"x\":1},\"a/b~\":{\"y\":1}},\"required\":[\"z\"]}",
         "#/properties/title x;#/properties/a~1b~0 y;"},
        {"{\"patternProperties\":{\"^a\":{\"x\":1}},\"additionalProperties\":{\"y\":1},\"propertyNames\":{\"z\":1}}",
         "#/patternProperties/^a x;#/additionalProperties y;#/propertyNames z;"},
        {"{\"items\":[{\"x\":1},{\"anyOf\":[true,{\"y\":1}]}],\"additionalItems\":{\"z\":1}}",
         "#/items/0 x;#/items/1/anyOf/1 y;#/additionalItems z;"},
        {"{\"prefixItems\":[{\"x\":1}],\"items\":{\"y\":1},\"allOf\":[{\"z\":1}],\"oneOf\":[{\"w\":1}]}",
         "#/prefixItems/0 x;#/items y;#/allOf/0 z;#/oneOf/0 w;"},
        {"{\"$defs\":{\"n\":{\"x\":1}},\"definitions\":{\"m\":{\"y\":1}}}", "#/$defs/n x;#/definitions/m y;"},
        {"{\"format\":\"int32\",\"anyOf\":[{\"format\":\"uuid\"},{\"format\":\"Date\"}]}",
         "# format: int32;#/anyOf/1 format: Date;"},
        /* names that nothing refers to */
        {"{\"$id\":\"http://a/b\",\"items\":{\"$anchor\":\"n\",\"id\":\"#m\",\"$ref\":\"#/$defs/a\"}}",
         "# $id;#/items $anchor;#/items id;"},
        {"{\"$id\":\"http://a/b\",\"items\":{\"$anchor\":\"n\",\"x\":1},\"not\":false,\"anyOf\":[{\"$ref\":\"#n\"}]}",
         "#/items x;"},
        {"{\"a\":1,\"stop\":1,\"b\":1,\"items\":{\"c\":1}}", "# a;# stop;"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *schema = parse(cases[i].schema);
        iv_buf out = {0};
        iv_schema_labels(schema, add_label, &out);
        assert_string_equal(out.data ? out.data : "", cases[i].labels);
        iv_buf_free(&out), json_decref(schema);
    }
}

/* Nested deeply, with long names: the place is shortened. */
static void deep_labels(void **state) {
    (void)state;
    enum { DEPTH = 500 };
    iv_buf text = {0}, out = {0};
    for (int i = 0; i < DEPTH; i++) iv_buf_puts(&text, "{\"additionalProperties\":");
    iv_buf_puts(&text, "{\"x\":1}");
    for (int i = 0; i < DEPTH; i++) iv_buf_putc(&text, '}');
    json_t *schema = parse(text.data);
    iv_schema_labels(schema, add_label, &out);
    assert_true(out.len > 190 && out.len < 210);
    assert_string_equal(out.data + out.len - 3, " x;");
    json_decref(schema), iv_buf_free(&text), iv_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_of_a_property),
        cmocka_unit_test(properties_by_place),
        cmocka_unit_test(no_schema_takes_long),
        cmocka_unit_test(looks_are_counted),
        cmocka_unit_test(pointers),
        cmocka_unit_test(labels),
        cmocka_unit_test(deep_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
