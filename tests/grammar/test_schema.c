/* What schemas of the public write: labels, references, patterns of names, steps, formats, exclusive branches; and what
 * hostile ones cost. */
#include "base/buf.h"
#include "grammar/grammar.h"
#include "with_bytes.h"

typedef struct example {
    const char *schema, *yes[8], *no[10]; /* each ends with NULL */
} example;

static void expect(const char *schema, iv_grammar *g, const char *answer, bool wanted) {
    iv_error err;
    bool matches;
    ASSERT_OK(iv_grammar_matches(g, answer, strlen(answer), &matches, NULL, &err), &err);
    if (matches != wanted) fail_msg("%s: '%s' %s", schema, answer, wanted ? "does not match" : "matches");
}

static void expect_all(const example *examples, size_t count) {
    for (size_t i = 0; i < count; i++) {
        iv_grammar *g = open_grammar(IV_CONSTRAINT_JSON_SCHEMA, examples[i].schema, IV_REASONING_NONE, &bytes);
        for (size_t k = 0; examples[i].yes[k]; k++) expect(examples[i].schema, g, examples[i].yes[k], true);
        for (size_t k = 0; examples[i].no[k]; k++) expect(examples[i].schema, g, examples[i].no[k], false);
        iv_grammar_close(g);
    }
}

#define EXPECT_ALL(examples) expect_all((examples), sizeof(examples) / sizeof *(examples))

static void expect_refusal(const char *schema, iv_status wanted, const char *part) {
    iv_grammar *g = NULL;
    iv_error err = {0};
    iv_status status = iv_grammar_open(IV_CONSTRAINT_JSON_SCHEMA, schema, IV_REASONING_NONE, &bytes, &g, &err);
    if (status != wanted || !strstr(err.message, part))
        fail_msg("%.200s: %s: %s", schema, iv_status_name(status), err.message);
}

static void labels(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"type\":\"null\",\"x-order\":1,\"id\":\"a\",\"$anchor\":\"n\",\"markdownDescription\":\"\",\"_format\":{},"
         "\"nullable\":true,\"then\":false,\"dependencies\":{},\"not\":false,\"contentSchema\":{\"not\":{}}}",
         {"null"},
         {"1"}},
        {"{\"type\":\"string\",\"format\":\"html-selector\"}", {"\"a\""}, {"1"}},
        {"{\"x-a\":{\"not\":{}}}", {"1", "[]"}, {""}},
    };
    EXPECT_ALL(examples);
    expect_refusal("{\"properties\":{\"a\":{\"not\":{\"type\":\"null\"}}}}", IV_UNSUPPORTED, "#/properties/a/not: ");
    expect_refusal("{\"if\":{},\"then\":false}", IV_UNSUPPORTED, "#/if: ");
    expect_refusal("{\"contains\":{}}", IV_UNSUPPORTED, "#/contains: ");
    expect_refusal("{\"dependentRequired\":{\"a\":[\"b\"]}}", IV_UNSUPPORTED, "#/dependentRequired: ");
    expect_refusal("{\"type\":\"string\",\"format\":\"regex\"}", IV_UNSUPPORTED, "format: \"regex\"");
}

static void references(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"$ref\":\"#/%24defs/a%20b\",\"$defs\":{\"a b\":{\"type\":\"null\"}}}", {"null"}, {"1"}},
        {"{\"$ref\":\"#/$defs/a%25b~1c\",\"$defs\":{\"a%b/c\":{\"type\":\"null\"}}}", {"null"}, {"1"}},
        {"{\"$ref\":\"#/$defs/%C3%A9\",\"$defs\":{\"\xc3\xa9\":{\"type\":\"null\"}}}", {"null"}, {"1"}},
        {"{\"$ref\":\"#n\",\"$defs\":{\"x\":{\"$anchor\":\"n\",\"type\":\"null\"}}}", {"null"}, {"1"}},
        {"{\"$id\":\"http://a/b\",\"$ref\":\"http://a/b#/$defs/x\",\"$defs\":{\"x\":{\"type\":\"null\"}}}",
         {"null"},
         {"1"}},
    };
    EXPECT_ALL(examples);
    expect_refusal("{\"$ref\":\"#/$defs/a%00b\",\"$defs\":{\"a\":{}}}", IV_INVALID, "was not found");
    expect_refusal("{\"$ref\":\"#n\"}", IV_INVALID, "\"#n\" was not found");
    expect_refusal("{\"$ref\":\"#/prefixItems/01\",\"prefixItems\":[1,{}]}", IV_INVALID, "was not found");
    expect_refusal("{\"properties\":{\"a\":{\"$id\":\"http://b\",\"items\":{\"$ref\":\"#\"}}}}", IV_UNSUPPORTED,
                   "inner \"$id\"");
}

