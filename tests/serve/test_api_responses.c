/* /v1/responses with tools: its items whole and as events, however the text was cut; input items as messages. */
#include "api_case.h"
#include "serve/api/handlers.h"

static const char *word(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    if (!text) fail_msg("no string \"%s\"", key);
    return text;
}

#define TOOL "{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}"
#define CALL(q) "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": " #q "}}</tool_call>"

/* Answers with `text`, in pieces. */
static iv_http_request respond(const char *text, size_t piece, bool stream, const char *more) {
    static char body[1000];
    assert_true(strlen(text) < 200);
    snprintf(body, sizeof body, "{\"input\":\"x\",\"tools\":[" TOOL "]%s%s}", stream ? ",\"stream\":true" : "", more);
    iv_http_request q = {.writes_left = 100000, .path = "/v1/responses", .body = body};
    begin(NULL);
    fake_call(&server, &q, q.path, body, strlen(body));
    for (size_t at = 0, n = strlen(text); at < n && !q.ended; at += piece) {
        char part[200] = "";
        memcpy(part, text + at, n - at < piece ? n - at : piece);
        fake_token(&server, 0, 17, part);
    }
    if (!q.ended) fake_done(&server, 0, IV_FINISH_STOP);
    assert_true(q.ended && !server.tasks);
    return q;
}

/* ---- what comes back ----------------------------------------------------------------------------------- */

/* An item without its variable members. */
static void describe(const json_t *item, iv_buf *out) {
    const char *type = word(item, "type");
    json_t *part = json_array_get(json_object_get(item, "content"), 0);
    if (strcmp(type, "function_call") == 0)
        iv_buf_printf(out, "[call %s %s %s]", word(item, "name"), word(item, "arguments"), word(item, "status"));
    else
        iv_buf_printf(out, "[%s %s]", type, part ? word(part, "text") : "");
}

static void describe_output(const json_t *response, iv_buf *out) {
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(response, "output"), i, item) describe(item, out);
}

/* The events of a stream reassembled: each item from its deltas, by index. */
typedef struct rebuilt {
    char texts[16][400];
    size_t count, done;
    iv_buf items, response;
} rebuilt;

static void take_event(rebuilt *b, const json_t *e, size_t sequence) {
    const char *type = word(e, "type");
    size_t at = (size_t)json_integer_value(json_object_get(e, "output_index"));
    json_t *item = json_object_get(e, "item");
    assert_int_equal(json_integer_value(json_object_get(e, "sequence_number")), sequence);
    assert_true(at < 16);
    size_t n = strlen(b->texts[at]);
    if (strcmp(type, "response.output_item.added") == 0) {
        assert_int_equal(at, b->count); /* items begin in order, one after the other */
        assert_int_equal(b->count, b->done);
        b->count++;
    } else if (strstr(type, ".delta")) {
        assert_true(at < b->count);
        snprintf(b->texts[at] + n, sizeof b->texts[at] - n, "%s", word(e, "delta"));
    } else if (strcmp(type, "response.function_call_arguments.done") == 0) {
        assert_string_equal(word(e, "arguments"), b->texts[at]);
        assert_string_equal(word(e, "name"), "f");
    } else if (strcmp(type, "response.output_text.done") == 0 || strcmp(type, "response.reasoning_text.done") == 0) {
        assert_string_equal(word(e, "text"), b->texts[at]);
    } else if (strcmp(type, "response.output_item.done") == 0) {
        json_t *part = json_array_get(json_object_get(item, "content"), 0);
        assert_string_equal(part ? word(part, "text") : word(item, "arguments"), b->texts[at]);
        assert_int_equal(at, b->done++);
    } else if (strcmp(type, "response.completed") == 0) {
        describe_output(json_object_get(e, "response"), &b->response);
    }
}

