/* Formats of tool calls through the APIs: selection, forcing, output whole and as events, ids; and what a real
 * template writes for a call is what is forced and parsed. */
#include "api_case.h"
#include "chat_templates.h"
#include "grammar/grammar.h"
#include "chat/chat_text.h"
#include "serve/api/constraint.h"
#include "serve/api/task.h"
#include "text/jinja/template.h"

#include <ctype.h>

#define CHAT "/v1/chat/completions"
#define RESPONSES "/v1/responses"
#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
#define TOOLS                                                                                                         \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":{\"name\":" \
    "\"g\"}}]"
#define LISTED "[{\"name\":\"f\",\"parameters\":null},{\"name\":\"g\",\"parameters\":null}]"

/* ---- which form ---------------------------------------------------------------------------------------- */

static void parsers(void **state) {
    (void)state;
    static const struct {
        const char *name;
        iv_tool_form form;
    } cases[] = {{NULL, IV_TOOL_FORM_HERMES},
                 {"auto", IV_TOOL_FORM_HERMES},
                 {"hermes", IV_TOOL_FORM_HERMES},
                 {"llama3_json", IV_TOOL_FORM_LLAMA3_JSON},
                 {"llama4_json", IV_TOOL_FORM_LLAMA3_JSON},
                 {"mistral", IV_TOOL_FORM_MISTRAL},
                 {"qwen3_coder", IV_TOOL_FORM_QWEN3_CODER},
                 {"qwen3_xml", IV_TOOL_FORM_QWEN3_CODER},
                 {"openai", IV_TOOL_FORM_HARMONY},
                 {"glm45", IV_TOOL_FORM_GLM},
                 {"glm47", IV_TOOL_FORM_GLM},
                 {"seed_oss", IV_TOOL_FORM_SEED_OSS},
                 {"minimax_m2", IV_TOOL_FORM_MINIMAX_M2},
                 {"granite", IV_TOOL_FORM_GRANITE},
                 {"granite4", IV_TOOL_FORM_HERMES},
                 {"ernie45", IV_TOOL_FORM_HERMES},
                 {"phi4_mini_json", IV_TOOL_FORM_PHI4_MINI},
                 {"hunyuan_a13b", IV_TOOL_FORM_HUNYUAN},
                 {"deepseek_v3", IV_TOOL_FORM_DEEPSEEK_V3},
                 {"deepseek_v31", IV_TOOL_FORM_DEEPSEEK_V31},
                 {"kimi_k2", IV_TOOL_FORM_KIMI_K2},
                 {"pythonic", IV_TOOL_FORM_PYTHONIC},
                 {"llama4_pythonic", IV_TOOL_FORM_LLAMA4_PYTHONIC},
                 {"olmo3", IV_TOOL_FORM_OLMO3},
                 {"none", IV_TOOL_FORM_NONE}};
    static const struct {
        const char *name;
        iv_reasoning_form form;
    } reasonings[] = {{NULL, IV_REASONING_FORM_THINK},          {"auto", IV_REASONING_FORM_THINK},
                      {"qwen3", IV_REASONING_FORM_THINK},       {"deepseek_r1", IV_REASONING_FORM_THINK},
                      {"deepseek_v3", IV_REASONING_FORM_THINK}, {"glm45", IV_REASONING_FORM_THINK},
                      {"kimi_k2", IV_REASONING_FORM_THINK},     {"minimax_m2", IV_REASONING_FORM_THINK},
                      {"olmo3", IV_REASONING_FORM_THINK},       {"openai_gptoss", IV_REASONING_FORM_HARMONY},
                      {"seed_oss", IV_REASONING_FORM_SEED_OSS}, {"granite", IV_REASONING_FORM_GRANITE},
                      {"mistral", IV_REASONING_FORM_MISTRAL},   {"hunyuan_a13b", IV_REASONING_FORM_HUNYUAN},
                      {"ernie45", IV_REASONING_FORM_ERNIE45},   {"none", IV_REASONING_FORM_NONE}};
    iv_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ASSERT_OK(iv_api_tools_open(&server, cases[i].name, NULL, &err), &err);
        assert_int_equal(server.tool_form, cases[i].form);
        assert_int_equal(server.tool_id_count, 0); /* tiny-math lacks these tokens */
    }
    for (size_t i = 0; i < sizeof reasonings / sizeof *reasonings; i++) {
        ASSERT_OK(iv_api_tools_open(&server, NULL, reasonings[i].name, &err), &err);
        assert_int_equal(server.reasoning_form, reasonings[i].form);
        bool harmony = reasonings[i].form == IV_REASONING_FORM_HARMONY; /* decides both */
        assert_int_equal(server.tool_form, harmony ? IV_TOOL_FORM_HARMONY : IV_TOOL_FORM_HERMES);
    }
    ASSERT_OK(iv_api_tools_open(&server, "openai", NULL, &err), &err);
    assert_int_equal(server.reasoning_form, IV_REASONING_FORM_HARMONY);
    ASSERT_OK(iv_api_tools_open(&server, "none", "openai_gptoss", &err), &err);
    ASSERT_OK(iv_api_tools_open(&server, "openai", "none", &err), &err);
    assert_int_equal(iv_api_tools_open(&server, "hermes", "openai_gptoss", &err), IV_INVALID);
    assert_non_null(strstr(err.message, "found hermes with openai_gptoss"));
    assert_int_equal(iv_api_tools_open(&server, "openai", "qwen3", &err), IV_INVALID);
    assert_int_equal(iv_api_tools_open(&server, "xlam", NULL, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "tool-call-parser: wanted auto, none or the name of one"));
    assert_non_null(strstr(err.message, "found \"xlam\""));
    assert_int_equal(iv_api_tools_open(&server, NULL, "step3", &err), IV_INVALID);
    assert_non_null(strstr(err.message, "reasoning-parser: wanted auto"));
    ASSERT_OK(iv_api_tools_open(&server, NULL, NULL, &err), &err);
}