static void names(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"patternProperties\":{\"^a\":{\"type\":\"integer\"},\"b$\":{\"maximum\":5}},\"additionalProperties\":"
         "false}",
         {"{}", "{\"a\":77}", "{\"ab\":5}", "{\"b\":1.5}", "{\"ax\":6,\"xb\":0}"},
         {"{\"ab\":6}", "{\"ab\":1.5}", "{\"x\":1}", "{\"a\":null}"}},
        {"{\"properties\":{\"a\":{\"minimum\":3}},\"patternProperties\":{\"^a\":{\"type\":\"integer\"}},"
         "\"additionalProperties\":{\"type\":\"null\"},\"required\":[\"ac\"]}",
         {"{\"a\":3,\"ac\":1,\"z\":null}", "{\"ac\":1}"},
         {"{\"a\":2,\"ac\":1}", "{\"a\":3.5,\"ac\":1}", "{\"a\":3}", "{\"ac\":null}", "{\"ac\":1,\"z\":1}"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]+$\",\"maxLength\":2}}",
         {"{}", "{\"ab\":1}"},
         {"{\"abc\":1}", "{\"A\":1}", "{\"\":1}"}},
        {"{\"type\":\"object\",\"propertyNames\":false}", {"{}"}, {"{\"a\":1}"}},
        {"{\"propertyNames\":{\"enum\":[\"a\",\"\xc3\xa9\"]}}", {"{\"\xc3\xa9\":1}"}, {"{\"b\":1}", "{\"\":1}"}},
        {"{\"patternProperties\":{\".*\":{\"type\":\"null\"}},\"minProperties\":1}", {"{\"\":null}"}, {"{}"}},
        {"{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":1,\"maxProperties\":2}", {"{\"b\":1}"}, {"{}"}},
    };
    EXPECT_ALL(examples);
    expect_refusal("{\"allOf\":[{\"patternProperties\":{\"a\":{}}},{\"properties\":{\"b\":{}},"
                   "\"additionalProperties\":false}]}",
                   IV_UNSUPPORTED, "patternProperties");
    expect_refusal("{\"propertyNames\":{\"format\":\"uri\"}}", IV_UNSUPPORTED, "#/propertyNames/format");
}

/* Forms without JSON have no place for patterns of names, so they must not be lost there. */
static void names_of_arguments(void **state) {
    (void)state;
    static const char *const schemas[] = {
        "{\"properties\":{\"a\":{}},\"patternProperties\":{\"a\":{\"type\":\"null\"}}}",
        "{\"propertyNames\":{\"maxLength\":1}}"};
    char text[300];
    for (size_t i = 0; i < 2; i++) {
        iv_grammar *g = NULL;
        iv_error err = {0};
        snprintf(text, sizeof text, "{\"form\":\"qwen3_coder\",\"tools\":[{\"name\":\"f\",\"parameters\":%s}]}",
                 schemas[i]);
        iv_status status = iv_grammar_open(IV_CONSTRAINT_TOOL_CALL, text, IV_REASONING_NONE, &bytes, &g, &err);
        if (status != IV_UNSUPPORTED || !strstr(err.message, "patternProperties, propertyNames"))
            fail_msg("%s: %s: %s", text, iv_status_name(status), err.message);
    }
}