static void expect_stream(const char *text, size_t piece, const char *wanted) {
    iv_http_request q = respond(text, piece, true, "");
    rebuilt b = {0};
    size_t sequence = 0;
    for (char *at = q.out.data; (at = strstr(at, "data: ")) != NULL;) {
        at += 6;
        size_t n = strcspn(at, "\n");
        json_t *e = parse_json(at, n);
        take_event(&b, e, sequence++);
        json_decref(e);
        at += n;
    }
    assert_string_equal(b.response.data, wanted);
    iv_buf_free(&b.response), iv_buf_free(&b.items);
    fake_close(&q);
}

static void items(void **state) {
    (void)state;
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"hello", "[message hello]"},
        {"", "[message ]"},
        {CALL(1), "[call f {\"x\": 1} completed]"},
        {"<think>hm</think>\n\n" CALL(1) "\n" CALL(2),
         "[reasoning hm][call f {\"x\": 1} completed][call f {\"x\": 2} completed]"},
        {"a" CALL(1) "b" CALL(2) CALL(3) "c",
         "[message a][call f {\"x\": 1} completed][message b][call f {\"x\": 2} completed]"
         "[call f {\"x\": 3} completed][message c]"},
        {"<think>hm</think>\n\nI ask. " CALL(1), "[reasoning hm][message \n\nI ask.][call f {\"x\": 1} completed]"},
        {CALL(1) " and " CALL(2), "[call f {\"x\": 1} completed][message  and][call f {\"x\": 2} completed]"},
        {"<tool_call>{\"name\": 7}</tool_call>", "[message <tool_call>{\"name\": 7}</tool_call>]"},
        {"<tool_call>{\"name\": \"f\"", "[message <tool_call>{\"name\": \"f\"]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = respond(cases[i].text, 1000, false, "");
        iv_buf found = {0};
        json_t *answer = parse_json(q.out.data, q.out.len);
        describe_output(answer, &found);
        assert_string_equal(found.data, cases[i].wanted);
        assert_string_equal(word(answer, "tool_choice"), "auto");
        json_t *tool = json_array_get(json_object_get(answer, "tools"), 0);
        assert_string_equal(word(tool, "name"), "f");
        json_decref(answer);
        iv_buf_free(&found);
        fake_close(&q);
        for (size_t piece = 1; piece < 40; piece += 1 + piece / 5) expect_stream(cases[i].text, piece, cases[i].wanted);
    }
}

static void choices_of_tools(void **state) {
    (void)state;
    iv_buf found = {0};
    iv_http_request q = respond(CALL(1), 1000, false, ",\"tool_choice\":\"none\"");
    json_t *answer = parse_json(q.out.data, q.out.len);
    describe_output(answer, &found);
    assert_string_equal(found.data, "[message " CALL(1) "]");
    assert_string_equal(word(answer, "tool_choice"), "none");
    json_decref(answer);
    fake_close(&q);
    iv_buf_clear(&found);
    q = respond(CALL(1) CALL(2), 1000, false, ",\"parallel_tool_calls\":false");
    answer = parse_json(q.out.data, q.out.len);
    describe_output(answer, &found);
    assert_string_equal(found.data, "[call f {\"x\": 1} completed]");
    assert_true(json_is_false(json_object_get(answer, "parallel_tool_calls")));
    json_decref(answer);
    fake_close(&q);
    iv_buf_free(&found);
}

#define LOGPROBS ",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2"

static size_t logprobs_of(const json_t *holder) {
    const json_t *list = json_object_get(holder, "logprobs"), *entry;
    size_t i;
    assert_true(json_is_array(list));
    json_array_foreach(list, i, entry) {
        assert_true(json_real_value(json_object_get(entry, "logprob")) == -0.25);
        assert_int_equal(json_array_size(json_object_get(entry, "top_logprobs")), 2);
    }
    return json_array_size(list);
}