/* A model with the token, by its template or by the flag; it is kept in texts only with tools. */
static void special_tokens_are_shown(void **state) {
    (void)state;
    const char *dir = shared_path("tokenizers/mistral_nemo");
    SKIP_WITHOUT(dir, "shared/tokenizers/mistral_nemo");
    iv_text_model *own = bridge.text_model, *words = NULL;
    iv_error err;
    ASSERT_OK(iv_text_model_open(dir, &words, &err), &err);
    bridge.text_model = words;
    ASSERT_OK(iv_api_tools_open(&server, "hermes", NULL, &err), &err);
    assert_int_equal(server.tool_id_count, 0);
    ASSERT_OK(iv_api_tools_open(&server, NULL, NULL, &err), &err);
    assert_int_equal(server.tool_form, IV_TOOL_FORM_MISTRAL);
    assert_true(server.tool_id_count == 1 && server.tool_ids[0] == 9);
    static const char *const bodies[] = {HI TOOLS "}", HI TOOLS ",\"tool_choice\":\"none\"}", HI "\"n\":1}"};
    for (size_t i = 0; i < 3; i++) {
        iv_http_request q = {.writes_left = 1000};
        bridge.count = 0;
        fake_call(&server, &q, CHAT, bodies[i], strlen(bodies[i]));
        assert_int_equal(bridge.count, 1);
        assert_int_equal(bridge.children[0].show_id_count, i == 0);
        if (i == 0) assert_int_equal(bridge.children[0].show_ids[0], 9);
        fake_done(&server, 0, IV_FINISH_STOP);
        fake_close(&q);
    }
    bridge.text_model = own;
    iv_text_model_close(words);
}

