/* Strict tools with tool_choice auto: the constraint that a request gets, and that every call in a random answer under
 * it satisfies its schema, as it is read. */
#include "api_case.h"
#include "grammar/random_walk.h"
#include "marks_of_calls.h"
#include "chat/chat_text.h"

/* ---- the request ---------------------------------------------------------------------------------------- */

#define CHAT(tools, more) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[" tools "]" more "}"
#define TOOL(name, more) \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":{\"type\":\"object\"}" more "}}"
#define STRICT ",\"strict\":true"
#define SCHEMA "\"parameters\":{\"type\":\"object\"}"

static void constraints(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
        iv_tool_form form;
        iv_constraint_kind kind;
        const char *text;
    } cases[] = {
        {"/v1/chat/completions", CHAT(TOOL("f", STRICT), ""), IV_TOOL_FORM_HERMES, IV_CONSTRAINT_TOOL_CALLS,
         "{\"form\":\"hermes\",\"tools\":[{\"name\":\"f\"," SCHEMA "}],\"text\":true}"},
        {"/v1/chat/completions",
         CHAT(TOOL("f", STRICT) "," TOOL("g", ",\"strict\":false"), ",\"parallel_tool_calls\":false"),
         IV_TOOL_FORM_MISTRAL, IV_CONSTRAINT_TOOL_CALL,
         "{\"form\":\"mistral\",\"tools\":[{\"name\":\"f\"," SCHEMA "},{\"name\":\"g\"}],\"text\":true}"},
        {"/v1/chat/completions", CHAT(TOOL("f", ""), ",\"tool_choice\":\"auto\""), IV_TOOL_FORM_HERMES,
         IV_CONSTRAINT_NONE, "-"},
        {"/v1/chat/completions", CHAT(TOOL("f", STRICT), ",\"tool_choice\":\"none\""), IV_TOOL_FORM_HERMES,
         IV_CONSTRAINT_NONE, "-"},
        {"/v1/chat/completions", CHAT(TOOL("f", STRICT), ",\"tool_choice\":\"required\""), IV_TOOL_FORM_HERMES,
         IV_CONSTRAINT_TOOL_CALLS, "[{\"name\":\"f\"," SCHEMA "}]"},
        {"/v1/responses", "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"," SCHEMA STRICT "}]}",
         IV_TOOL_FORM_LLAMA3_JSON, IV_CONSTRAINT_TOOL_CALLS,
         "{\"form\":\"llama3_json\",\"tools\":[{\"name\":\"f\"," SCHEMA "}],\"text\":true}"},
        {"/v1/messages",
         "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"f\",\"input_"
         "schema\":{\"type\":\"object\"}" STRICT "}]}",
         IV_TOOL_FORM_HERMES, IV_CONSTRAINT_TOOL_CALLS,
         "{\"form\":\"hermes\",\"tools\":[{\"name\":\"f\"," SCHEMA "}],\"text\":true}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        begin(NULL);
        server.tool_form = cases[i].form;
        run(&q);
        if (q.ended) fail_msg("%s", q.out.data);
        assert_int_equal(bridge.children[0].constraint, cases[i].kind);
        assert_string_equal(bridge.children[0].constraint_text, cases[i].text);
        fake_done(&server, 0, IV_FINISH_STOP);
        if (strstr(cases[i].path, "responses")) assert_non_null(strstr(q.out.data, "\"tool_choice\":\"auto\""));
        fake_close(&q);
    }
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *body, *message;
        iv_tool_form form;
    } cases[] = {
        {CHAT(TOOL("f", STRICT), ""), "tools: wanted no \\\"strict\\\": true", IV_TOOL_FORM_NONE},
        {CHAT(TOOL("f", STRICT), ",\"regex\":\"a\""), "tools: wanted one constraint, found \\\"regex\\\" too",
         IV_TOOL_FORM_HERMES},
        {CHAT(TOOL("f", ",\"strict\":1"), ""), "tools[0].function.strict: wanted true or false, found 1",
         IV_TOOL_FORM_HERMES},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = make_request("/v1/chat/completions", cases[i].body);
        begin(NULL);
        server.tool_form = cases[i].form;
        run(&q);
        assert_int_equal(q.status, 400);
        if (!strstr(q.out.data, cases[i].message)) fail_msg("%s", q.out.data);
        fake_close(&q);
    }
}

