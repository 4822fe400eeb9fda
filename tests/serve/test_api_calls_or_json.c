/* Calls together with a format: random answers under that constraint are calls or JSON of the format, and are parsed
 * accordingly, however their text is cut. */
#include "grammar/random_walk.h"
#include "marks_of_calls.h"
#include "chat/chat_text.h"
#include "support.h"

#include <jansson.h>

#define TOOLS                                                                                                     \
    "[{\"name\":\"add\",\"parameters\":{\"properties\":{\"a\":{\"enum\":[1,\"</tool_call>\"]}},\"required\":["    \
    "\"a\"]}},{\"name\":\"add2\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":4}}}}," \
    "{\"name\":\"now\"}]"

/* Bytes, and pieces that make random texts resemble calls. */
static const char *const pieces[] = {"{\"name\": \"add\"",
                                     "{\"name\":\"add2\",",
                                     "{\"name\":\"now\"",
                                     "{\"n\\u0061me\":",
                                     "{\"name\": \"\\u0061dd\", ",
                                     "\"parameters\": {",
                                     "\"parameters\":",
                                     ", \"parameters\"",
                                     " \"parameters\": {\"a\": 1}}",
                                     " \"arguments\": {",
                                     "{\"a\": 1}",
                                     "<tool_call>\n",
                                     "<tool_call><function=now></function></tool_call>",
                                     "<tool_call>{\"name\"",
                                     "\n</tool_call>",
                                     "<function=now>\n",
                                     "</function>",
                                     "[TOOL_CALLS]",
                                     "[TOOL_CALLS]now{}",
                                     "[TOOL_CALLS][{",
                                     MARKS_OF_CALLS,
                                     "[ARGS]",
                                     "{}",
                                     "[]",
                                     "\"}",
                                     "\"",
                                     "}",
                                     "]",
                                     "\", \"",
                                     "1",
                                     "x"};
enum { PIECES = sizeof pieces / sizeof *pieces, MOST = 300 };

static const char *const schemas[] = {
    "{\"type\":\"object\"}",
    "true",
    "{\"type\":\"string\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}",
    "{\"properties\":{\"name\":{\"type\":\"string\"},\"parameters\":{\"type\":[\"object\",\"integer\"]}},\"required\":["
    "\"name\"]}",
    "{\"properties\":{\"name\":{\"enum\":[\"add\",\"adds\",\"ad\"]},\"parameters\":{},\"age\":{\"type\":\"integer\"}},"
    "\"required\":[\"name\"]}",
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"properties\":{\"text\":{\"type\":\"string\"},\"next\":{\"$ref\":\"#/"
    "$defs/n\"}}}}}",
};

static iv_vocabulary vocabulary;
static json_t *tools;

static int open_all(void **state) {
    (void)state;
    open_pieces(pieces, PIECES, &vocabulary);
    return (tools = json_loads(TOOLS, 0, NULL)) ? 0 : -1;
}

static int close_all(void **state) {
    (void)state;
    iv_vocabulary_close(&vocabulary);
    json_decref(tools);
    return 0;
}

static iv_grammar *compile(iv_constraint_kind kind, const char *text) {
    iv_grammar *g = NULL;
    iv_error err;
    ASSERT_OK(iv_grammar_open(kind, text, IV_REASONING_NONE, &vocabulary, &g, &err), &err);
    return g;
}

static bool matches(iv_grammar *g, const char *text, size_t n) {
    iv_error err;
    bool is;
    ASSERT_OK(iv_grammar_matches(g, text, n, &is, NULL, &err), &err);
    return is;
}

/* step 0: varying sizes. Content is passed on as it comes. */
static void read_text(iv_chat_text *c, iv_tool_form form, const iv_buf *text, size_t step) {
    iv_chat_text_init(c, true, false, true, false);
    c->form = form, c->schemas = tools, c->calls_or_json = true;
    if (form == IV_TOOL_FORM_HARMONY) c->reasoning_form = IV_REASONING_FORM_HARMONY;
    for (size_t at = 0, n; at < text->len; at += n) {
        n = step ? step : at % 7 + 1;
        if (n > text->len - at) n = text->len - at;
        iv_chat_text_push(c, text->data + at, n);
        if (c->no_calls) assert_int_equal(c->content.len, at + n);
    }
    iv_chat_text_end(c);
    assert_false(c->failed);
}

/* Harmony's is behind a header. */
static const char *json_of(iv_tool_form form, const iv_buf *text, size_t *n) {
    static const char header[] = "<|channel|>final<|message|>";
    bool behind = form == IV_TOOL_FORM_HARMONY && strncmp(text->data, header, strlen(header)) == 0;
    size_t skip = behind ? strlen(header) : 0;
    *n = text->len - skip;
    return text->data + skip;
}

static void check_read(iv_tool_form form, const char *schema, const iv_buf *text, bool is_call) {
    static iv_chat_text c;
    const size_t steps[] = {0, 1, text->len + 1};
    size_t n;
    const char *json = json_of(form, text, &n);
    for (size_t i = 0; i < 3; i++) {
        read_text(&c, form, text, steps[i]);
        bool right = is_call ? c.call_count && !c.content.len
                             : !c.call_count && c.content.len == n && (!n || memcmp(c.content.data, json, n) == 0);
        if (!right) fail_msg("%s with %s: %zu calls in %s", iv_tool_form_name(form), schema, c.call_count, text->data);
        iv_chat_text_free(&c);
    }
}

static void read_as_what_they_are(void **state) {
    (void)state;
    rng r = {5};
    iv_buf text = {0};
    size_t calls = 0, others = 0;
    for (int form = 0; form < IV_TOOL_FORM_NONE; form++)
        for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
            iv_buf formed = {0};
            const char *name = iv_tool_form_name((iv_tool_form)form);
            assert_true(
                iv_buf_printf(&formed, "{\"form\":\"%s\",\"tools\":" TOOLS ",\"schema\":%s}", name, schemas[i]));
            iv_grammar *calls_or_json = compile(IV_CONSTRAINT_TOOL_CALLS_OR_JSON, formed.data);
            iv_grammar *call = compile(IV_CONSTRAINT_TOOL_CALLS, formed.data);
            iv_grammar *json = compile(IV_CONSTRAINT_JSON_SCHEMA, schemas[i]);
            size_t before[2] = {calls, others};
            for (size_t round = 0; round < (SANITIZED ? 12 : 400); round++) {
                if (!random_walk(calls_or_json, &vocabulary, MOST, 5, &r, &text)) continue;
                size_t n;
                const char *plain = json_of((iv_tool_form)form, &text, &n);
                bool is_call = matches(call, text.data, text.len);
                if (!is_call && !matches(json, plain, n)) fail_msg("%s: %s: neither: %s", name, schemas[i], text.data);
                check_read((iv_tool_form)form, schemas[i], &text, is_call);
                calls += is_call, others += !is_call;
            }
            if (!SANITIZED && (calls == before[0] || others == before[1]))
                fail_msg("%s with %s: %zu calls, %zu others", name, schemas[i], calls - before[0], others - before[1]);
            iv_grammar_close(calls_or_json), iv_grammar_close(call), iv_grammar_close(json);
            iv_buf_free(&formed);
        }
    print_message("%zu calls and %zu others were read\n", calls, others);
    iv_buf_free(&text);
}