static void numbers_and_lists(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"type\":\"integer\",\"multipleOf\":7}", {"0", "-7", "42", "7000000000000000"}, {"1", "-6", "7.0"}},
        {"{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":3,\"exclusiveMaximum\":20}",
         {"5", "15"},
         {"0", "3", "20", "-5"}},
        {"{\"type\":\"number\",\"multipleOf\":0.01}", {"0.07", "12", "1.5", "-3.10"}, {"0.001", "1e5", "1."}},
        {"{\"multipleOf\":2.5,\"maximum\":10}", {"2.5", "5", "5.0", "-7.5"}, {"2", "12.5", "2.50"}},
        {"{\"type\":\"integer\",\"multipleOf\":0.5}", {"3"}, {"3.5"}},
        {"{\"type\":\"number\",\"minimum\":1,\"exclusiveMinimum\":true}", {"2", "1.5"}, {"1", "0"}},
        {"{\"items\":{\"enum\":[\"a\",1,1.0,null]},\"uniqueItems\":true,\"minItems\":1}",
         {"[\"a\"]", "[null, 1]", "[1,\"a\",null]"},
         {"[]", "[1,1]", "[\"a\",\"a\"]", "[1.0]", "[1,null,1]"}},
        {"{\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true}", {"[]", "[true,false]"}, {"[true,true]"}},
        {"{\"type\":\"array\",\"maxItems\":1,\"uniqueItems\":true}", {"[]", "[1]"}, {"[1,2]"}},
        {"{\"items\":[{\"type\":\"null\"}],\"additionalItems\":{\"type\":\"integer\"}}",
         {"[]", "[null]", "[null,1,2]"},
         {"[1]", "[null,null]"}},
    };
    EXPECT_ALL(examples);
    expect_refusal("{\"items\":{\"type\":\"string\"},\"uniqueItems\":true}", IV_UNSUPPORTED, "#: uniqueItems: ");
    expect_refusal("{\"items\":{\"enum\":[[1],[2]]},\"uniqueItems\":true}", IV_UNSUPPORTED, "#: uniqueItems: ");
    expect_refusal("{\"multipleOf\":0}", IV_INVALID, "#: multipleOf: ");
    expect_refusal("{\"multipleOf\":1001}", IV_LIMIT, "#: multipleOf: ");
}

static void formats(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"format\":\"uri\"}",
         {"\"https://a.b/x%20y\"", "\"mailto:a@b.c\"", "\"urn:isbn:0\"", "\"http://u:p@h:80/?q#f\"", "\"file:///a\"",
          "\"tel:+1-2\""},
         {"\"a b\"", "\"https://a.b/x y\"", "\"//a\"", "\"http://a/%2\"", "\"1a:b\"", "\"a\"", "\"http://[a\""}},
        {"{\"format\":\"uri-reference\"}", {"\"\"", "\"a/b\"", "\"/a?b#c\"", "\"//h\""}, {"\"\\\\a\"", "\"a b\""}},
        {"{\"format\":\"email\"}",
         {"\"o'neil+x@a-b.co.uk\"", "\"a@b\"", "\"a/b=c@d.e\""},
         {"\"a\"", "\".a@b\"", "\"a..b@c\"", "\"a@-b\"", "\"a@b.\"", "\"a @b\""}},
        {"{\"format\":\"email\",\"maxLength\":255}", {"\"a@b\""}, {"\"a\""}},
        {"{\"format\":\"duration\"}",
         {"\"P1Y2M3DT4H5M6S\"", "\"PT36H\"", "\"P123456D\"", "\"P2W\"", "\"P1MT1S\""},
         {"\"P\"", "\"PT\"", "\"P1DT\"", "\"P1Y2W\"", "\"P1S\"", "\"P1Y1D\"", "\"PT1H1S\"", "\"P-1D\""}},
        {"{\"format\":\"hostname\"}", {"\"a\"", "\"a-b.c1\""}, {"\"\"", "\"-a\"", "\"xn--a\"", "\"a..b\""}},
        {"{\"format\":\"json-pointer\"}", {"\"\"", "\"/a~1b/0\""}, {"\"a\"", "\"/~2\""}},
    };
    EXPECT_ALL(examples);
}

#define KIND(value) "{\"properties\":{\"k\":{\"const\":\"" value "\"},\"v\":{}},\"required\":[\"k\"]}"