static void forced_calls(void **state) {
    (void)state;
    static const struct {
        iv_tool_form form;
        const char *more;
        iv_constraint_kind kind;
        const char *text;
    } cases[] = {
        {IV_TOOL_FORM_HERMES, ",\"tool_choice\":\"required\"}", IV_CONSTRAINT_TOOL_CALLS, LISTED},
        {IV_TOOL_FORM_LLAMA3_JSON, ",\"tool_choice\":\"required\"}", IV_CONSTRAINT_TOOL_CALLS,
         "{\"form\":\"llama3_json\",\"tools\":" LISTED "}"},
        {IV_TOOL_FORM_MISTRAL, ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false}", IV_CONSTRAINT_TOOL_CALL,
         "{\"form\":\"mistral\",\"tools\":" LISTED "}"},
        {IV_TOOL_FORM_MISTRAL_ARGS, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
         IV_CONSTRAINT_TOOL_CALL, "{\"form\":\"mistral_args\",\"tools\":[{\"name\":\"g\",\"parameters\":null}]}"},
        {IV_TOOL_FORM_QWEN3_CODER, ",\"tool_choice\":\"required\"}", IV_CONSTRAINT_TOOL_CALLS,
         "{\"form\":\"qwen3_coder\",\"tools\":" LISTED "}"},
        {IV_TOOL_FORM_NONE, ",\"tool_choice\":\"auto\"}", IV_CONSTRAINT_NONE, "-"},
    };
    char body[500];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = {.writes_left = 1000};
        server.tool_form = cases[i].form;
        snprintf(body, sizeof body, HI TOOLS "%s", cases[i].more);
        bridge.count = 0;
        fake_call(&server, &q, CHAT, body, strlen(body));
        assert_int_equal(bridge.count, 1);
        assert_int_equal(bridge.children[0].constraint, cases[i].kind);
        assert_string_equal(bridge.children[0].constraint_text, cases[i].text);
        fake_done(&server, 0, IV_FINISH_STOP);
        fake_close(&q);
    }
    iv_http_request q = {.writes_left = 1000};
    bridge.count = 0;
    snprintf(body, sizeof body, HI TOOLS ",\"tool_choice\":\"required\"}");
    fake_call(&server, &q, CHAT, body, strlen(body));
    assert_true(bridge.count == 0 && q.status == 400 && strstr(q.out.data, "tool_choice: wanted \\\"auto\\\""));
    fake_close(&q);
}