/* Handwritten: borderline and truncated texts. */
static void examples(void **state) {
    (void)state;
    static const struct {
        iv_tool_form form;
        const char *text, *reasoning, *content;
        size_t calls;
        bool joined;
    } cases[] = {
        {IV_TOOL_FORM_LLAMA3_JSON, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "", "", 1, false},
        {IV_TOOL_FORM_LLAMA3_JSON, "{\"name\":\"add\",\"parameters\":{\"a\":", "",
         "{\"name\":\"add\",\"parameters\":{\"a\":", 0, false},
        {IV_TOOL_FORM_LLAMA3_JSON, "{\"name\": \"sub\", \"parameters\": {}}", "",
         "{\"name\": \"sub\", \"parameters\": {}}", 0, false},
        {IV_TOOL_FORM_LLAMA3_JSON, "{\"name\": \"\\u0061dd\", \"parameters\": {\"a\": 1}}", "",
         "{\"name\": \"\\u0061dd\", \"parameters\": {\"a\": 1}}", 0, false},
        {IV_TOOL_FORM_LLAMA3_JSON, "{\"name\": \"add\", \"arguments\": {}}", "",
         "{\"name\": \"add\", \"arguments\": {}}", 0, false},
        {IV_TOOL_FORM_LLAMA3_JSON, "{\"name\": \"ad", "", "{\"name\": \"ad", 0, false},
        {IV_TOOL_FORM_LLAMA3_JSON, "<think>hm</think>\n\n{\"name\": \"now\", \"parameters\": {}}", "hm", "", 1, false},
        {IV_TOOL_FORM_LLAMA3_JSON, "<think>hm</think>\n\n{\"a\": \"<|python_tag|>{}\"}", "hm",
         "{\"a\": \"<|python_tag|>{}\"}", 0, false},
        {IV_TOOL_FORM_LLAMA3_JSON, " <think>hm </think>\n{\"name\": \"now\", \"parameters\": {}}", "",
         " <think>hm </think>", 1, true},
        {IV_TOOL_FORM_LLAMA3_JSON, "<think>hm </think>\n{\"n\":1} ", "", "<think>hm </think>\n{\"n\":1} ", 0, true},
        {IV_TOOL_FORM_HERMES, "<think>a<tool_call>b</think>\n<tool_call>\n{\"name\":\"now\"}\n</tool_call>",
         "a<tool_call>b", "", 1, false},
        {IV_TOOL_FORM_HERMES, "<tool_ca", "", "<tool_ca", 0, false},
        {IV_TOOL_FORM_HERMES, "\"<tool_call>{}\"", "", "\"<tool_call>{}\"", 0, false},
        {IV_TOOL_FORM_QWEN3_CODER, "{\"a\": \"<tool_call><function=now></function></tool_call>\"}", "",
         "{\"a\": \"<tool_call><function=now></function></tool_call>\"}", 0, false},
        {IV_TOOL_FORM_MISTRAL, "[\"[TOOL_CALLS]now{}\"]", "", "[\"[TOOL_CALLS]now{}\"]", 0, false},
        {IV_TOOL_FORM_MISTRAL_NAME, "[TOOL_CALLS]now{}[TOOL_CALLS]add{\"a\": 1}", "", "", 2, false},
        {IV_TOOL_FORM_MISTRAL, "", "", "", 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step < 80; step += 3) {
            static iv_chat_text c;
            const char *text = cases[i].text;
            iv_chat_text_init(&c, true, false, true, false);
            c.form = cases[i].form, c.schemas = tools, c.calls_or_json = c.trim = true, c.joined = cases[i].joined;
            for (size_t at = 0, n = strlen(text); at < n; at += step)
                iv_chat_text_push(&c, text + at, step < n - at ? step : n - at);
            iv_chat_text_end(&c);
            assert_string_equal(c.reasoning.data ? c.reasoning.data : "", cases[i].reasoning);
            assert_string_equal(c.content.data ? c.content.data : "", cases[i].content);
            assert_int_equal(c.call_count, cases[i].calls);
            iv_chat_text_free(&c);
        }
}

/* Names have one spelling for any bytes. */
static void names_as_they_are_spelled(void **state) {
    (void)state;
    static const char *const names[] = {"f", "a b", "\"\\/", "\b\f\n\r\t\x01\x1f\x7f", "\xc3\xa9\xf0\x9f\x98\x80"};
    rng r = {9};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *list = json_pack("[{s:s}]", "name", names[i]);
        json_t *formed = json_pack("{s:s, s:O}", "form", "llama3_json", "tools", list);
        char *text = json_dumps(formed, 0);
        iv_grammar *g = compile(IV_CONSTRAINT_TOOL_CALL, text);
        iv_buf call = {0};
        while (!random_walk(g, &vocabulary, MOST, 5, &r, &call)) {}
        assert_int_equal(iv_chat_calls_open(list, call.data, call.len), IV_CALLS_DONE);
        size_t begun = (size_t)(strstr(call.data, "\"parameters\":") - call.data) + 13;
        for (size_t n = 0; n < begun; n++) assert_int_equal(iv_chat_calls_open(list, call.data, n), IV_CALLS_MORE);
        assert_int_equal(iv_chat_calls_open(tools, call.data, begun), IV_CALLS_WRONG);
        iv_grammar_close(g), iv_buf_free(&call), free(text);
        json_decref(formed), json_decref(list);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_as_what_they_are),
        cmocka_unit_test(examples),
        cmocka_unit_test(names_as_they_are_spelled),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