static void exclusive_branches(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", {"\"a\"", "null"}, {"1"}},
        {"{\"oneOf\":[" KIND("a") "," KIND("b") "]}",
         {"{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\"}"},
         {"{}", "{\"k\":\"c\"}"}},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
         {"{\"a\":1}", "{\"b\":1,\"c\":1}"},
         {"{}", "{\"a\":1,\"b\":1}"}},
        {"{\"properties\":{\"a\":{},\"b\":{}},\"type\":\"object\","
         "\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"a\",\"b\"]}]}",
         {"{\"a\":1}"},
         {"{\"b\":1}", "{\"a\":1,\"b\":1}"}},
        {"{\"oneOf\":[{\"type\":[\"string\",\"null\"]},{\"type\":[\"null\",\"boolean\"]}]}",
         {"\"a\"", "true"},
         {"null"}},
        {"{\"oneOf\":[{\"type\":\"integer\",\"maximum\":1},{\"type\":\"integer\",\"minimum\":2}]}",
         {"1", "2"},
         {"1.5"}},
        {"{\"oneOf\":[{},{\"type\":\"null\"}]}", {"1", "[null]"}, {"null"}},
        {"{\"oneOf\":[{\"const\":1},{\"const\":1},{\"const\":2}]}", {"2"}, {"1"}},
        {"{\"allOf\":[{\"oneOf\":[{\"const\":1},{\"const\":2}]},{\"oneOf\":[{\"const\":1},{\"const\":3}]}]}",
         {"1"},
         {"2", "3"}},
    };
    EXPECT_ALL(examples);
    expect_refusal("{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}", IV_UNSUPPORTED, "#: oneOf: ");
    expect_refusal("{\"oneOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}]}", IV_UNSUPPORTED, "oneOf: ");
    expect_refusal("{\"oneOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", IV_UNSUPPORTED, "#: oneOf: ");
    expect_refusal("{\"oneOf\":[{\"const\":{\"a\":1}},{\"const\":{\"a\":1.0}}]}", IV_UNSUPPORTED, "#: oneOf: ");
}

/* Short schemas that would need much work end soon, with a status. */
static void hostile_schemas_end(void **state) {
    (void)state;
    iv_buf text = {0};
    iv_error err;
    iv_grammar *g;
    static const char *const parts[][3] = {
        {"{\"oneOf\":[", "{\"properties\":{\"k\":{\"const\":%d}},\"required\":[\"k\"]}", "]}"},
        {"{\"patternProperties\":{", "\"a%d|.{1,9}b\":{}", "}}"},
        {"{\"patternProperties\":{", "\"(a|b)*a(a|b){%d}\":{}", "}}"},
        {"{\"$defs\":{\"x\":{\"$anchor\":\"n\"}},\"allOf\":[", "{\"items\":{\"$ref\":\"#n\",\"x\":%d}}", "]}"},
        {"{\"anyOf\":[", "{\"multipleOf\":997,\"minimum\":%d}", "]}"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        iv_buf_clear(&text);
        assert_true(iv_buf_puts(&text, parts[i][0]));
        for (int k = 0; k < 2000; k++) {
            char one[120];
            snprintf(one, sizeof one, parts[i][1], k);
            assert_true((k == 0 || iv_buf_putc(&text, ',')) && iv_buf_puts(&text, one));
        }
        assert_true(iv_buf_puts(&text, parts[i][2]) && iv_buf_putc(&text, 0));
        g = NULL, err = (iv_error){0};
        iv_status status = iv_grammar_open(IV_CONSTRAINT_JSON_SCHEMA, text.data, IV_REASONING_NONE, &bytes, &g, &err);
        if (status != IV_OK && status != IV_LIMIT && status != IV_UNSUPPORTED)
            fail_msg("%s: %s", parts[i][1], err.message);
        iv_grammar_close(g);
    }
    iv_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels),
        cmocka_unit_test(references),
        cmocka_unit_test(names),
        cmocka_unit_test(names_of_arguments),
        cmocka_unit_test(numbers_and_lists),
        cmocka_unit_test(formats),
        cmocka_unit_test(exclusive_branches),
        cmocka_unit_test(hostile_schemas_end),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
