/* Structured outputs of the APIs: every way to request them sets the right constraint; every invalid way is refused
 * by its field. */
#include "api_case.h"

#define COMPLETIONS "/v1/completions"
#define CHAT "/v1/chat/completions"
#define RESPONSES "/v1/responses"
#define GENERATE "/generate"
#define PROMPT "{\"prompt\":\"x\","
#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
#define TOOLS                                                                                                \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}," \
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}],"
#define F "{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}"

static const struct {
    const char *path, *body;
    iv_constraint_kind kind;
    const char *text; /* "-": none */
} ways[] = {
    {COMPLETIONS, PROMPT "\"response_format\":{\"type\":\"text\"}}", IV_CONSTRAINT_NONE, "-"},
    {COMPLETIONS, PROMPT "\"response_format\":{\"type\":\"json_object\"}}", IV_CONSTRAINT_JSON_OBJECT, ""},
    {COMPLETIONS,
     PROMPT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"b\":1,\"a\":2}}}}",
     IV_CONSTRAINT_JSON_SCHEMA, "{\"b\":1,\"a\":2}"},
    {CHAT,
     HI "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":"
        "true}}}",
     IV_CONSTRAINT_JSON_SCHEMA, "true"},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"regex\":\"a\\\\d\"}}", IV_CONSTRAINT_REGEX, "a\\d"},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"choice\":[\"a\",\"b\"],\"json\":null}}", IV_CONSTRAINT_CHOICE,
     "[\"a\",\"b\"]"},
    {COMPLETIONS,
     PROMPT "\"structured_outputs\":{\"choice\":[\"a\"],\"json\":null,\"regex\":null,\"json_object\":null,"
            "\"grammar\":null,\"structural_tag\":null,\"whitespace_pattern\":null,"
            "\"disable_additional_properties\":false,\"disable_fallback\":false,\"disable_any_whitespace\":false}}",
     IV_CONSTRAINT_CHOICE, "[\"a\"]"},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"json\":\"{ }\"}}", IV_CONSTRAINT_JSON_SCHEMA, "{ }"},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"json_object\":true}}", IV_CONSTRAINT_JSON_OBJECT, ""},
    {CHAT, HI "\"guided_json\":{\"type\":\"null\"}}", IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"null\"}"},
    {CHAT, HI "\"guided_regex\":\"z\"}", IV_CONSTRAINT_REGEX, "z"},
    {CHAT, HI "\"guided_grammar\":\"root ::= \\\"a\\\"\"}", IV_CONSTRAINT_GRAMMAR, "root ::= \"a\""},
    {CHAT, HI "\"grammar\":\"g\",\"ebnf\":null}", IV_CONSTRAINT_GRAMMAR, "g"},
    {COMPLETIONS, PROMPT "\"ebnf\":\"g\"}", IV_CONSTRAINT_GRAMMAR, "g"},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"grammar\":\"g\",\"choice\":null}}", IV_CONSTRAINT_GRAMMAR, "g"},
    {GENERATE, "{\"text\":\"x\",\"sampling_params\":{\"ebnf\":\"g\"}}", IV_CONSTRAINT_GRAMMAR, "g"},
    {CHAT, HI "\"guided_choice\":[\"z\"],\"guided_json\":null}", IV_CONSTRAINT_CHOICE, "[\"z\"]"},
    {CHAT, HI "\"regex\":\"z\"}", IV_CONSTRAINT_REGEX, "z"},
    {RESPONSES, "{\"input\":\"x\",\"structured_outputs\":{\"regex\":\"z\"}}", IV_CONSTRAINT_REGEX, "z"},
    {COMPLETIONS, PROMPT "\"regex\":\"z\"}", IV_CONSTRAINT_REGEX, "z"},
    {RESPONSES, "{\"input\":\"x\",\"text\":{}}", IV_CONSTRAINT_NONE, "-"},
    {RESPONSES, "{\"input\":\"x\",\"text\":{\"verbosity\":\"medium\",\"format\":null}}", IV_CONSTRAINT_NONE, "-"},
    {RESPONSES, "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"text\"}}}", IV_CONSTRAINT_NONE, "-"},
    {RESPONSES,
     "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"enum\":[1]}}}}",
     IV_CONSTRAINT_JSON_SCHEMA, "{\"enum\":[1]}"},
    {GENERATE, "{\"text\":\"x\",\"sampling_params\":{\"json_schema\":\"{}\"}}", IV_CONSTRAINT_JSON_SCHEMA, "{}"},
    {GENERATE, "{\"text\":\"x\",\"sampling_params\":{\"regex\":\"q\"}}", IV_CONSTRAINT_REGEX, "q"},
    {RESPONSES,
     "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}],"
     "\"tool_choice\":\"required\",\"parallel_tool_calls\":true}",
     IV_CONSTRAINT_TOOL_CALLS, "[" F "]"},
    {RESPONSES,
     "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}],"
     "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}",
     IV_CONSTRAINT_TOOL_CALL, "[" F "]"},
    {CHAT, HI TOOLS "\"tool_choice\":\"auto\"}", IV_CONSTRAINT_NONE, "-"},
    {CHAT, HI "\"tools\":[],\"tool_choice\":\"auto\"}", IV_CONSTRAINT_NONE, "-"},
    {CHAT, HI "\"tools\":[],\"tool_choice\":\"none\"}", IV_CONSTRAINT_NONE, "-"},
    {CHAT, HI TOOLS "\"tool_choice\":\"required\"}", IV_CONSTRAINT_TOOL_CALLS,
     "[" F ",{\"name\":\"g\",\"parameters\":null}]"},
    {CHAT, HI TOOLS "\"tool_choice\":\"required\",\"parallel_tool_calls\":false}", IV_CONSTRAINT_TOOL_CALL,
     "[" F ",{\"name\":\"g\",\"parameters\":null}]"},
    {CHAT, HI TOOLS "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}", IV_CONSTRAINT_TOOL_CALL,
     "[" F "]"},
    /* A format together with optional tools. */
    {CHAT, HI TOOLS "\"response_format\":{\"type\":\"json_object\"}}", IV_CONSTRAINT_TOOL_CALLS_OR_JSON,
     "{\"form\":\"hermes\",\"tools\":[" F ",{\"name\":\"g\",\"parameters\":null}],\"schema\":{\"type\":\"object\"}}"},
    {CHAT,
     HI TOOLS "\"tool_choice\":\"auto\",\"parallel_tool_calls\":false,\"response_format\":{\"type\":\"json_schema\","
              "\"json_schema\":{\"schema\":{\"b\":1.5,\"a\":2}}}}",
     IV_CONSTRAINT_TOOL_CALL_OR_JSON,
     "{\"form\":\"hermes\",\"tools\":[" F ",{\"name\":\"g\",\"parameters\":null}],\"schema\":{\"b\":1.5,\"a\":2}}"},
    {RESPONSES,
     "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}],"
     "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{}}}}",
     IV_CONSTRAINT_TOOL_CALLS_OR_JSON, "{\"form\":\"hermes\",\"tools\":[" F "],\"schema\":{}}"},
    {CHAT, HI TOOLS "\"tool_choice\":\"none\",\"response_format\":{\"type\":\"json_object\"}}",
     IV_CONSTRAINT_JSON_OBJECT, ""},
    {CHAT, HI "\"tools\":[],\"response_format\":{\"type\":\"json_object\"}}", IV_CONSTRAINT_JSON_OBJECT, ""},
    {CHAT, HI TOOLS "\"response_format\":{\"type\":\"text\"}}", IV_CONSTRAINT_NONE, "-"},
    {CHAT, HI TOOLS "\"guided_json\":{}}", IV_CONSTRAINT_JSON_SCHEMA, "{}"},
    {CHAT, HI TOOLS "\"structured_outputs\":{\"regex\":\"a\"}}", IV_CONSTRAINT_REGEX, "a"},
    {CHAT, HI TOOLS "\"response_format\":{\"type\":\"text\"},\"guided_choice\":[\"a\"]}", IV_CONSTRAINT_CHOICE,
     "[\"a\"]"},
    /* A format applies to messages: agents send it along with forced calls. */
    {CHAT, HI TOOLS "\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_object\"}}",
     IV_CONSTRAINT_TOOL_CALLS, "[" F ",{\"name\":\"g\",\"parameters\":null}]"},
    {RESPONSES,
     "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}],"
     "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"text\":{\"format\":{\"type\":\"json_schema\","
     "\"name\":\"n\",\"schema\":{}}}}",
     IV_CONSTRAINT_TOOL_CALL, "[" F "]"},
};

