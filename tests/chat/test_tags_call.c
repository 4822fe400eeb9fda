/* Calls in Qwen3-Coder's form: each kind of value; and every forced call is parsed into arguments that satisfy the
 * tool's schema. */
#include "support.h"
#include "format/json.h"
#include "format/json_schema.h"
#include "grammar/random_walk.h"
#include "chat/chat_text.h"
#include "chat/tool_calls.h"

/* ---- values -------------------------------------------------------------------------------------------- */

static void values(void **state) {
    (void)state;
    enum { S = IV_KIND_STRING, N = IV_KIND_NULL, I = IV_KIND_INTEGER, F = IV_KIND_INTEGER | IV_KIND_NUMBER };
    enum { B = IV_KIND_BOOLEAN, A = IV_KIND_ARRAY, O = IV_KIND_OBJECT };
    static const struct {
        unsigned kinds;
        const char *text, *wanted;
    } cases[] = {
        {S, "7", "\"7\""},
        {S, "", "\"\""},
        {S, "null", "\"null\""},
        {S, " a\n", "\" a\\n\""},
        {S, "\x01\x7f\xff", "\"\\u0001\\u007f\xef\xbf\xbd\""},
        {0, "7", "\"7\""},
        {I, "7", "7"},
        {I, " -7\n", "-7"},
        {I, "7.0", "7.0"},
        {I, "+7", "\"+7\""},
        {I, "", "\"\""},
        {I, " \n", "\" \\n\""},
        {I, "seven ", "\"seven \""},
        {I, "NONE", "null"},
        {F, "1e999", "\"1e999\""},
        {F, "-0.10", "-0.10"},
        {F, "NaN", "\"NaN\""},
        {F, "1 2", "\"1 2\""},
        {B, "TRUE", "true"},
        {B, "False", "false"},
        {B, "1", "1"},
        {B, "yes", "\"yes\""},
        {N, "null", "null"},
        {O, "{\"a\":1,\"a\":2}", "{\"a\":1,\"a\":2}"},
        {O, "{'a': 1}", "\"{'a': 1}\""},
        {A, "[1,]", "\"[1,]\""},
        {A | N, "Null", "null"},
        {S | N, "null", "null"},
        {S | N, "NULL", "null"},
        {S | N, "None", "\"None\""},
        {S | N, " null", "\" null\""},
        {S | N, "7", "\"7\""},
        {S | I, "7", "7"},
        {S | I, "12345678901234567890", "12345678901234567890"},
        {S | I, "7.5", "\"7.5\""},
        {S | F, "7.5", "7.5"},
        {S | F, " 7.5", "\" 7.5\""},
        {S | B, "true", "true"},
        {S | B, "True", "\"True\""},
        {S | O, "{}", "{}"},
        {S | O, "[]", "\"[]\""},
        {S | A, "[{}]", "[{}]"},
        {S | A, "\"x\"", "\"\\\"x\\\"\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_buf out = {0};
        assert_true(iv_tags_value_write(cases[i].kinds, cases[i].text, strlen(cases[i].text), &out));
        if (strcmp(out.data, cases[i].wanted) != 0)
            fail_msg("%u '%s': wanted %s, found %s", cases[i].kinds, cases[i].text, cases[i].wanted, out.data);
        iv_buf_free(&out);
    }
}

/* Values of all types at the end of the text, and with a NUL. */
static void any_bytes(void **state) {
    (void)state;
    iv_buf out = {0};
    assert_true(iv_tags_value_write(IV_KIND_STRING, "a\0b", 3, &out));
    assert_string_equal(out.data, "\"a\\u0000b\"");
    iv_buf_clear(&out);
    assert_true(iv_tags_value_write(IV_KIND_INTEGER, "1\0", 2, &out));
    assert_string_equal(out.data, "\"1\\u0000\"");
    iv_buf_free(&out);
}

/* An infinite schema is visited for a limited number of parameters; the values after them are text. */
static void looks_have_an_end(void **state) {
    (void)state;
    static const size_t counts[] = {20, 400};
    json_t *tools = json_loads("[{\"name\":\"f\",\"parameters\":{\"properties\":{\"i\":{\"type\":\"integer\"}},"
                               "\"allOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}}]",
                               0, NULL);
    assert_non_null(tools);
    for (size_t k = 0; k < 2; k++) {
        iv_buf b = {0};
        iv_tags_call c = {.marks = iv_tool_marks_of(IV_TOOL_FORM_QWEN3_CODER), .tools = tools};
        iv_chat_call call;
        assert_true(iv_buf_puts(&b, "<function=f>"));
        for (size_t i = 0; i < counts[k]; i++) assert_true(iv_buf_puts(&b, "<parameter=i>7</parameter>"));
        assert_true(iv_buf_puts(&b, "</function></tool_call>"));
        assert_int_equal(iv_tags_call_scan(&c, b.data, b.len, true), IV_CALLS_DONE);
        assert_true(iv_tags_call_take(&c, b.data, b.len, &call));
        assert_string_equal(call.arguments, k ? "{\"i\": \"7\"}" : "{\"i\": 7}");
        iv_chat_call_free(&call);
        iv_buf_free(&b);
    }
    json_decref(tools);
}

/* ---- forced calls are parsed --------------------------------------------------------------------------- */

/* Bytes and error-prone pieces for random answers. */
static const char *const pieces[] = {"</parameter>",
                                     "\n</parameter>\n",
                                     "</function>",
                                     "\n</function>\n",
                                     "</tool_call>",
                                     "</arg_value>",
                                     "</arg_value>\n<arg_key>b</arg_key>\n<arg_value>",
                                     "\n<parameter name=\"b\">",
                                     "</invoke>",
                                     "\n</seed:tool_call>",
                                     "</parameter>\n</function>\n</seed:tool_call>",
                                     "\n```<"
                                     "\xef\xbd\x9c",
                                     "<|tool_call_end|>",
                                     ", b=",
                                     ")",
                                     "'",
                                     "\\u00e9",
                                     "\\ud83d\\ude00",
                                     "\\ud83d",
                                     "\\/",
                                     "\n<parameter=b>\n",
                                     "<parameter=a>",
                                     "<tool_call>",
                                     "<function=f>",
                                     "\n\n",
                                     "null",
                                     "true",
                                     "[\"",
                                     "{\"",
                                     "\"]",
                                     "\"}",
                                     "\xc3\xa9",
                                     "\\\"",
                                     "</",
                                     "12",
                                     "\n</parameter>"};
enum { PIECES = sizeof pieces / sizeof *pieces, MOST = 1500 };

static void check_read(iv_tool_form form, const char *parameters, json_t *tools, const iv_buf *text, iv_grammar *json) {
    static iv_chat_text c;
    iv_error err;
    bool matches;
    iv_chat_text_init(&c, true, false, true, false);
    c.form = form, c.schemas = tools;
    if (form == IV_TOOL_FORM_HARMONY) c.reasoning_form = IV_REASONING_FORM_HARMONY;
    for (size_t at = 0, step; at < text->len; at += step) {
        step = at % 11 + 1 < text->len - at ? at % 11 + 1 : text->len - at;
        iv_chat_text_push(&c, text->data + at, step);
    }
    iv_chat_text_end(&c);
    if (c.call_count == 0 || c.content.len) fail_msg("%s: not read: %s", parameters, text->data);
    for (size_t i = 0; i < c.call_count; i++) {
        const char *found = c.calls[i].arguments;
        assert_string_equal(c.calls[i].name, "f");
        ASSERT_OK(iv_grammar_matches(json, found, strlen(found), &matches, NULL, &err), &err);
        if (!matches) fail_msg("%s:\n%s\nis read as %s", parameters, text->data, found);
    }
    iv_chat_text_free(&c);
}

/* Returns the answers that were read. */
static size_t forced_is_read_in(iv_tool_form form) {
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"string\"}},\"required\":["
        "\"a\"]}",
        "{\"properties\":{\"a\":{\"type\":[\"string\",\"null\"]},\"b\":{\"type\":\"boolean\"}},\"required\":[\"a\"]}",
        "{\"properties\":{\"a\":{\"type\":[\"string\",\"number\"],\"minimum\":5},\"b\":{\"type\":\"integer\"}}}",
        "{\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"array\",\"items\":{\"enum\":[\"</"
        "parameter>\",7]}},{\"type\":\"string\"}]}}}",
        "{\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"b\":{\"type\":\"object\"}}}",
        "{\"properties\":{\"a\":{\"type\":[\"string\",\"boolean\",\"object\"],\"maxLength\":20,\"required\":[\"x\"]}}}",
        "{\"properties\":{\"a\":{\"minLength\":3,\"maxLength\":30},\"b\":{\"enum\":[\"x\",\"</"
        "parameter>\",\"1\",2,null]}}}",
        "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[<a-z/>=\\\\n]+$\"}},\"required\":[\"a\"]}",
        "{\"properties\":{\"a\":{\"format\":\"date\"},\"b\":{\"type\":[\"null\",\"integer\"]}}}",
        "{\"anyOf\":[{\"properties\":{\"a\":{\"const\":1},\"b\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{"
        "\"type\":"
        "\"array\"}},\"required\":[\"b\"]}]}",
        "{\"additionalProperties\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}}}",
        "{\"type\":\"object\"}",
        "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"properties\":{\"a\":{\"$ref\":\"#/$defs/"
        "n\"},\"b\":{\"type\":\"string\"}}}}}",
    };
    rng r = {11};
    iv_vocabulary v;
    iv_error err;
    iv_buf text = {0};
    size_t ended = 0;
    open_pieces(pieces, PIECES, &v);
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        iv_grammar *g, *json;
        iv_buf formed = {0};
        json_t *tools = json_pack("[{s:s,s:{s:s,s:o}}]", "type", "function", "function", "name", "f", "parameters",
                                  json_loads(schemas[i], 0, NULL));
        assert_non_null(tools);
        assert_true(iv_buf_printf(&formed, "{\"form\":\"%s\",\"tools\":[{\"name\":\"f\",\"parameters\":%s}]}",
                                  iv_tool_form_name(form), schemas[i]));
        ASSERT_OK(iv_grammar_open(IV_CONSTRAINT_TOOL_CALLS, formed.data, IV_REASONING_NONE, &v, &g, &err), &err);
        ASSERT_OK(iv_grammar_open(IV_CONSTRAINT_JSON_SCHEMA, schemas[i], IV_REASONING_NONE, &v, &json, &err), &err);
        for (size_t round = 0; round < (SANITIZED ? 15 : 1000); round++) {
            if (!random_walk(g, &v, MOST, 3, &r, &text)) continue;
            check_read(form, schemas[i], tools, &text, json);
            ended++;
        }
        iv_grammar_close(g), iv_grammar_close(json);
        iv_buf_free(&formed);
        json_decref(tools);
    }
    print_message("%s: %zu answers were read\n", iv_tool_form_name(form), ended);
    iv_buf_free(&text);
    iv_vocabulary_close(&v);
    return ended;
}

static void forced_is_read(void **state) {
    (void)state;
    for (int form = 0; form < IV_TOOL_FORM_NONE; form++) {
        iv_tool_kind kind = iv_tool_marks_of((iv_tool_form)form)->kind;
        if (kind != IV_TOOLS_TAGS && kind != IV_TOOLS_PYTHON && kind != IV_TOOLS_MARKED && kind != IV_TOOLS_CHANNELS)
            continue;
        assert_true(forced_is_read_in((iv_tool_form)form) > (SANITIZED ? 50 : 4000));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(any_bytes),
        cmocka_unit_test(looks_have_an_end),
        cmocka_unit_test(forced_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