/* Log-probabilities of a message are of the tokens behind the reasoning, including one that ends it. */
static void logprobs(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t piece, wanted;
    } cases[] = {{"<think>a</think>bcd", 1, 3},
                 {"<think>a</think>bcd", 2, 2},
                 {"<think>a</think>bcd", 3, 2},
                 {"<think>a</think>bcd", 40, 1},
                 {"bcd", 1, 3},
                 {"<think>\303\251</think>bcd", 3, 2},
                 {"<think>abc", 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = respond(cases[i].text, cases[i].piece, false, LOGPROBS);
        json_t *answer = parse_json(q.out.data, q.out.len), *output = json_object_get(answer, "output");
        json_t *message = json_array_get(output, json_array_size(output) - 1);
        assert_int_equal(logprobs_of(json_array_get(json_object_get(message, "content"), 0)), cases[i].wanted);
        json_decref(answer);
        fake_close(&q);
        q = respond(cases[i].text, cases[i].piece, true, LOGPROBS);
        size_t streamed = 0, whole = 0;
        for (char *at = q.out.data; (at = strstr(at, "data: ")) != NULL;) {
            size_t n = strcspn(at += 6, "\n");
            json_t *e = parse_json(at, n);
            if (strcmp(word(e, "type"), "response.output_text.delta") == 0) streamed += logprobs_of(e);
            if (strcmp(word(e, "type"), "response.output_text.done") == 0) whole = logprobs_of(e);
            json_decref(e);
        }
        assert_true(streamed == cases[i].wanted && whole == cases[i].wanted);
        fake_close(&q);
    }
}

/* Tokens before the first content, tags included; the same in a chat. */
static void reasoning_is_counted(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t piece, wanted;
    } cases[] = {{"<think>a</think>bcd", 1, 16},
                 {"<think>a</think>bcd", 3, 5},
                 {"<think>a</think>bcd", 40, 0},
                 {"bcd", 1, 0},
                 {"<think>abc", 1, 10},
                 {"<think>a</think>" CALL(1), 1, 16},
                 {"<think>\303\251</think>b", 1, 17}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        iv_http_request q = respond(cases[i / 2].text, cases[i / 2].piece, i % 2, "");
        char wanted[60];
        snprintf(wanted, sizeof wanted, "\"output_tokens_details\":{\"reasoning_tokens\":%zu}", cases[i / 2].wanted);
        if (!strstr(q.out.data, wanted)) fail_msg("%s: wanted %s, found %s", cases[i / 2].text, wanted, q.out.data);
        fake_close(&q);
    }
}

/* ---- what goes in -------------------------------------------------------------------------------------- */

