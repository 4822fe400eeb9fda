/* /v1/messages: blocks in series, whole and as events, however the text was cut; Anthropic's errors; how answers end.
 */
#include "api_case.h"
#include "serve/api/handlers.h"

#define TOOL "{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}"
#define CALL(q) "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": " #q "}}</tool_call>"

static const char *word(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    if (!text) fail_msg("no string \"%s\"", key);
    return text;
}

static void ask(iv_http_request *q, const char *text, size_t piece, const char *more, bool finish) {
    static char body[1000];
    snprintf(body, sizeof body,
             "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[" TOOL "]%s}", more);
    *q = (iv_http_request){.writes_left = 100000, .path = "/v1/messages", .body = body};
    begin(NULL);
    fake_call(&server, q, q->path, body, strlen(body));
    for (size_t at = 0, n = strlen(text); at < n && !q->ended; at += piece) {
        char part[300] = "";
        memcpy(part, text + at, n - at < piece ? n - at : piece);
        fake_token(&server, 0, 17, part);
    }
    if (finish && !q->ended) fake_done(&server, 0, IV_FINISH_STOP);
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

static void describe(const json_t *block, iv_buf *out) {
    const char *type = word(block, "type");
    if (strcmp(type, "tool_use") == 0)
        iv_buf_printf(out, "[call %lld]",
                      (long long)json_integer_value(json_object_get(json_object_get(block, "input"), "x")));
    else
        iv_buf_printf(out, "[%s %s]", type, word(block, type));
}

/* One block at a time is open, and they are numbered from 0 on. */
typedef struct stream {
    long long next;
    bool open;
    const char *type;
    char kind[16], text[400];
    iv_buf blocks;
    char reason[40];
    bool stopped;
} stream;

static void take_start(stream *s, const json_t *e) {
    const json_t *block = json_object_get(e, "content_block");
    assert_false(s->open);
    assert_int_equal(json_integer_value(json_object_get(e, "index")), s->next);
    s->open = true, s->text[0] = 0;
    snprintf(s->kind, sizeof s->kind, "%s", word(block, "type"));
}

static void take_stop(stream *s) {
    if (strcmp(s->kind, "tool_use") == 0)
        iv_buf_printf(&s->blocks, "[call %s]", strpbrk(s->text, "0123456789"));
    else
        iv_buf_printf(&s->blocks, "[%s %s]", s->kind, s->text);
    char *end = s->blocks.data + s->blocks.len; /* "[call 1}]" */
    if (strcmp(s->kind, "tool_use") == 0) end[-2] = ']', end[-1] = 0, s->blocks.len--;
    s->open = false, s->next++;
}

static void take(stream *s, const json_t *e) {
    static const char *const deltas[] = {"text", "thinking", "partial_json"};
    const char *type = word(e, "type");
    if (strcmp(type, "content_block_start") == 0) take_start(s, e);
    if (strcmp(type, "content_block_start") != 0 && strncmp(type, "content_block", 13) == 0) {
        assert_true(s->open);
        assert_int_equal(json_integer_value(json_object_get(e, "index")), s->next);
    }
    for (size_t i = 0; i < 3; i++) {
        const char *more = json_string_value(json_object_get(json_object_get(e, "delta"), deltas[i]));
        if (more) strcat(s->text, more);
    }
    if (strcmp(type, "content_block_stop") == 0) take_stop(s);
    if (strcmp(type, "message_delta") == 0)
        snprintf(s->reason, sizeof s->reason, "%s", word(json_object_get(e, "delta"), "stop_reason"));
    s->stopped = strcmp(type, "message_stop") == 0;
}

static stream read_stream(const iv_http_request *q) {
    stream s = {0};
    for (char *at = q->out.data; (at = strstr(at, "data: ")) != NULL;) {
        at += 6;
        size_t n = strcspn(at, "\n");
        json_t *e = parse_json(at, n);
        take(&s, e);
        json_decref(e);
        at += n;
    }
    assert_true(s.stopped && !s.open);
    return s;
}

static void blocks_in_series(void **state) {
    (void)state;
    static const struct {
        const char *text, *wanted, *reason;
    } cases[] = {
        {"hello", "[text hello]", "end_turn"},
        {"<think>hm</think>hello", "[thinking hm][text hello]", "end_turn"},
        {CALL(1), "[call 1]", "tool_use"},
        {"I ask. " CALL(1), "[text I ask.][call 1]", "tool_use"},
        {"<think>hm</think>a" CALL(1) "b" CALL(2) CALL(3) "c",
         "[thinking hm][text a][call 1][text b][call 2][call 3][text c]", "tool_use"},
        {CALL(1) " then " CALL(2), "[call 1][text  then][call 2]", "tool_use"},
        {"a<tool_call>b</tool_call>c" CALL(4), "[text a<tool_call>b</tool_call>c][call 4]", "tool_use"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q;
        ask(&q, cases[i].text, 300, "", true);
        json_t *answer = parse_json(q.out.data, q.out.len), *block;
        iv_buf found = {0};
        size_t k;
        json_array_foreach(json_object_get(answer, "content"), k, block) describe(block, &found);
        assert_string_equal(found.data, cases[i].wanted);
        assert_string_equal(word(answer, "stop_reason"), cases[i].reason);
        json_decref(answer);
        iv_buf_free(&found), fake_close(&q);
        for (size_t piece = 1; piece <= strlen(cases[i].text); piece++) {
            ask(&q, cases[i].text, piece, ",\"stream\":true", true);
            stream s = read_stream(&q);
            assert_string_equal(s.blocks.data, cases[i].wanted);
            assert_string_equal(s.reason, cases[i].reason);
            iv_buf_free(&s.blocks), fake_close(&q);
        }
    }
}

/* ---- ends ----------------------------------------------------------------------------------------------- */

static void ends(void **state) {
    (void)state;
    static const char *const streams[] = {"", ",\"stream\":true"};
    for (size_t i = 0; i < 2; i++) {
        iv_http_request q;
        ask(&q, "ab", 1, streams[i], false);
        iv_http_request abort = make_request("/abort_request", "{\"abort_all\":true}");
        run(&abort);
        assert_int_equal(abort.status, 200);
        assert_true(q.ended && strstr(q.out.data, "\"stop_reason\":\"pause_turn\"") && !server.tasks);
        fake_close(&q), fake_close(&abort);
        ask(&q, "ab", 1, streams[i], false); /* the model's context is full: fewer than max_tokens */
        fake_done(&server, 0, IV_FINISH_LENGTH);
        assert_non_null(strstr(q.out.data, "\"stop_reason\":\"model_context_window_exceeded\""));
        fake_close(&q);
        ask(&q, "abcdefghi", 1, streams[i], false);
        fake_done(&server, 0, IV_FINISH_LENGTH);
        assert_non_null(strstr(q.out.data, "\"stop_reason\":\"max_tokens\""));
        fake_close(&q);
    }
}

/* ---- errors --------------------------------------------------------------------------------------------- */

static void expect_error(const iv_http_request *q, const char *text, int status, const char *type,
                         const char *message) {
    json_t *answer = parse_json(text, strcspn(text, "\n"));
    const json_t *error = json_object_get(answer, "error");
    assert_int_equal(q->status, status);
    assert_string_equal(word(answer, "type"), "error");
    assert_string_equal(word(answer, "request_id"), "test");
    assert_string_equal(word(error, "type"), type);
    assert_int_equal(json_object_size(error), 2);
    if (!strstr(word(error, "message"), message)) fail_msg("%s", word(error, "message"));
    json_decref(answer);
}

static void errors(void **state) {
    (void)state;
#define BODY(more) "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" more "}"
    static const struct {
        const char *path, *body;
        int status;
        const char *type, *message;
    } cases[] = {
        {"/v1/messages", "{", 400, "invalid_request_error", "body"},
        {"/v1/messages", "[]", 400, "invalid_request_error", "body: wanted a JSON object, found array"},
        {"/v1/messages", BODY(",\"top_q\":1"), 400, "invalid_request_error", "top_q"},
        {"/v1/messages", BODY(",\"model\":\"another\""), 404, "not_found_error", "model: wanted"},
        {"/v1/messages/count_tokens", "{\"model\":\"another\",\"messages\":[]}", 404, "not_found_error", "model"},
        {"/v1/messages/count_tokens", "{\"messages\":[]}", 400, "invalid_request_error", "messages: wanted"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        begin(NULL);
        run(&q);
        expect_error(&q, q.out.data, cases[i].status, cases[i].type, cases[i].message);
        fake_close(&q);
    }
    static const struct {
        iv_status status;
        int http;
        const char *type;
    } refused[] = {{IV_BUSY, 429, "rate_limit_error"},
                   {IV_NO_MEMORY, 529, "overloaded_error"},
                   {IV_IO, 500, "api_error"},
                   {IV_INVALID, 400, "invalid_request_error"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        iv_http_request q = make_request("/v1/messages", BODY(""));
        begin(NULL);
        run(&q);
        fake_refuse(&server, 0, refused[i].status, "queue: full");
        expect_error(&q, q.out.data, refused[i].http, refused[i].type, "queue: full");
        fake_close(&q);
    }
    iv_http_request q;
    ask(&q, "ab", 1, ",\"stream\":true", false);
    fake_done(&server, 0, IV_FINISH_ERROR);
    char *event = strstr(q.out.data, "event: error\ndata: ");
    assert_true(q.ended && event);
    expect_error(&q, event + strlen("event: error\ndata: "), 200, "api_error", "row 3: not finite");
    fake_close(&q);
}

/* ---- the input ------------------------------------------------------------------------------------------ */

/* The messages of a template, shortly: role:content(calls)~reasoning. */
static void expect_messages(const char *body, const char *wanted, const char *skipped) {
    iv_error err;
    iv_buf found = {0}, ignored = {0};
    json_t *root = parse_json(body, strlen(body)), *list = json_array(), *m;
    size_t i;
    ASSERT_OK(
        iv_anthropic_messages(json_object_get(root, "system"), json_object_get(root, "messages"), list, &ignored, &err),
        &err);
    ASSERT_OK(iv_anthropic_edit(json_object_get(root, "context_management"), list, &err), &err);
    json_array_foreach(list, i, m) {
        json_t *content = json_object_get(m, "content"), *part;
        size_t k;
        iv_buf_printf(&found, "%c:%s", word(m, "role")[0], json_is_string(content) ? json_string_value(content) : "");
        json_array_foreach(content, k, part) iv_buf_printf(&found, "%s+", word(part, "text"));
        if (json_object_get(m, "tool_calls")) iv_buf_puts(&found, "()");
        if (json_object_get(m, "reasoning_content")) iv_buf_printf(&found, "~%s", word(m, "reasoning_content"));
        iv_buf_puts(&found, " ");
    }
    assert_string_equal(found.data, wanted);
    assert_string_equal(ignored.data ? ignored.data : "", skipped);
    iv_buf_free(&found), iv_buf_free(&ignored);
    json_decref(list), json_decref(root);
}

#define USE(id) "{\"type\":\"tool_use\",\"id\":\"" id "\",\"name\":\"f\",\"input\":{}}"
#define RESULT(id) "{\"type\":\"tool_result\",\"tool_use_id\":\"" id "\",\"content\":\"r" id "\"}"
#define TEXT(s) "{\"type\":\"text\",\"text\":\"" s "\"}"
#define THOUGHT(s) "{\"type\":\"thinking\",\"thinking\":\"" s "\",\"signature\":\"\"}"
#define BY(role, blocks) "{\"role\":\"" role "\",\"content\":[" blocks "]}"

static void results_are_next_to_their_calls(void **state) {
    (void)state;
    static const struct {
        const char *messages, *wanted;
    } cases[] = {
        {BY("assistant", USE("1")) "," BY("user", RESULT("1") "," TEXT("x")), "a:() t:r1 u:x+ "},
        {BY("assistant", USE("1")) "," BY("user", TEXT("x") "," RESULT("1")), "a:() t:r1 u:x+ "},
        {BY("assistant", USE("1") "," USE("2")) "," BY("user", RESULT("1") "," TEXT("x") "," RESULT("2") "," TEXT("y")),
         "a:() t:r1 t:r2 u:x+y+ "},
        {BY("assistant", USE("1")) "," BY("user", TEXT("x")) "," BY("user", RESULT("1")), "a:() t:r1 u:x+ "},
        {BY("assistant", USE("1")) "," BY("user", RESULT("1")) "," BY("assistant", USE("2")) "," BY(
             "user", TEXT("x") "," RESULT("2")),
         "a:() t:r1 a:() t:r2 u:x+ "},
        {BY("user", TEXT("x") "," RESULT("unknown")), "t:runknown u:x+ "},
    };
    char body[1500];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(body, sizeof body, "{\"messages\":[%s]}", cases[i].messages);
        expect_messages(body, cases[i].wanted, "");
    }
}

static void skipped_and_cleared(void **state) {
    (void)state;
    expect_messages("{\"system\":\"s\",\"messages\":[" BY("user", TEXT("x")) "," BY(
                        "assistant", "{\"type\":\"redacted_thinking\",\"data\":\"abc\"}," TEXT(
                                         "y")) "," BY("system", TEXT("z")) "]}",
                    "s:s u:x+ a:y+ s:z+ ", "messages[1].content[0] (redacted_thinking)");
#define TURNS BY("assistant", THOUGHT("a") "," TEXT("1")) "," BY("assistant", THOUGHT("b") "," TEXT("2"))
#define EDIT(keep) \
    "{\"messages\":[" TURNS "],\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\"" keep "}]}}"
    expect_messages(EDIT(",\"keep\":\"all\""), "a:1+~a a:2+~b ", "");
    expect_messages(EDIT(",\"keep\":{\"type\":\"all\"}"), "a:1+~a a:2+~b ", "");
    expect_messages(EDIT(",\"keep\":{\"type\":\"thinking_turns\",\"value\":2}"), "a:1+~a a:2+~b ", "");
    expect_messages(EDIT(",\"keep\":{\"type\":\"thinking_turns\",\"value\":1}"), "a:1+ a:2+~b ", "");
    expect_messages(EDIT(""), "a:1+ a:2+~b ", "");
}

/* Tools that nothing here can run are named in the answer and in its header; the others are used. */
static void foreign_tools(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *ignored;
    } cases[] = {
        {"/v1/messages",
         BODY(",\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\",\"max_uses\":5}," TOOL "]"),
         "tools[0] (web_search_20250305)"},
        {"/v1/messages", BODY(",\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]"),
         "tools[0] (bash_20250124)"},
        {"/v1/messages",
         BODY(",\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"eager_input_streaming\":true,\"defer_loading\":true,"
              "\"input_examples\":[{}],\"allowed_callers\":[\"direct\"]}]"),
         "tools[0] (defer_loading), tools[0] (input_examples)"},
        {"/v1/responses",
         "{\"input\":\"x\",\"tools\":[{\"type\":\"local_shell\"},{\"type\":\"function\",\"name\":\"f\",\"strict\":"
         "false},"
         "{\"type\":\"custom\",\"name\":\"apply_patch\"},{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[]}]}",
         "tools[0] (local_shell), tools[2] (custom), tools[3] (namespace)"},
        {"/v1/responses",
         "{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"web_search_call\"},{\"type\":\"reasoning\","
         "\"summary\":[],"
         "\"encrypted_content\":\"e\"}]}",
         "input[1] (web_search_call), input[2] (encrypted_content)"},
    };
    char wanted[200];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        begin(NULL);
        run(&q);
        if (q.ended) fail_msg("%s", q.out.data);
        fake_done(&server, 0, IV_FINISH_STOP);
        snprintf(wanted, sizeof wanted, "\"ignored\":\"%s\"", cases[i].ignored);
        if (!strstr(q.out.data, wanted)) fail_msg("%s: %s", wanted, q.out.data);
        snprintf(wanted, sizeof wanted, "x-invar-ignored: %s\n", cases[i].ignored);
        assert_string_equal(q.headers.data, wanted);
        fake_close(&q);
    }
}

/* What clients send and nothing could honor. */
static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *more, *message;
    } cases[] = {
        {",\"context_management\":{\"edits\":[{\"type\":\"compact_20260112\"}]}",
         "context_management.edits[0].type: wanted clear_thinking"},
        {",\"context_management\":{\"edit\":[]}", "context_management.edit: this field"},
        {",\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\",\"keep\":0}]}",
         "edits[0].keep: wanted"},
        {",\"output_config\":{\"effort\":\"huge\"}", "output_config.effort: wanted"},
        {",\"output_config\":{\"form\":1}", "output_config.form: this field"},
        {",\"output_config\":{\"format\":{\"type\":\"xml\"}}", "output_config.format.type: wanted"},
        {",\"thinking\":{\"type\":\"adaptive\",\"depth\":1}", "thinking.depth: this field"},
        {",\"mcp_servers\":[{}]", "mcp_servers: wanted []"},
        {",\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"w\"}],\"tool_choice\":{\"type\":\"any\"}",
         "tool_choice: wanted \"tools\""},
    };
    char body[600];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(body, sizeof body, "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]%s}",
                 cases[i].more);
        iv_http_request q = make_request("/v1/messages", body);
        begin(NULL);
        run(&q);
        assert_true(q.ended);
        expect_error(&q, q.out.data, 400, "invalid_request_error", cases[i].message);
        fake_close(&q);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_in_series),
                                       cmocka_unit_test(ends),
                                       cmocka_unit_test(errors),
                                       cmocka_unit_test(results_are_next_to_their_calls),
                                       cmocka_unit_test(skipped_and_cleared),
                                       cmocka_unit_test(foreign_tools),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, close_text_model);
}