static void every_way_to_ask(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        iv_http_request q = {.writes_left = 1000, .path = ways[i].path, .body = ways[i].body};
        bridge.count = 0;
        fake_call(&server, &q, q.path, q.body, strlen(q.body));
        if (bridge.count != 1) fail_msg("%s: %s", ways[i].body, q.out.data);
        assert_int_equal(bridge.children[0].constraint, ways[i].kind);
        assert_string_equal(bridge.children[0].constraint_text, ways[i].text);
        /* tiny-math's vocabulary has both tags, and its template opens neither: a chat may begin with reasoning. */
        bool chat = strcmp(ways[i].path, CHAT) == 0 || strcmp(ways[i].path, RESPONSES) == 0;
        bool free = chat && ways[i].kind != IV_CONSTRAINT_NONE;
        assert_int_equal(bridge.children[0].reasoning, free ? IV_REASONING_OPTIONAL : IV_REASONING_NONE);
        fake_token(&server, 0, 9, "x");
        fake_done(&server, 0, IV_FINISH_STOP);
        assert_int_equal(q.status, 200);
        const char *named = strstr(q.out.data, "\"constraint\":");
        assert_true((named != NULL) == (ways[i].kind != IV_CONSTRAINT_NONE && strcmp(ways[i].path, RESPONSES)) ||
                    strcmp(ways[i].path, RESPONSES) == 0);
        fake_close(&q);
    }
}