/* A subset of the tools: only these are rendered, and only these are forced; the Responses API repeats all. */
static void allowed_tools(void **state) {
    (void)state;
#define OF_CHAT(mode, list) \
    ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":" mode ",\"tools\":" list "}}}"
#define CHAT_F "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
#define CHAT_G "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}"
    static const struct {
        const char *more;
        iv_constraint_kind kind;
        const char *text; /* of the constraint, or part of the error */
        bool f, g;        /* are in the prompt */
    } cases[] = {
        {OF_CHAT("\"required\"", "[" CHAT_G "]"), IV_CONSTRAINT_TOOL_CALLS, "[{\"name\":\"g\",\"parameters\":null}]",
         false, true},
        {OF_CHAT("\"required\"", "[" CHAT_G "," CHAT_F "]"), IV_CONSTRAINT_TOOL_CALLS, LISTED, true, true},
        {OF_CHAT("\"auto\"", "[" CHAT_F "]"), IV_CONSTRAINT_NONE, "-", true, false},
        {OF_CHAT("\"some\"", "[" CHAT_F "]"), IV_CONSTRAINT_NONE, "tool_choice.allowed_tools.mode: wanted", false,
         false},
        {OF_CHAT("\"auto\"", "[]"), IV_CONSTRAINT_NONE, "tool_choice.allowed_tools.tools: wanted a list", false, false},
        {OF_CHAT("\"auto\"", "[" CHAT_F ",{\"type\":\"function\",\"function\":{\"name\":\"h\"}}]"), IV_CONSTRAINT_NONE,
         "tool_choice.allowed_tools.tools[1]: wanted one of \\\"tools\\\", found \\\"h\\\"", false, false},
        {OF_CHAT("\"auto\"", "[7]"), IV_CONSTRAINT_NONE, "tools[0]: wanted one of", false, false},
    };
    char body[700];
    server.tool_form = IV_TOOL_FORM_HERMES;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = {.writes_left = 1000};
        snprintf(body, sizeof body, HI TOOLS "%s", cases[i].more);
        bridge.count = 0;
        fake_call(&server, &q, CHAT, body, strlen(body));
        if (!cases[i].f && !cases[i].g) {
            if (q.status != 400 || !strstr(q.out.data, cases[i].text)) fail_msg("%s: %s", body, q.out.data);
            fake_close(&q);
            continue;
        }
        assert_int_equal(bridge.count, 1);
        assert_int_equal(bridge.children[0].constraint, cases[i].kind);
        assert_string_equal(bridge.children[0].constraint_text, cases[i].text);
        char *shown = json_dumps(server.tasks->tools, JSON_COMPACT); /* to the template */
        bool f = strstr(shown, "\"name\":\"f\"") != NULL, g = strstr(shown, "\"name\":\"g\"") != NULL;
        if (f != cases[i].f || g != cases[i].g) fail_msg("%s: %s", body, shown);
        free(shown);
        fake_done(&server, 0, IV_FINISH_STOP);
        fake_close(&q);
    }
    iv_http_request q = {.writes_left = 1000};
    snprintf(
        body, sizeof body,
        "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"function\",\"name\":\"g\"}],"
        "\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"type\":\"function\",\"name\":"
        "\"g\"}]}}");
    bridge.count = 0;
    fake_call(&server, &q, RESPONSES, body, strlen(body));
    assert_int_equal(bridge.count, 1);
    assert_string_equal(bridge.children[0].constraint_text, "[{\"name\":\"g\",\"parameters\":null}]");
    fake_done(&server, 0, IV_FINISH_STOP);
    assert_non_null(strstr(q.out.data, "\"name\":\"f\""));
    fake_close(&q);
}

/* ---- what comes back ----------------------------------------------------------------------------------- */

/* All events of a stream joined, or a whole answer: "content|name(arguments);...|finish". */
static void gather(const iv_http_request *q, bool stream, iv_buf *out, iv_buf *ids) {
    iv_buf content = {0}, calls = {0};
    const char *at = q->out.data, *finish = "";
    char kept[40] = "";
    for (size_t next = 0; at && *at; at = strstr(at, "\n\n") ? strstr(at, "\n\n") + 2 : NULL) {
        json_t *v, *one;
        iv_error err;
        size_t i;
        if (stream && strncmp(at, "data: [DONE]", 12) == 0) break;
        const char *json = at + (stream ? 6 : 0), *end = stream ? strstr(at, "\n\n") : at + strlen(at);
        ASSERT_OK(iv_json_parse("event", json, (size_t)(end - json), &v, &err), &err);
        json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
        json_t *message = json_object_get(choice, stream ? "delta" : "message");
        const char *text = json_string_value(json_object_get(message, "content"));
        if (text) assert_true(iv_buf_puts(&content, text));
        json_array_foreach(json_object_get(message, "tool_calls"), i, one) {
            json_t *f = json_object_get(one, "function");
            if (stream) assert_int_equal(json_integer_value(json_object_get(one, "index")), next++);
            assert_string_equal(json_string_value(json_object_get(one, "type")), "function");
            assert_true(iv_buf_printf(&calls, "%s(%s);", json_string_value(json_object_get(f, "name")),
                                      json_string_value(json_object_get(f, "arguments"))));
            assert_true(iv_buf_printf(ids, "%s ", json_string_value(json_object_get(one, "id"))));
        }
        const char *why = json_string_value(json_object_get(choice, "finish_reason"));
        if (why) snprintf(kept, sizeof kept, "%s", why);
        finish = kept;
        json_decref(v);
        if (!stream) break;
    }
    assert_true(iv_buf_printf(out, "%s|%s|%s", content.data ? content.data : "", calls.data ? calls.data : "", finish));
    iv_buf_free(&content), iv_buf_free(&calls);
}