/* ---- random answers ------------------------------------------------------------------------------------- */

#define TOOLS                                                                                                \
    "[{\"name\":\"add\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]," \
    "\"additionalProperties\":false}},{\"name\":\"now\"}]"

static const char *const pieces[] = {"{\"name\": \"add\"",
                                     "{\"name\":\"now\"",
                                     ", \"parameters\": {",
                                     ", \"arguments\": {",
                                     "\"a\": ",
                                     "\"a\": \"seven\"",
                                     "1",
                                     "}",
                                     "}}",
                                     "{}",
                                     "]",
                                     "x",
                                     " ",
                                     "\n",
                                     "<tool_call>",
                                     "<tool_call>\n",
                                     "</tool_call>",
                                     "\n</tool_call>",
                                     "<function=add>\n",
                                     "<function=now>\n",
                                     "<function=",
                                     "<parameter=a>\n",
                                     "\n</parameter>\n",
                                     "</function>",
                                     "[TOOL_CALLS]",
                                     "[TOOL_CALLS][",
                                     "[TOOL_CALLS]add",
                                     "[ARGS]",
                                     "[CALL_ID]",
                                     "abcABC123",
                                     MARKS_OF_CALLS,
                                     "[TOOL_CALLS]now{}",
                                     "\"zz\": 1"};
enum { PIECES = sizeof pieces / sizeof *pieces, MOST = 120 };

static void check_calls(const iv_chat_text *c, const char *text) {
    for (size_t i = 0; i < c->call_count; i++) {
        json_t *arguments = json_loads(c->calls[i].arguments, 0, NULL); /* any object may repeat a name */
        bool add = strcmp(c->calls[i].name, "add") == 0;
        bool good = add ? json_object_size(arguments) == 1 && json_is_integer(json_object_get(arguments, "a"))
                        : strcmp(c->calls[i].name, "now") == 0;
        if (!good) fail_msg("%s %s in %s", c->calls[i].name, c->calls[i].arguments, text);
        json_decref(arguments);
    }
}

static void random_answers(void **state) {
    (void)state;
    static iv_chat_text c;
    iv_vocabulary v;
    rng r = {3};
    json_t *tools = parse_json(TOOLS, strlen(TOOLS));
    open_pieces(pieces, PIECES, &v);
    for (int form = 0; form < IV_TOOL_FORM_NONE; form++) {
        iv_buf formed = {0}, text = {0};
        iv_grammar *g = NULL;
        iv_error err;
        size_t calls = 0, texts = 0;
        const char *open = iv_tool_marks_of((iv_tool_form)form)->open;
        iv_buf_printf(&formed, "{\"form\":\"%s\",\"tools\":" TOOLS ",\"text\":true}",
                      iv_tool_form_name((iv_tool_form)form));
        ASSERT_OK(iv_grammar_open(IV_CONSTRAINT_TOOL_CALLS, formed.data, IV_REASONING_NONE, &v, &g, &err), &err);
        for (size_t round = 0; round < (SANITIZED ? 30 : 1500); round++) {
            if (!random_walk(g, &v, MOST, 3, &r, &text)) continue;
            iv_chat_text_init(&c, true, false, true, false);
            c.form = (iv_tool_form)form, c.schemas = tools;
            if (form == IV_TOOL_FORM_HARMONY) c.reasoning_form = IV_REASONING_FORM_HARMONY;
            iv_chat_text_push(&c, text.data ? text.data : "", text.len);
            iv_chat_text_end(&c);
            check_calls(&c, text.data);
            if (c.content.data && open && strstr(c.content.data, open))
                fail_msg("a call that was not read: %s", text.data);
            calls += c.call_count, texts += c.content.len > 0;
            iv_chat_text_free(&c);
        }
        print_message("%s: %zu calls, %zu texts\n", iv_tool_form_name((iv_tool_form)form), calls, texts);
        if (!SANITIZED) assert_true(calls > 0 && texts > 0);
        iv_grammar_close(g), iv_buf_free(&formed), iv_buf_free(&text);
    }
    iv_vocabulary_close(&v);
    json_decref(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(constraints), cmocka_unit_test(refusals),
                                       cmocka_unit_test(random_answers)};
    return cmocka_run_group_tests(tests, NULL, close_text_model);
}