/* Each prompt of a batch has its own parameters. */
static void constraints_of_a_batch(void **state) {
    (void)state;
    iv_http_request q = {
        .writes_left = 1000,
        .path = GENERATE,
        .body = "{\"text\":[\"a\",\"b\",\"c\"],\"sampling_params\":[{\"regex\":\"q\"},{},{\"json_schema\":\"{}\"}]}"};
    bridge.count = 0;
    fake_call(&server, &q, q.path, q.body, strlen(q.body));
    assert_int_equal(bridge.count, 3);
    assert_int_equal(bridge.children[0].constraint, IV_CONSTRAINT_REGEX);
    assert_int_equal(bridge.children[1].constraint, IV_CONSTRAINT_NONE);
    assert_int_equal(bridge.children[2].constraint, IV_CONSTRAINT_JSON_SCHEMA);
    for (size_t i = 0; i < 3; i++) fake_token(&server, i, 9, "x"), fake_done(&server, i, IV_FINISH_STOP);
    fake_close(&q);
}

static const struct {
    const char *path, *body, *param, *says; /* says: NULL: any */
} wrong_ways[] = {
    {COMPLETIONS, PROMPT "\"response_format\":{}}", "response_format.type", NULL},
    {COMPLETIONS, PROMPT "\"response_format\":{\"type\":\"grammar\"}}", "response_format.type", NULL},
    {COMPLETIONS, PROMPT "\"response_format\":{\"type\":\"json_schema\"}}", "response_format", NULL},
    {COMPLETIONS, PROMPT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":5}}}",
     "response_format", NULL},
    {COMPLETIONS, PROMPT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"x\":1}}}",
     "response_format.x", NULL},
    {COMPLETIONS, PROMPT "\"response_format\":{\"type\":\"text\",\"schema\":{}}}", "response_format.schema", NULL},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{}}", "structured_outputs", NULL},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"grammar\":{}}}", "structured_outputs.grammar", NULL},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"structural_tag\":\"x\"}}", "structured_outputs.structural_tag",
     NULL},
    {CHAT, HI "\"grammar\":\"x\",\"ebnf\":\"y\"}", "ebnf", "found \\\"grammar\\\" too"},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"choice\":[\"a\"],\"whitespace_pattern\":\"x\"}}",
     "structured_outputs.whitespace_pattern", NULL},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"choice\":[\"a\"],\"disable_fallback\":1}}", "structured_outputs",
     NULL},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"choice\":[\"a\"],\"disable_any_whitespace\":0}}",
     "structured_outputs", NULL},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"choice\":[\"a\"],\"disable_additional_properties\":true}}",
     "structured_outputs.disable_additional_properties", NULL},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"choice\":[\"a\"],\"backend\":1}}", "structured_outputs.backend",
     NULL},
    {COMPLETIONS, PROMPT "\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"a\"]}}", NULL, NULL},
    {COMPLETIONS, PROMPT "\"guided_choice\":\"a\"}", "guided_choice", NULL},
    {COMPLETIONS, PROMPT "\"guided_regex\":\"a\\u0000\"}", "guided_regex", NULL},
    {COMPLETIONS, PROMPT "\"guided_grammar\":[]}", "guided_grammar", NULL},
    {COMPLETIONS, PROMPT "\"guided_regex\":\"a\",\"response_format\":{\"type\":\"json_object\"}}", "guided_regex",
     NULL},
    {RESPONSES, "{\"input\":\"x\",\"text\":{\"verbosity\":\"loud\"}}", "text.verbosity", "found \\\"loud\\\""},
    {RESPONSES, "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}", "text.format", NULL},
    {GENERATE, "{\"text\":\"x\",\"sampling_params\":{\"json_schema\":\"{}\",\"regex\":\"a\"}}", "sampling_params.regex",
     NULL},
    {CHAT, HI "\"tool_choice\":\"required\"}", "tool_choice", NULL},
    {CHAT, HI "\"tools\":[],\"tool_choice\":\"required\"}", "tool_choice", NULL},
    {CHAT, HI "\"tool_choice\":\"auto\"}", "tool_choice", NULL},
    {CHAT, HI TOOLS "\"tool_choice\":\"any\"}", "tool_choice", NULL},
    {CHAT, HI TOOLS "\"tool_choice\":{\"type\":\"function\"}}", "tool_choice", NULL},
    {CHAT, HI TOOLS "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}}", "tool_choice", NULL},
    {CHAT, HI TOOLS "\"tool_choice\":\"required\",\"response_format\":{\"type\":\"text\"},\"guided_regex\":\"a\"}",
     "tool_choice", "found \\\"regex\\\" too"},
    {CHAT, HI TOOLS "\"tool_choice\":\"required\",\"response_format\":{\"type\":\"yaml\"}}", "response_format.type",
     NULL},
    {CHAT, HI TOOLS "\"tool_choice\":\"required\",\"guided_regex\":\"a\"}", "tool_choice", "found \\\"regex\\\" too"},
    {CHAT, HI "\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"required\"}", "tools[0].function.name", NULL},
    {CHAT, HI "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\\u0000g\"}}],\"tool_choice\":\"required\"}",
     "tools[0].function.name", "wanted a string without NUL"},
};