static void input_becomes_messages(void **state) {
    (void)state;
    static const char input[] =
        "[{\"role\":\"user\",\"content\":\"a\",\"name\":\"n\"},"
        "{\"type\":\"reasoning\",\"id\":\"rs\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r\"}"
        "]},"
        "{\"type\":\"message\",\"role\":\"assistant\",\"id\":\"m\",\"status\":\"completed\","
        "\"content\":[{\"type\":\"output_text\",\"text\":\"b\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call\",\"call_id\":\"2\",\"name\":\"g\",\"arguments\":\"{}\",\"status\":\"completed\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"x\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"2\",\"output\":[{\"type\":\"input_text\",\"text\":\"y\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"3\",\"name\":\"f\",\"arguments\":\"{}\"}]";
    static const char wanted[] =
        "[{\"content\":\"i\",\"role\":\"system\"},{\"content\":\"a\",\"name\":\"n\",\"role\":\"user\"},"
        "{\"content\":[{\"text\":\"b\",\"type\":\"output_text\"}],\"reasoning_content\":\"r\",\"role\":\"assistant\","
        "\"tool_calls\":[{\"function\":{\"arguments\":\"{}\",\"name\":\"f\"},\"id\":\"1\",\"type\":\"function\"},"
        "{\"function\":{\"arguments\":\"{}\",\"name\":\"g\"},\"id\":\"2\",\"type\":\"function\"}]},"
        "{\"content\":\"x\",\"role\":\"tool\",\"tool_call_id\":\"1\"},"
        "{\"content\":[{\"text\":\"y\",\"type\":\"input_text\"}],\"role\":\"tool\",\"tool_call_id\":\"2\"},"
        "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{}\",\"name\":\"f\"},\"id\":\"3\","
        "\"type\":\"function\"}]}]";
    json_t *items = parse_json(input, strlen(input)), *list = json_array(), *instructions = json_string("i");
    iv_error err;
    ASSERT_OK(iv_responses_messages(items, instructions, list, NULL, &err), &err);
    char *found = json_dumps(list, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(found, wanted);
    free(found);
    json_decref(items), json_decref(list), json_decref(instructions);
}

/* By OpenAI's schema: refusals among the parts, calls without arguments. */
static void messages_of_assistants(void **state) {
    (void)state;
    static const char input[] =
        "[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"refusal\",\"refusal\":"
        "\"no\"}]},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"\"}},"
        "{\"function\":{\"name\":\"f\",\"arguments\":null}},{\"function\":{\"name\":\"f\"}},"
        "{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}],\"annotations\":[],"
        "\"provider_specific_fields\":{\"refusal\":null},\"cache_control\":{\"type\":\"ephemeral\"},\"id\":null}]";
    static const char wanted[] =
        "[{\"content\":[{\"text\":\"a\",\"type\":\"text\"},{\"text\":\"no\",\"type\":\"text\"}],\"role\":\"assistant\"}"
        ","
        "{\"content\":\"\",\"role\":\"assistant\",\"tool_calls\":["
        "{\"function\":{\"arguments\":{},\"name\":\"f\"}},{\"function\":{\"arguments\":{},\"name\":\"f\"}},"
        "{\"function\":{\"arguments\":{},\"name\":\"f\"}},{\"function\":{\"arguments\":{\"x\":1},\"name\":\"f\"}}]}]";
    static const char *const bad[] = {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"text\":\"a\"}]}]",
                                      "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                                      "\"arguments\":\"7\"}}]}]"};
    json_t *messages = parse_json(input, strlen(input)), *list = json_array();
    iv_error err;
    ASSERT_OK(iv_api_read_messages(messages, list, &err), &err);
    char *found = json_dumps(list, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(found, wanted);
    free(found);
    json_decref(messages);
    for (size_t i = 0; i < 2; i++) {
        messages = parse_json(bad[i], strlen(bad[i]));
        assert_int_equal(iv_api_read_messages(messages, list, &err), IV_INVALID);
        assert_non_null(strstr(err.message, ", found "));
        json_decref(messages);
    }
    json_decref(list);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *body, *param;
        int status;
    } cases[] = {
        {"{\"input\":[{\"type\":\"web_search_call\"}]}", "input", 400},
        {"{\"input\":[{\"type\":\"item_reference\"}]}", "input[0].type", 400},
        {"{\"input\":[7]}", "input[0].type", 400},
        {"{\"input\":[{\"type\":null,\"role\":\"user\"}]}", "input[0].content", 400},
        {"{\"input\":[{\"role\":\"user\",\"content\":\"a\",\"phase\":\"b\"}]}", "input[0].phase", 400},
        {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\"}]}", "input[0].arguments", 400},
        {"{\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"\"}]}", "input[0].call_id", 400},
        {"{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"1\"}]}", "input[0].output", 400},
        {"{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"\",\"a\":1}]}", "input[0].a",
         400},
        {"{\"input\":[{\"type\":\"reasoning\",\"encrypted_content\":\"x\"}]}", "input", 400},
        {"{\"input\":[{\"type\":\"reasoning\",\"content\":[{}]}]}", "input[0].content[0].text", 400},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"magic\"}]}", "tools[1].type", 400},
        {"{\"input\":\"a\",\"reasoning\":{\"effort\":\"huge\"}}", "reasoning.effort", 400},
        {"{\"input\":\"a\",\"reasoning\":{\"summary\":true}}", "reasoning.summary", 400},
        {"{\"input\":\"a\",\"reasoning\":{\"budget\":5}}", "reasoning.budget", 400},
        {"{\"input\":[{\"role\":\"user\",\"content\":\"a\",\"name\":1}]}", "input[0].name", 400},
        {"{\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"bot\",\"content\":\"a\"}"
         "]}",
         "input[1].role", 400},
        {"{\"input\":[{\"content\":\"a\"}]}", "input[0].role", 400},
        {"{\"input\":[{\"role\":\"user\",\"content\":7}]}", "input[0].content", 400},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":"
         "\"input_image\"}]}]}",
         "input[0].content[1].type", 400},
        {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{\"}]}",
         "input[0].arguments", 400},
        {"{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":[{\"type\":\"input_image\"}]}]}",
         "input[0].output[0].type", 400},
        {"{\"input\":[]}", "input", 400},
        {"{\"input\":\"a\",\"include\":[\"reasoning.encrypted_content\",\"b\"]}", "include", 400},
        {"{\"input\":\"a\",\"include\":[7]}", "include", 400},
        {"{\"input\":\"a\",\"top_logprobs\":2}", "top_logprobs", 400},
        {"{\"input\":\"a\",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":21}", "top_logprobs", 400},
        {"{\"input\":\"a\",\"include\":\"reasoning.encrypted_content\"}", "include", 400},
        {"{\"input\":\"a\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
         "stream_options.include_usage", 400},
        {"{\"input\":\"a\",\"stream_options\":{}}", "stream_options", 400},
        {"{\"input\":\"a\",\"truncation\":\"sometimes\"}", "truncation", 400},
        {"{\"input\":\"a\",\"truncation\":true}", "truncation", 400},
        {"{\"input\":\"a\",\"previous_response_id\":\"resp_1\"}", "previous_response_id", 400},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"function\"}]}", "tools[0].name", 400},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"function\":{}}]}", "tools[0].function",
         400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = {.writes_left = 10};
        begin(NULL);
        fake_call(&server, &q, "/v1/responses", cases[i].body, strlen(cases[i].body));
        if (!q.ended) fail_msg("not refused: %s", cases[i].body);
        json_t *answer = parse_json(q.out.data, q.out.len);
        assert_int_equal(q.status, cases[i].status);
        assert_string_equal(word(json_object_get(answer, "error"), "param"), cases[i].param);
        json_decref(answer);
        fake_close(&q);
    }
}

/* Fields that clients and frameworks add. */
static void whole_bodies(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"input\":\"a\",\"store\":false,\"include\":[\"reasoning.encrypted_content\"],\"reasoning\":{\"effort\":"
        "\"low\",\"summary\":\"auto\"},\"text\":{\"format\":{\"type\":\"text\"},\"verbosity\":\"medium\"}}",
        "{\"input\":\"a\",\"store\":true,\"include\":[],\"reasoning\":{\"effort\":null},\"stream\":true,"
        "\"stream_options\":{\"include_obfuscation\":false}}",
        "{\"input\":\"a\",\"top_k\":5,\"min_p\":0.5,\"seed\":1,\"stop\":[\"b\"],\"logit_bias\":{\"1\":2},"
        "\"presence_penalty\":1,\"frequency_penalty\":1,\"repetition_penalty\":2,\"ignore_eos\":true,"
        "\"stop_token_ids\":[3],\"skip_special_tokens\":false,\"priority\":1,"
        "\"chat_template_kwargs\":{\"enable_thinking\":false}}"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        iv_http_request q = {.writes_left = 100};
        begin(NULL);
        fake_call(&server, &q, "/v1/responses", bodies[i], strlen(bodies[i]));
        if (bridge.count != 1) fail_msg("%s: %s", bodies[i], q.out.data);
        fake_done(&server, 0, IV_FINISH_STOP);
        assert_int_equal(q.status, 200);
        fake_close(&q);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(items),
                                       cmocka_unit_test(choices_of_tools),
                                       cmocka_unit_test(input_becomes_messages),
                                       cmocka_unit_test(messages_of_assistants),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(logprobs),
                                       cmocka_unit_test(reasoning_is_counted),
                                       cmocka_unit_test(reasoning_is_counted),
                                       cmocka_unit_test(whole_bodies)};
    return cmocka_run_group_tests(tests, begin, close_text_model);
}