/* The client's view of a chat text that comes in steps of this many bytes. */
static void expect_answer(const char *body, bool stream, const char *text, size_t step, const char *wanted) {
    iv_http_request q = {.writes_left = 1000};
    iv_buf found = {0}, ids = {0};
    bridge.count = 0;
    fake_call(&server, &q, CHAT, body, strlen(body));
    for (size_t at = 0, n = strlen(text); at < n; at += step) {
        char part[64];
        snprintf(part, sizeof part, "%.*s", (int)(step < n - at ? step : n - at), text + at);
        fake_token(&server, 0, 7, part);
    }
    fake_done(&server, 0, IV_FINISH_STOP);
    gather(&q, stream, &found, &ids);
    assert_string_equal(found.data, wanted);
    iv_buf_free(&found), iv_buf_free(&ids);
    fake_close(&q);
}

static void answers(void **state) {
    (void)state;
    static const struct {
        iv_tool_form form;
        const char *text, *wanted;
    } cases[] = {
        {IV_TOOL_FORM_LLAMA3_JSON, "{\"name\": \"f\", \"parameters\": {\"x\": 1.0}}", "|f({\"x\": 1.0});|tool_calls"},
        {IV_TOOL_FORM_LLAMA3_JSON,
         "So.<|python_tag|>{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{\"y\":[]}}",
         "So.|f({});g({\"y\":[]});|tool_calls"},
        {IV_TOOL_FORM_LLAMA3_JSON, "{\"answer\": 42}", "{\"answer\": 42}||stop"},
        {IV_TOOL_FORM_MISTRAL, "Well. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1e5}}, {\"name\": \"g\"}]",
         "Well.|f({\"x\": 1e5});g({});|tool_calls"},
        {IV_TOOL_FORM_MISTRAL_ARGS, "[TOOL_CALLS]f[ARGS]{\"x\": 0.10}[TOOL_CALLS]g[ARGS]{}",
         "|f({\"x\": 0.10});g({});|tool_calls"},
        {IV_TOOL_FORM_MISTRAL, "[TOOL_CALLS] [{\"name\": 7}]", "[TOOL_CALLS] [{\"name\": 7}]||stop"},
        {IV_TOOL_FORM_QWEN3_CODER,
         "Well.\n<tool_call>\n<function=f>\n<parameter=x>\n7\n</parameter>\n</function>\n</"
         "tool_call>\n<tool_call>\n<function="
         "g>\n</function>\n</tool_call>",
         "Well.|f({\"x\": \"7\"});g({});|tool_calls"},
        {IV_TOOL_FORM_QWEN3_CODER, "<tool_call>\n<function=f>\n<parameter=x>\n7",
         "<tool_call>\n<function=f>\n<parameter=x>\n7||stop"},
        {IV_TOOL_FORM_NONE, "[TOOL_CALLS]f{} <tool_call>{\"name\":\"f\"}</tool_call>",
         "[TOOL_CALLS]f{} <tool_call>{\"name\":\"f\"}</tool_call>||stop"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step < 40; step += 6) {
            bool stream = step > 1;
            const char *body = stream ? HI TOOLS ",\"stream\":true}" : HI TOOLS "}";
            server.tool_form = cases[i].form;
            expect_answer(body, stream, cases[i].text, step, cases[i].wanted);
        }
}

/* Calls or JSON with a response_format, in chats, whole and as events. */
static void calls_or_json(void **state) {
    (void)state;
    static const struct {
        iv_tool_form form;
        const char *more, *text, *wanted;
    } cases[] = {
        {IV_TOOL_FORM_LLAMA3_JSON, "", "{\"name\":\"f\",\"parameters\":{}}", "|f({});|tool_calls"},
        {IV_TOOL_FORM_LLAMA3_JSON, "", "{\"name\":\"h\",\"parameters\":{}}",
         "{\"name\":\"h\",\"parameters\":{}}||stop"},
        {IV_TOOL_FORM_LLAMA3_JSON, ",\"tool_choice\":\"auto\"", "<think>x</think>\n\n{\"answer\": \"<|python_tag|>\"}",
         "{\"answer\": \"<|python_tag|>\"}||stop"},
        {IV_TOOL_FORM_LLAMA3_JSON, ",\"separate_reasoning\":false",
         "<think>x</think>\n{\"name\":\"f\",\"parameters\":{}}", "<think>x</think>|f({});|tool_calls"},
        {IV_TOOL_FORM_HERMES, "", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
         "|f({});|tool_calls"},
        {IV_TOOL_FORM_HERMES, ",\"parallel_tool_calls\":false", "{\"a\": \"<tool_call>\"}",
         "{\"a\": \"<tool_call>\"}||stop"},
        {IV_TOOL_FORM_MISTRAL_NAME, "", "[TOOL_CALLS]f{\"x\": 1}[TOOL_CALLS]g{}", "|f({\"x\": 1});g({});|tool_calls"},
        {IV_TOOL_FORM_MISTRAL, "", "{\"a\": \"[TOOL_CALLS]f{}\"}", "{\"a\": \"[TOOL_CALLS]f{}\"}||stop"},
        {IV_TOOL_FORM_QWEN3_CODER, "", "<tool_call>\n<function=f>\n</function>\n</tool_call>", "|f({});|tool_calls"},
        {IV_TOOL_FORM_QWEN3_CODER, "", "{\"a\": \"<tool_call><function=f></function></tool_call>\"}",
         "{\"a\": \"<tool_call><function=f></function></tool_call>\"}||stop"},
        {IV_TOOL_FORM_NONE, "", "{\"name\":\"f\",\"parameters\":{}}", "{\"name\":\"f\",\"parameters\":{}}||stop"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step < 40; step += 6) {
            char body[700];
            bool stream = step > 1;
            snprintf(body, sizeof body, HI TOOLS ",\"response_format\":{\"type\":\"json_object\"}%s,\"stream\":%s}",
                     cases[i].more, stream ? "true" : "false");
            server.tool_form = cases[i].form;
            expect_answer(body, stream, cases[i].text, step, cases[i].wanted);
        }
}

/* The same for responses: items, and tool_choice. */
static void calls_or_json_of_responses(void **state) {
    (void)state;
    static const char body[] =
        "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"text\":{\"format\":{\"type\":"
        "\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":\"object\"}}},\"stream\":%s}";
    static const struct {
        const char *text, *has, *has_not;
    } cases[] = {
        {"{\"name\": \"f\", \"parameters\": {}}", "\"type\":\"function_call\"", "output_text"},
        {"{\"name\": \"f\", \"age\": 7}", "\"text\":\"{\\\"name\\\": \\\"f\\\", \\\"age\\\": 7}\"",
         "\"type\":\"function_call\""},
    };
    server.tool_form = IV_TOOL_FORM_LLAMA3_JSON;
    for (size_t i = 0; i < 4; i++) {
        char text[500];
        iv_http_request q = {.writes_left = 1000};
        snprintf(text, sizeof text, body, i % 2 ? "true" : "false");
        bridge.count = 0;
        fake_call(&server, &q, RESPONSES, text, strlen(text));
        assert_int_equal(bridge.children[0].constraint, IV_CONSTRAINT_TOOL_CALLS_OR_JSON);
        fake_token(&server, 0, 7, cases[i / 2].text);
        fake_done(&server, 0, IV_FINISH_STOP);
        assert_non_null(strstr(q.out.data, cases[i / 2].has));
        assert_null(strstr(q.out.data, cases[i / 2].has_not));
        assert_non_null(strstr(q.out.data, "\"tool_choice\":\"auto\""));
        fake_close(&q);
    }
}

/* Without callable tools, an answer constrained by response_format is content, even if it looks like a call. */
static void asked_for_json(void **state) {
    (void)state;
    static const char body[] = HI TOOLS ",\"tool_choice\":\"none\",\"response_format\":{\"type\":\"json_object\"}}";
    iv_http_request q = {.writes_left = 1000};
    iv_buf found = {0}, ids = {0};
    server.tool_form = IV_TOOL_FORM_LLAMA3_JSON;
    bridge.count = 0;
    fake_call(&server, &q, CHAT, body, strlen(body));
    fake_token(&server, 0, 7, "{\"name\":\"f\",\"parameters\":{}}");
    fake_done(&server, 0, IV_FINISH_STOP);
    gather(&q, false, &found, &ids);
    assert_string_equal(found.data, "{\"name\":\"f\",\"parameters\":{}}||stop");
    iv_buf_free(&found), iv_buf_free(&ids);
    fake_close(&q);
}

/* Nine letters and digits for Mistral's templates; all different. Kimi's name the function. */
static void ids_of_calls(void **state) {
    (void)state;
    char all[64][IV_CALL_ID_BYTES];
    size_t count = 0;
    for (int form = 0; form <= IV_TOOL_FORM_NONE; form++) {
        server.tool_form = (iv_tool_form)form;
        bool is_short = form >= IV_TOOL_FORM_MISTRAL && form <= IV_TOOL_FORM_MISTRAL_CALL_ID;
        iv_api_call_id(&server, "abc", 1, 2, "f", all[0]);
        if (!is_short) assert_string_equal(all[0], form == IV_TOOL_FORM_KIMI_K2 ? "functions.f:2" : "call_abc_1_2");
        if (!is_short) continue;
        assert_int_equal(strlen(all[0]), 9);
        for (const char *c = all[0]; *c; c++) assert_true(isalnum((unsigned char)*c));
    }
    server.tool_form = IV_TOOL_FORM_MISTRAL;
    for (size_t choice = 0; choice < 8; choice++)
        for (size_t i = 0; i < 8; i++) {
            iv_api_call_id(&server, "abc", choice, i, "f", all[count]);
            for (size_t k = 0; k < count; k++) assert_string_not_equal(all[k], all[count]);
            count++;
        }
    static const char body[] = "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}";
    iv_http_request q = {.writes_left = 1000};
    char wanted[200];
    bridge.count = 0;
    fake_call(&server, &q, RESPONSES, body, strlen(body));
    fake_token(&server, 0, 7, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}]");
    fake_done(&server, 0, IV_FINISH_STOP);
    iv_api_call_id(&server, "test", 0, 0, "f", all[0]);
    snprintf(wanted, sizeof wanted,
             "\"id\":\"fc_test_0_0\",\"call_id\":\"%s\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"", all[0]);
    assert_non_null(strstr(q.out.data, wanted));
    fake_close(&q);
}

/* ---- real templates ------------------------------------------------------------------------------------ */

#define AS_WRITTEN "{\"city\": \"Z\xc3\xbcrich\", \"list\": [1, {\"a\": 2.5}]}"

static const struct {
    const char *model;
    iv_tool_form form;
    const char *begin, *end; /* of the assistant's message */
    const char *arguments;
} real[] = {
    {"tokenizer:mistral_nemo", IV_TOOL_FORM_MISTRAL, "[/INST]", "</s>", AS_WRITTEN},
    {"tokenizer:qwen3", IV_TOOL_FORM_HERMES, "</think>\n\n", "<|im_end|>", AS_WRITTEN},
    {"library/llama3.1:8b", IV_TOOL_FORM_LLAMA3_JSON, "assistant<|end_header_id|>\n\n", "<|eot_id|>", AS_WRITTEN},
    {"library/llama3.2:3b", IV_TOOL_FORM_LLAMA3_JSON, "assistant<|end_header_id|>\n\n", "<|eot_id|>", AS_WRITTEN},
    /* the template writes objects and lists as in Python, and the tool has no schema for them */
    {"library/qwen3-coder:30b", IV_TOOL_FORM_QWEN3_CODER, "<|im_start|>assistant\n", "<|im_end|>",
     "{\"city\": \"Z\xc3\xbcrich\", \"list\": \"[1, {'a': 2.5}]\"}"},
};

static const char conversation[] =
    "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
    "\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":"
    "\"f\",\"arguments\":{\"city\":\"Z\xc3\xbcrich\",\"list\":[1,{\"a\":2.5}]}}}]}],\"tools\":[{\"type\":\"function\","
    "\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]}";

static void check_said(const char *model, iv_tool_form form, const char *arguments, const char *said, size_t n) {
    static iv_vocabulary bytes;
    char text[200], all[256];
    size_t offsets[257];
    iv_grammar *g;
    iv_error err;
    iv_chat_text c;
    bool matches;
    for (size_t i = 0; i < 256; i++) all[i] = (char)i;
    for (size_t i = 0; i <= 256; i++) offsets[i] = i;
    ASSERT_OK(iv_vocabulary_make(all, offsets, 256, &bytes, &err), &err);
    snprintf(text, sizeof text, "{\"form\":\"%s\",\"tools\":[{\"name\":\"f\"}]}", iv_tool_form_name(form));
    ASSERT_OK(iv_grammar_open(IV_CONSTRAINT_TOOL_CALL, text, IV_REASONING_NONE, &bytes, &g, &err), &err);
    ASSERT_OK(iv_grammar_matches(g, said, n, &matches, NULL, &err), &err);
    if (!matches) fail_msg("%s writes what is not forced: %.*s", model, (int)n, said);
    iv_grammar_close(g);
    iv_vocabulary_close(&bytes);
    iv_chat_text_init(&c, true, false, true, false);
    c.form = form;
    iv_chat_text_push(&c, said, n);
    iv_chat_text_end(&c);
    if (c.call_count != 1) fail_msg("%s writes what is not read: %.*s", model, (int)n, said);
    assert_string_equal(c.calls[0].name, "f");
    assert_string_equal(c.calls[0].arguments, arguments);
    assert_int_equal(c.content.len, 0);
    iv_chat_text_free(&c);
}

static void what_templates_write(void **state) {
    (void)state;
    json_t *all = read_chat_templates(), *variables;
    iv_error err;
    ASSERT_OK(iv_json_parse("conversation", conversation, strlen(conversation), &variables, &err), &err);
    for (size_t k = 0; k < sizeof real / sizeof *real; k++) {
        const char *model = real[k].model, *source = chat_template_of(all, model);
        if (!source) continue;
        iv_template *t;
        iv_buf out = {0};
        ASSERT_OK(iv_template_parse(model, source, strlen(source), IV_JINJA_CHAT, &t, &err), &err);
        ASSERT_OK(iv_template_render(t, variables, "now", &out, &err), &err);
        const char *said = strstr(out.data, real[k].begin), *end;
        assert_non_null(said);
        said += strlen(real[k].begin);
        end = strstr(said, real[k].end);
        assert_non_null(end);
        check_said(model, real[k].form, real[k].arguments, said, (size_t)(end - said));
        iv_buf_free(&out);
        iv_template_close(t);
    }
    json_decref(variables), json_decref(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(parsers, begin),
        cmocka_unit_test_setup(special_tokens_are_shown, begin),
        cmocka_unit_test_setup(allowed_tools, begin),
        cmocka_unit_test_setup(forced_calls, begin),
        cmocka_unit_test_setup(answers, begin),
        cmocka_unit_test_setup(ids_of_calls, begin),
        cmocka_unit_test_setup(asked_for_json, begin),
        cmocka_unit_test_setup(calls_or_json, begin),
        cmocka_unit_test_setup(calls_or_json_of_responses, begin),
        cmocka_unit_test(what_templates_write),
    };
    return cmocka_run_group_tests(tests, NULL, close_text_model);
}