static void wrong_ways_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrong_ways / sizeof *wrong_ways; i++) {
        iv_http_request q = {.writes_left = 1000, .path = wrong_ways[i].path, .body = wrong_ways[i].body};
        iv_error err;
        json_t *v = NULL;
        bridge.count = 0;
        fake_call(&server, &q, q.path, q.body, strlen(q.body));
        assert_true(q.ended && bridge.count == 0);
        ASSERT_OK(iv_json_parse("answer", q.out.data, q.out.len, &v, &err), &err);
        const char *param = json_string_value(json_object_get(json_object_get(v, "error"), "param"));
        if (q.status != 400 || (wrong_ways[i].param && (!param || strcmp(param, wrong_ways[i].param) != 0)))
            fail_msg("%s: %d %s", wrong_ways[i].body, q.status, q.out.data);
        if (wrong_ways[i].says && !strstr(q.out.data, wrong_ways[i].says))
            fail_msg("%s: %s", wrong_ways[i].body, q.out.data);
        json_decref(v);
        fake_close(&q);
    }
}

/* A schema's keywords that assert nothing are named once, with their first place, in the answer and in its header.
 * Schemas of tools count where they hold. */
static void labels_are_named(void **state) {
    (void)state;
#define LABELS \
    "{\"title\":\"T\",\"x-a\":1,\"properties\":{\"p/q\":{\"x-a\":2,\"format\":\"phone\",\"default\":{\"x-no\":1}}}}"
#define TEXT "{\\\"items\\\":{\\\"type\\\":\\\"string\\\",\\\"widget\\\":{\\\"x-no\\\":1}}}"
#define TOOL(more)                                                                                               \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"ui\":" \
    "1}" more "}}]"
    static const struct {
        const char *path, *body, *ignored; /* NULL: nothing */
    } cases[] = {
        {COMPLETIONS, PROMPT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":" LABELS "}}}",
         "response_format# (x-a), response_format#/properties/p~1q (format: phone)"},
        {RESPONSES,
         "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":" LABELS "}}}",
         "text.format# (x-a), text.format#/properties/p~1q (format: phone)"},
        {"/v1/messages",
         "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"output_config\":{\"format\":{"
         "\"type\":\"json_"
         "schema\",\"schema\":" LABELS "}}}",
         "output_config.format# (x-a), output_config.format#/properties/p~1q (format: phone)"},
        {CHAT, HI "\"guided_json\":\"" TEXT "\"}", "guided_json#/items (widget)"},
        {COMPLETIONS, PROMPT "\"structured_outputs\":{\"json\":\"" TEXT "\"}}",
         "structured_outputs.json#/items (widget)"},
        {GENERATE, "{\"text\":\"x\",\"sampling_params\":{\"json_schema\":\"" TEXT "\"}}",
         "sampling_params.json_schema#/items (widget)"},
        {CHAT, HI TOOL("") ",\"tool_choice\":\"required\"}", "tools.f# (ui)"},
        {CHAT, HI TOOL(",\"strict\":true") "}", "tools.f# (ui)"},
        {CHAT, HI TOOL("") ",\"response_format\":{\"type\":\"json_object\"}}", "tools.f# (ui)"},
        {CHAT, HI TOOL("") "}", NULL},
        {CHAT, HI "\"guided_json\":{\"title\":\"t\",\"type\":\"null\",\"$defs\":{}}}", NULL},
    };
    char wanted[300];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = {.writes_left = 1000, .path = cases[i].path, .body = cases[i].body};
        const char *ignored = cases[i].ignored;
        bridge.count = 0;
        fake_call(&server, &q, q.path, q.body, strlen(q.body));
        if (q.ended) fail_msg("%s", q.out.data);
        fake_done(&server, 0, IV_FINISH_STOP);
        snprintf(wanted, sizeof wanted, "x-invar-ignored: %s\n", ignored ? ignored : "");
        assert_string_equal(q.headers.data ? q.headers.data : "", ignored ? wanted : "");
        snprintf(wanted, sizeof wanted, "\"ignored\":\"%s\"", ignored ? ignored : "");
        if (!!strstr(q.out.data, wanted) != (ignored != NULL)) fail_msg("%s: %s", wanted, q.out.data);
        fake_close(&q);
    }
}

/* A long list is cut. */
static void many_labels(void **state) {
    (void)state;
    iv_buf body = {0};
    iv_buf_puts(&body, HI "\"guided_json\":{\"type\":\"null\"");
    for (int i = 0; i < 5000; i++) iv_buf_printf(&body, ",\"x-%d\":0", i);
    iv_buf_puts(&body, "}}");
    iv_http_request q = {.writes_left = 1000, .path = CHAT, .body = body.data};
    bridge.count = 0;
    fake_call(&server, &q, q.path, q.body, strlen(q.body));
    if (q.ended) fail_msg("%s", q.out.data);
    assert_true(q.headers.len > 1000 && q.headers.len < 1200);
    assert_memory_equal(q.headers.data + q.headers.len - 12, "(x-", 3);
    assert_string_equal(q.headers.data + q.headers.len - 6, ", ...\n");
    fake_done(&server, 0, IV_FINISH_STOP);
    fake_close(&q);
    iv_buf_free(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_to_ask),
        cmocka_unit_test(constraints_of_a_batch),
        cmocka_unit_test(wrong_ways_are_refused),
        cmocka_unit_test(labels_are_named),
        cmocka_unit_test(many_labels),
    };
    return cmocka_run_group_tests(tests, begin, close_text_model);
}
