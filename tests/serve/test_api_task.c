/* From events to responses: order, refusals, clients that leave, aborts; over a fake bridge. */
#include "api_case.h"
#include "made_tokenizer.h"
#include "serve/api/handlers.h"
#include "serve/api/updates.h"
#include "serve/state/metrics.h"

static json_t *answer(iv_http_request *q, int status) {
    iv_error err;
    json_t *v = NULL;
    assert_true(q->ended && !q->stream);
    if (q->status != status) fail_msg("wanted %d, found %d: %s", status, q->status, q->out.data);
    ASSERT_OK(iv_json_parse("answer", q->out.data, q->out.len, &v, &err), &err);
    fake_close(q);
    return v;
}

static void expect_error_answer(iv_http_request *q, int status, const char *type, const char *param) {
    json_t *v = answer(q, status), *e = json_object_get(v, "error");
    assert_non_null(json_string_value(json_object_get(e, "message")));
    assert_string_equal(json_string_value(json_object_get(e, "type")), type);
    assert_int_equal(json_integer_value(json_object_get(e, "code")), status);
    if (param)
        assert_string_equal(json_string_value(json_object_get(e, "param")), param);
    else
        assert_true(json_is_null(json_object_get(e, "param")));
    json_decref(v);
}

/* Children end in any order; choices keep theirs. */
static void choices_keep_their_order(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"seed\":5}");
    run(&q);
    assert_int_equal(bridge.count, 4);
    for (size_t i = 0; i < 4; i++) assert_int_equal(bridge.children[i].seed, 5 + i % 2);
    assert_int_equal(bridge.children[0].max_tokens, 16);
    static const char *const texts[] = {"zero", "one", "two", "three"};
    for (size_t i = 4; i-- > 0;) {
        fake_token(&server, i, 9, texts[i]);
        assert_false(q.ended);
        fake_done(&server, i, IV_FINISH_STOP);
    }
    json_t *v = answer(&q, 200), *choices = json_object_get(v, "choices");
    for (size_t i = 0; i < 4; i++) {
        const json_t *c = json_array_get(choices, i);
        assert_int_equal(json_integer_value(json_object_get(c, "index")), i);
        assert_string_equal(json_string_value(json_object_get(c, "text")), texts[i]);
    }
    assert_int_equal(json_integer_value(json_object_get(json_object_get(v, "usage"), "prompt_tokens")), 6);
    json_decref(v);
}

/* Every choice's seed is a valid seed of a request. */
static void seeds_of_choices_can_be_asked_for(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":\"a\",\"n\":3,\"seed\":9223372036854775806}");
    run(&q);
    assert_int_equal(bridge.count, 3);
    assert_true(bridge.children[0].seed == INT64_MAX - 1 && bridge.children[1].seed == INT64_MAX);
    assert_int_equal(bridge.children[2].seed, 0);
    for (size_t i = 0; i < 3; i++) fake_token(&server, i, 9, "x"), fake_done(&server, i, IV_FINISH_STOP);
    json_decref(answer(&q, 200));
    q = make_request("/v1/completions", "{\"prompt\":\"a\",\"n\":3,\"seed\":-2}");
    run(&q);
    for (size_t i = 3; i < 6; i++) fake_token(&server, i, 9, "x"), fake_done(&server, i, IV_FINISH_STOP);
    json_t *v = answer(&q, 200), *choices = json_object_get(json_object_get(v, "invar"), "choices");
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(choices, i), "seed")), (int64_t)i - 2);
    assert_true(bridge.children[3].seed == UINT64_MAX - 1 && bridge.children[5].seed == 0);
    json_decref(v);
}

/* Seeds above 63 bits are reported as unsigned, as requested; each element of a list separately. */
static void large_seeds_come_back(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":\"a\",\"n\":2,\"seed\":18446744073709551614}");
    run(&q);
    assert_true(bridge.children[0].seed == UINT64_MAX - 1 && bridge.children[1].seed == UINT64_MAX);
    for (size_t i = 0; i < 2; i++) fake_token(&server, i, 9, "x"), fake_done(&server, i, IV_FINISH_STOP);
    assert_int_equal(q.status, 200);
    assert_non_null(strstr(q.out.data, "\"seed\":18446744073709551614,"));
    assert_non_null(strstr(q.out.data, "\"seed\":18446744073709551615,"));
    fake_close(&q);
    begin(NULL);
    q = make_request("/generate",
                     "{\"text\":[\"a\",\"b\",\"c\"],\"sampling_params\":[{\"sampling_seed\":9223372036854775809},"
                     "{\"sampling_seed\":-1} , {\"top_p\":0.5,\"sampling_seed\":18446744073709551615}]}");
    run(&q);
    assert_true(bridge.children[0].seed == ((uint64_t)1 << 63) + 1 && bridge.children[1].seed == UINT64_MAX);
    assert_true(bridge.children[2].seed == UINT64_MAX);
    for (size_t i = 0; i < 3; i++) fake_token(&server, i, 9, "x"), fake_done(&server, i, IV_FINISH_STOP);
    assert_int_equal(q.status, 200);
    assert_non_null(strstr(q.out.data, "\"seed\":9223372036854775809,"));
    assert_non_null(strstr(q.out.data, "\"seed\":-1,"));
    assert_non_null(strstr(q.out.data, "\"seed\":18446744073709551615,"));
    fake_close(&q);
    begin(NULL);
    q = make_request("/generate",
                     "{\"text\":[\"a\",\"b\"],\"sampling_params\":{\"sampling_seed\":9223372036854775809}}");
    run(&q);
    assert_true(bridge.count == 2 && bridge.children[1].seed == ((uint64_t)1 << 63) + 1);
    for (size_t i = 0; i < 2; i++) fake_token(&server, i, 9, "x"), fake_done(&server, i, IV_FINISH_STOP);
    fake_close(&q);
}

/* A byte order mark; values read from the body's text are still found. */
static void a_body_may_begin_with_a_mark(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "\xef\xbb\xbf{\"prompt\":\"a\",\"seed\":18446744073709551615}");
    run(&q);
    assert_true(bridge.count == 1 && bridge.children[0].seed == UINT64_MAX);
    fake_token(&server, 0, 9, "x"), fake_done(&server, 0, IV_FINISH_STOP);
    fake_close(&q);
    q = make_request("/v1/completions", "\xef\xbb\xbf\xef\xbb\xbf{\"prompt\":\"a\"}");
    run(&q);
    assert_non_null(strstr(q.out.data, "body: not valid JSON: found a byte order mark (EF BB BF) at its beginning"));
    expect_error_answer(&q, 400, "invalid_request_error", "body");
}

static void refusals_say_what_was_found(void **state) {
    (void)state;
#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
    static const struct {
        const char *path, *body, *text_model;
    } cases[] = {{"/v1/completions", "{\"prompt\":\"a\",\"structured_outputs\":{}}", "\\\"json_object\\\", found {}\""},
                 {"/v1/completions", "{\"prompt\":\"a\",\"structured_outputs\":{\"json\":[1]}}",
                  "wanted a JSON schema, found [1]"},
                 {"/v1/completions", "{\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"a\\u0000b\"}}",
                  "wanted a text without NUL, found one at byte 1"},
                 {"/v1/chat/completions", CHAT "\"response_format\":{\"type\":\"json_schema\"}}",
                  "an object, next to its type, found nothing"},
                 {"/v1/chat/completions", CHAT "\"top_logprobs\":3}", "found 3 without it"},
                 {"/v1/chat/completions", CHAT "\"rid\":[7]}", "rid: wanted a string without NUL, found 7"},
                 {"/v1/chat/completions", CHAT "\"tool_choice\":\"required\"}",
                  "wanted \\\"tools\\\" with \\\"required\\\", found none"},
                 {"/v1/chat/completions", "{\"messages\":[{\"role\":\"assistant\",\"refusal\":\"no\"}]}",
                  "messages[0].refusal: wanted null, found \\\"no\\\""},
                 {"/v1/responses", "{\"input\":[{\"type\":\"compaction\",\"encrypted_content\":\"x\"}]}",
                  "wanted message, function_call"},
                 {"/generate", "{}", "wanted either \\\"text\\\" or \\\"input_ids\\\", found neither"},
                 {"/generate", "{\"text\":\"a\",\"input_ids\":[1]}", "found both"},
                 {"/v1/chat/completions", "{}", "messages: wanted a list of 1 to 4096, found nothing"},
                 {"/v1/chat/completions", "{\"messages\": []}", "messages: wanted a list of 1 to 4096, found 0"},
                 {"/tokenize", "{}", "wanted either \\\"prompt\\\" or \\\"messages\\\", found neither"}};
#undef CHAT
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(NULL);
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        run(&q);
        assert_int_equal(q.status, 400);
        if (!strstr(q.out.data, cases[i].text_model)) fail_msg("wanted \"%s\": %s", cases[i].text_model, q.out.data);
        fake_close(&q);
    }
}

static void refusal_gets_its_status(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"stream\":true}");
    run(&q);
    fake_refuse(&server, 1, IV_INVALID, "prompt: wanted at least one token, found none");
    assert_int_equal(bridge.cancelled, 1);
    fake_token(&server, 0, 1, "never");
    expect_error_answer(&q, 400, "invalid_request_error", "prompt[1]");
}

/* Engine errors about the prompt name the body's field, with an index if there are several. */
static void prompts_have_the_names_of_fields(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *param;
        size_t refused; /* index of the child; SIZE_MAX: none is submitted */
    } cases[] = {{"/v1/completions", "{\"prompt\":\"\"}", "prompt", 0},
                 {"/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"n\":2}", "prompt[1]", 2},
                 {"/v1/completions", "{\"prompt\":[[1],[2,\"b\"]]}", "prompt[1]", SIZE_MAX},
                 {"/v1/completions", "{\"prompt\":[]}", "prompt", SIZE_MAX},
                 {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "messages", 0},
                 {"/v1/responses", "{\"input\":\"x\"}", "input", 0},
                 {"/generate", "{\"text\":\"x\"}", "text", 0},
                 {"/generate", "{\"text\":[]}", "text", SIZE_MAX},
                 {"/generate", "{\"text\":[\"a\",7]}", "text[1]", SIZE_MAX},
                 {"/generate", "{\"input_ids\":[[1],[2]]}", "input_ids[1]", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(NULL);
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        run(&q);
        if (cases[i].refused != SIZE_MAX)
            fake_refuse(&server, cases[i].refused, IV_INVALID, "prompt: wanted at least one token, found none");
        expect_error_answer(&q, 400, "invalid_request_error", cases[i].param);
    }
}

/* OpenAI's code and message, which clients recognize; the counts are of the prompt that is too long. */
static void too_long_is_said_as_openai_does(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *param, *text_model;
        size_t refused;
    } cases[] = {
        {"/v1/completions", "{\"prompt\":[1,2,3],\"max_tokens\":7}", "prompt",
         "10 tokens (3 in the prompt, 7 in the completion). Please reduce the length of the prompt or completion.", 0},
        {"/v1/completions", "{\"prompt\":[[1],[1,2]],\"stream\":true}", "prompt",
         "18 tokens (2 in the prompt, 16 in the completion). Please reduce the length of the prompt[1] or completion.",
         1},
        {"/v1/completions", "{\"prompt\":[1,2],\"echo\":true,\"max_tokens\":0}", "prompt",
         "2 tokens (2 in the prompt, 0 in the completion)", 0},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"12\"}]}", "messages",
         " in the messages, 1 in the completion). Please reduce the length of the messages or completion. "
         "(context_length_exceeded)",
         0},
        {"/v1/responses", "{\"input\":\"12\",\"max_output_tokens\":2147483647}", "input",
         " in the input, 2147483647 in the completion)", 0},
        {"/generate", "{\"text\":\"12\"}", "text", " in the text, 128 in the completion)", 0},
        {"/generate", "{\"input_ids\":[1,2]}", "input_ids", "130 tokens (2 in the input_ids, 128 in the completion)",
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(NULL);
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        run(&q);
        fake_refuse(&server, cases[i].refused, IV_CONTEXT_LENGTH, "prompt: 1 tokens leave no room for an answer");
        json_t *v = answer(&q, 400), *e = json_object_get(v, "error");
        const char *message = json_string_value(json_object_get(e, "message"));
        static const char begins[] = "This model's maximum context length is 2048 tokens. However, you requested ";
        if (strncmp(message, begins, sizeof begins - 1) != 0 || !strstr(message, cases[i].text_model))
            fail_msg("wanted \"%s\": %s", cases[i].text_model, message);
        assert_string_equal(json_string_value(json_object_get(e, "type")), "invalid_request_error");
        assert_string_equal(json_string_value(json_object_get(e, "code")), "context_length_exceeded");
        assert_string_equal(json_string_value(json_object_get(e, "param")), cases[i].param);
        json_decref(v);
    }
}

/* Errors about sampling fields, too. */
static void sampling_has_the_names_of_fields(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *said, *param;
        size_t refused;
    } cases[] = {
        {"/v1/completions", "{\"prompt\":\"a\"}", "stop ids: wanted a token id below 9", "stop_token_ids", 0},
        {"/v1/completions", "{\"prompt\":\"a\"}", "top_p: wanted above 0 to 1, found 0", "top_p", 0},
        {"/generate", "{\"text\":\"a\"}", "top_p: wanted above 0", "top_p", 0},
        {"/generate", "{\"text\":\"a\",\"sampling_params\":{}}", "top_p: wanted", "sampling_params.top_p", 0},
        {"/generate", "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{}]}", "stop ids: wanted",
         "sampling_params[1].stop_token_ids", 1},
        {"/generate", "{\"text\":\"a\",\"sampling_params\":{}}", "grammar: line 1", "grammar", 0},
        {"/v1/completions", "{\"prompt\":\"a\"}", "no field at all", NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(NULL);
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        run(&q);
        fake_refuse(&server, cases[i].refused, IV_INVALID, cases[i].said);
        expect_error_answer(&q, 400, "invalid_request_error", cases[i].param);
    }
}

static void full_queue_is_429(void **state) {
    (void)state;
    bridge.capacity = 2;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":[\"a\",\"b\",\"c\"]}");
    run(&q);
    assert_int_equal(bridge.cancelled, 2);
    assert_non_null(strstr(q.headers.data, "Retry-After: "));
    expect_error_answer(&q, 429, "rate_limit_error", NULL);
}

static void engine_error_should_not_be_retried(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":\"a\"}");
    run(&q);
    fake_token(&server, 0, 1, "x");
    fake_done(&server, 0, IV_FINISH_ERROR);
    assert_non_null(strstr(q.headers.data, "x-should-retry: false"));
    expect_error_answer(&q, 500, "server_error", NULL);
}

/* After 200 an error is an event with "error", and the stream ends without [DONE]. */
static void late_error_is_an_event(void **state) {
    (void)state;
    iv_http_request q =
        make_request("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}");
    run(&q);
    fake_token(&server, 0, 1, "x");
    assert_true(q.stream && !q.ended);
    fake_done(&server, 0, IV_FINISH_ERROR);
    assert_true(q.ended);
    assert_non_null(strstr(q.out.data, "data: {\"error\":{\"message\":\"row 3: not finite\""));
    assert_null(strstr(q.out.data, "[DONE]"));
    fake_close(&q);
    q = make_request("/v1/messages",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9,\"stream\":true}");
    run(&q);
    fake_token(&server, 1, 1, "x");
    fake_done(&server, 1, IV_FINISH_ERROR);
    assert_non_null(strstr(
        q.out.data,
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"row 3: not finite\""));
    assert_null(strstr(q.out.data, "message_stop"));
    fake_close(&q);
}

static void expect_prompt_tokens(iv_http_request *q, const char *want) {
    if (!strstr(q->out.data, want)) fail_msg("wanted %s, found %s", want, q->out.data);
    iv_buf_clear(&q->out);
}

static void usage_of_streams_knows_the_prompt(void **state) {
    (void)state;
    iv_http_request q =
        make_request("/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"stream\":true,\"stream_options\":"
                                        "{\"include_usage\":true,\"continuous_usage_stats\":true}}");
    run(&q);
    static const size_t order[] = {1, 0, 3, 2};
    for (size_t i = 0; i < 4; i++) {
        fake_token(&server, order[i], 1, "x");
        expect_prompt_tokens(&q, i < 2 ? "\"prompt_tokens\":3," : "\"prompt_tokens\":6,");
    }
    for (size_t i = 0; i < 4; i++) fake_done(&server, i, IV_FINISH_STOP);
    expect_prompt_tokens(&q, "\"prompt_tokens\":6,");
    fake_close(&q);
    q = make_request("/generate", "{\"text\":\"a\",\"stream\":true}");
    run(&q);
    fake_token(&server, 4, 1, "x");
    expect_prompt_tokens(&q, "\"prompt_tokens\":3,");
    fake_done(&server, 4, IV_FINISH_STOP);
    fake_close(&q);
}

static void the_longest_of_the_answers_is_noted_once(void **state) {
    (void)state;
    iv_error err;
    iv_buf page = {0};
    ASSERT_OK(iv_metrics_open(IV_METRICS_VLLM, "m", &server.metrics, &err), &err);
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"n\":2}");
    run(&q);
    for (size_t i = 0; i < 7; i++) fake_token(&server, i % 4, 1, "x"); /* 2, 2; 2, 1 */
    for (size_t i = 0; i < 4; i++) fake_done(&server, i, IV_FINISH_STOP);
    json_decref(answer(&q, 200));
    assert_true(iv_metrics_write(server.metrics, &bridge.stats, &bridge.info, &page));
    assert_non_null(strstr(page.data, "vllm:request_max_num_generation_tokens_sum{model_name=\"m\",engine=\"0\"} 4\n"));
    assert_non_null(
        strstr(page.data, "vllm:request_max_num_generation_tokens_count{model_name=\"m\",engine=\"0\"} 2\n"));
    iv_buf_free(&page);
    iv_metrics_close(server.metrics);
    server.metrics = NULL;
}

static void offsets_are_those_of_the_echoed_text(void **state) {
    (void)state;
    static const struct {
        const char *prompt, *text, *offsets;
    } cases[] = {{"\"ab\"", "abb", "[0,0,1,2]"},         /* <s> " a" "b" "b": the text has neither <s> nor space */
                 {"\"<s>ab\"", "<s>abb", "[0,3,3,4,5]"}, /* here it spells one of two */
                 {"[0,4,4]", "<s> a ab", "[0,3,5,7]"}};
    iv_text_model *before = bridge.text_model;
    bridge.text_model = stripping_tokenizer();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"prompt\":%s,\"echo\":true,\"logprobs\":0}", cases[i].prompt);
        iv_http_request q = make_request("/v1/completions", body);
        run(&q);
        fake_token(&server, i, 3, "b");
        fake_done(&server, i, IV_FINISH_STOP);
        json_t *v = answer(&q, 200), *choice = json_array_get(json_object_get(v, "choices"), 0);
        assert_string_equal(json_string_value(json_object_get(choice, "text")), cases[i].text);
        char *found = json_dumps(json_object_get(json_object_get(choice, "logprobs"), "text_offset"), JSON_COMPACT);
        assert_string_equal(found, cases[i].offsets);
        free(found);
        json_decref(v);
    }
    iv_text_model_close(bridge.text_model);
    bridge.text_model = before;
}

static void streams_begin_with_the_first_token(void **state) {
    (void)state;
    iv_http_request q =
        make_request("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}");
    run(&q);
    assert_int_equal(q.status, 0);
    fake_token(&server, 0, 1, "");
    assert_string_equal(q.type, "text/event-stream; charset=utf-8");
    assert_non_null(strstr(q.out.data, "\"role\":\"assistant\""));
    size_t before = q.out.len;
    fake_token(&server, 0, 1, ""); /* an incomplete character: no event */
    assert_int_equal(q.out.len, before);
    fake_token(&server, 0, 1, "y");
    assert_non_null(strstr(q.out.data + before, "\"content\":\"y\""));
    assert_null(strstr(q.out.data + before, "\"role\""));
    fake_done(&server, 0, IV_FINISH_LENGTH);
    assert_non_null(strstr(q.out.data, "\"finish_reason\":\"length\""));
    assert_string_equal(q.out.data + q.out.len - 16, "\n\ndata: [DONE]\n\n");
    fake_close(&q);
}

/* n is the number of answers; best_of must not be smaller. */
static void fields_that_ask_for_nothing(void **state) {
    (void)state;
#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
    static const struct {
        const char *path, *body, *param; /* param: NULL: accepted */
    } cases[] = {
        {"/v1/completions", "{\"prompt\":\"a\",\"n\":3,\"best_of\":3}", NULL},
        {"/v1/completions", "{\"best_of\":2,\"prompt\":\"a\",\"n\":3}", "best_of"},
        {"/v1/completions", "{\"prompt\":\"a\",\"best_of\":true}", "best_of"},
        {"/v1/completions", "{\"prompt\":\"a\",\"min_tokens\":16,\"ignore_eos\":true}", NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"min_tokens\":1}", NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"min_tokens\":1,\"ignore_eos\":true,\"stop\":\"x\"}", NULL},
        {"/v1/chat/completions", CHAT "\"min_tokens\":5000,\"ignore_eos\":true}", NULL},
        {"/v1/chat/completions", CHAT "\"min_tokens\":5,\"ignore_eos\":true,\"regex\":\"a\"}", NULL},
        {"/v1/chat/completions", CHAT "\"min_tokens\":-1}", "min_tokens"},
        {"/generate",
         "{\"text\":\"a\",\"sampling_params\":{\"min_new_tokens\":8,\"max_new_tokens\":8,\"ignore_eos\":true}}", NULL},
        {"/generate", "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{\"min_new_tokens\":1,\"ignore_eos\":true},{}]}",
         NULL},
        {"/generate", "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{\"min_new_tokens\":-1}]}",
         "sampling_params[1].min_new_tokens"}};
#undef CHAT
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(NULL);
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        run(&q);
        if (cases[i].param) {
            expect_error_answer(&q, 400, "invalid_request_error", cases[i].param);
            continue;
        }
        if (q.ended) fail_msg("%s: %s", cases[i].body, q.out.data);
        for (size_t k = 0; k < bridge.count; k++)
            fake_token(&server, k, 1, "x"), fake_done(&server, k, IV_FINISH_LENGTH);
        json_decref(answer(&q, 200));
    }
}

/* Each prompt has its own limits; errors of the engine name the body's field. */
static void least_tokens_arrive(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/chat/completions",
                                     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"min_tokens\":7,\"n\":2}");
    run(&q);
    assert_true(bridge.count == 2 && bridge.children[0].min_tokens == 7 && bridge.children[1].min_tokens == 7);
    for (size_t k = 0; k < 2; k++) fake_token(&server, k, 1, "x"), fake_done(&server, k, IV_FINISH_LENGTH);
    json_t *v = answer(&q, 200);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(json_object_get(v, "invar"), "parameters"), "min_tokens")),
        7);
    json_decref(v);
    begin(NULL);
    q = make_request("/generate", "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{\"min_new_tokens\":3},{}]}");
    run(&q);
    assert_true(bridge.count == 2 && bridge.children[0].min_tokens == 3 && bridge.children[1].min_tokens == 0);
    fake_refuse(&server, 0, IV_INVALID, "min_tokens: wanted at most 2, found 3");
    expect_error_answer(&q, 400, "invalid_request_error", "sampling_params[0].min_new_tokens");
}

/* Stop ids of the request are reported; other final tokens are not. */
static void stop_reason_may_be_an_id(void **state) {
    (void)state;
    static const char *const bodies[][2] = {
        {"/v1/completions", "{\"prompt\":\"a\",\"n\":3,\"stop_token_ids\":[7,9]}"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":3,\"stop_token_ids\":[7,9]}"}};
    for (size_t i = 0; i < 2; i++) {
        begin(NULL);
        iv_http_request q = make_request(bodies[i][0], bodies[i][1]);
        run(&q);
        fake_token(&server, 0, 9, ""), fake_done(&server, 0, IV_FINISH_STOP);
        fake_token(&server, 1, 8, ""), fake_done(&server, 1, IV_FINISH_STOP);
        fake_token(&server, 2, 9, ""), fake_done(&server, 2, IV_FINISH_LENGTH);
        json_t *v = answer(&q, 200), *choices = json_object_get(v, "choices");
        assert_int_equal(json_integer_value(json_object_get(json_array_get(choices, 0), "stop_reason")), 9);
        for (size_t k = 1; k < 3; k++)
            assert_true(json_is_null(json_object_get(json_array_get(choices, k), "stop_reason")));
        json_decref(v);
    }
}

/* Over all choices, for chats only. */
static void usage_counts_what_reasons(void **state) {
    (void)state;
    iv_http_request q =
        make_request("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":2}");
    run(&q);
    static const char *const tokens[] = {"<think>", "a", "</think>", "b"};
    for (size_t i = 0; i < 4; i++) fake_token(&server, 0, 1, tokens[i]);
    for (size_t i = 0; i < 2; i++) fake_token(&server, 1, 1, tokens[i]);
    for (size_t i = 0; i < 2; i++) fake_done(&server, i, IV_FINISH_LENGTH);
    assert_non_null(strstr(q.out.data, "\"completion_tokens\":6,"));
    assert_non_null(strstr(q.out.data, "\"completion_tokens_details\":{\"reasoning_tokens\":5}}"));
    fake_close(&q);
    q = make_request("/v1/completions", "{\"prompt\":\"a\"}");
    run(&q);
    fake_token(&server, 2, 1, "<think>a"), fake_done(&server, 2, IV_FINISH_STOP);
    assert_null(strstr(q.out.data, "reasoning_tokens"));
    fake_close(&q);
}

static const char tools_body[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
    "\"f\"}}]%s}";

static void tool_calls(void **state) {
    (void)state;
    char body[300];
    for (int stream = 0; stream < 2; stream++) {
        snprintf(body, sizeof body, tools_body, stream ? ",\"stream\":true" : "");
        iv_http_request q = make_request("/v1/chat/completions", body);
        begin(NULL);
        run(&q);
        fake_token(&server, 0, 1, "<think>hm</think>\n\n<tool_call>{\"name\": \"f\", \"argu");
        fake_token(&server, 0, 2, "ments\": {\"x\": 1}}</tool_call>");
        fake_done(&server, 0, IV_FINISH_STOP);
        assert_non_null(strstr(q.out.data, "\"finish_reason\":\"tool_calls\""));
        assert_non_null(strstr(q.out.data, "\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\""));
        assert_non_null(strstr(q.out.data, "\"reasoning_content\":\"hm\",\"reasoning\":\"hm\""));
        assert_true(stream || strstr(q.out.data, "\"content\":null"));
        assert_null(strstr(q.out.data, "tool_call>"));
        fake_close(&q);
    }
}

/* A client leaves at once, during a write, or later; all children are cancelled, once. */
static void readers_leave(void **state) {
    (void)state;
    static const char body[] = "{\"prompt\":[\"a\",\"b\",\"c\"],\"stream\":true}";
    iv_http_request q = make_request("/v1/completions", body);
    run(&q);
    fake_leave(&q);
    assert_int_equal(bridge.cancelled, 3);
    fake_close(&q);

    begin(NULL);
    q = make_request("/v1/completions", body);
    run(&q);
    fake_token(&server, 0, 1, "x");
    q.writes_left = 0;
    fake_token(&server, 1, 1, "x");
    assert_true(q.gone_called && !server.tasks);
    assert_int_equal(bridge.cancelled, 3);
    fake_close(&q);

    begin(NULL);
    q = make_request("/v1/completions", body);
    run(&q);
    q.writes_left = 0, q.late = true;
    fake_token(&server, 0, 1, "x");
    fake_done(&server, 0, IV_FINISH_STOP);
    fake_token(&server, 1, 1, "x");
    assert_non_null(server.tasks);
    fake_leave(&q);
    assert_int_equal(bridge.cancelled, 2);
    fake_close(&q);
}

static void aborts(void **state) {
    (void)state;
    static const char *const bodies[] = {"{\"text\":[\"a\",\"b\"],\"rid\":[\"r1\",\"r2\"]}",
                                         "{\"text\":[\"a\",\"b\"],\"rid\":[\"r1\",\"r2\"],\"stream\":true}"};
    for (size_t i = 0; i < 2; i++) {
        begin(NULL);
        iv_http_request q = make_request("/generate", bodies[i]),
                        other = make_request("/abort_request", "{\"rid\":\"unknown\"}"),
                        right = make_request("/abort_request", "{\"rid\":[\"r2\"]}");
        run(&q);
        fake_token(&server, 0, 1, "begun");
        run(&other);
        json_t *v = answer(&other, 200);
        assert_int_equal(json_integer_value(json_object_get(v, "aborted")), 0);
        json_decref(v);
        run(&right);
        v = answer(&right, 200);
        assert_int_equal(json_integer_value(json_object_get(v, "aborted")), 1);
        json_decref(v);
        assert_true(q.ended);
        assert_int_equal(bridge.cancelled, 2);
        assert_non_null(strstr(q.out.data, "\"type\":\"abort\""));
        assert_non_null(strstr(q.out.data, "begun"));
        fake_close(&q);
    }
}

/* The client's request id is the answer's id (vLLM's behind the prefix), and aborts it. */
static void names(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *id, *abort;
        int aborted;
    } row[] = {
        {"/v1/completions", "{\"prompt\":\"a\",\"rid\":\"r\"}", "r", "{\"rid\":\"r\"}", 1},
        {"/v1/completions", "{\"prompt\":\"a\",\"rid\":\"\"}", "", "{\"rid\":\"x\"}", 0},
        {"/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"rid\":[\"r1\",\"r2\"]}", NULL, "{\"rid\":\"r2\"}", 1},
        {"/v1/completions", "{\"prompt\":\"a\",\"request_id\":\"mine\"}", "cmpl-mine", "{\"rid\":\"mine\"}", 1},
        {"/v1/completions", "{\"prompt\":\"a\",\"request_id\":\"mine\"}", "cmpl-mine", "{\"rid\":\"cmpl-mine\"}", 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        begin(NULL);
        iv_http_request q = make_request(row[i].path, row[i].body), stop = make_request("/abort_request", row[i].abort);
        run(&q);
        run(&stop);
        json_t *v = answer(&stop, 200);
        assert_int_equal(json_integer_value(json_object_get(v, "aborted")), row[i].aborted);
        json_decref(v);
        if (!row[i].aborted) fake_done(&server, 0, IV_FINISH_STOP);
        v = answer(&q, 200);
        if (row[i].id) assert_string_equal(json_string_value(json_object_get(v, "id")), row[i].id);
        json_decref(v);
        fake_close(&q);
    }
    static const char *const wrong[] = {"{\"prompt\":\"a\",\"rid\":[\"r1\",\"r2\"]}", "{\"prompt\":\"a\",\"rid\":[1]}",
                                        "{\"prompt\":\"a\",\"rid\":\"a\\u0000b\"}",
                                        "{\"prompt\":\"a\",\"request_id\":\"a\\u0000b\"}",
                                        "{\"prompt\":\"a\",\"request_id\":1}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        begin(NULL);
        iv_http_request q = make_request("/v1/completions", wrong[i]);
        run(&q);
        json_decref(answer(&q, 400));
        fake_close(&q);
    }
}

/* Aborting a stream whose client has left is harmless, and is not counted. */
static void abort_of_a_leaving_reader(void **state) {
    (void)state;
    iv_http_request q = make_request("/generate", "{\"text\":\"a\",\"stream\":true}"),
                    all = make_request("/abort_request", "{\"abort_all\":true}");
    run(&q);
    q.writes_left = 0, q.late = true;
    run(&all);
    json_decref(answer(&all, 200));
    all = make_request("/abort_request", "{\"abort_all\":true}");
    run(&all);
    json_decref(answer(&all, 200));
    fake_leave(&q);
    fake_close(&q);
}

static void commands(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
        iv_command command;
    } cases[] = {{"/flush_cache", NULL, IV_COMMAND_FLUSH},
                 {"/pause", NULL, IV_COMMAND_PAUSE},
                 {"/pause_generation", "{\"mode\":\"in_place\"}", IV_COMMAND_PAUSE},
                 {"/pause_generation", "{}", IV_COMMAND_PAUSE},
                 {"/pause_generation", "{\"mode\":\"retract\"}", IV_COMMAND_PAUSE},
                 {"/resume", NULL, IV_COMMAND_CONTINUE},
                 {"/update_weights", "{\"weight_dir\":\"/w\"}", IV_COMMAND_UPDATE_WEIGHTS},
                 {"/release_memory_occupation", "{\"tags\":null}", IV_COMMAND_RELEASE},
                 {"/resume_memory_occupation", "{\"tags\":[\"weights\",\"kv_cache\"]}", IV_COMMAND_RESUME},
                 {"/weights_checker", "{\"action\":\"snapshot\"}", IV_COMMAND_CHECK_WEIGHTS},
                 {"/start_profile", "{\"output_dir\":\"/w\"}", IV_COMMAND_PROFILE_START},
                 {"/stop_profile", "{}", IV_COMMAND_PROFILE_STOP}};
    iv_error err;
    ASSERT_OK(iv_updates_open(&server, &server.updates, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int busy = 0; busy < 3; busy++) {
            iv_http_request q = make_request(cases[i].path, cases[i].body);
            run(&q);
            assert_int_equal(bridge.last_command, cases[i].command);
            assert_false(q.ended);
            iv_bridge_event r = {.kind = IV_BRIDGE_EVENT_COMMAND,
                                 .owner = bridge.command_owner,
                                 .status = busy ? IV_BUSY : IV_OK,
                                 .message = busy ? "requests run" : "0123 {}"};
            if (busy == 2) fake_leave(&q);
            iv_server_take_event(&server, &r);
            if (busy == 2)
                fake_close(&q);
            else
                json_decref(answer(&q, busy ? 409 : 200));
        }
    iv_http_request q = make_request("/pause", NULL);
    q.query = "drain";
    run(&q);
    expect_error_answer(&q, 400, "invalid_request_error", "mode");
    iv_updates_close(server.updates);
    server.updates = NULL;
    iv_control_close(&server);
}

static void bodies_that_are_none(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *param;
    } cases[] = {
        {"/v1/completions", "", "body"},
        {"/v1/completions", "[1]", "body"},
        {"/v1/completions", "{\"prompt\":\"a\"", NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"prompt\":\"b\"}", NULL},
        {"/v1/completions", "{}", "prompt"},
        {"/v1/completions", "{\"prompt\":[]}", "prompt"},
        {"/v1/completions", "{\"prompt\":[1,\"a\"]}", "prompt"},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens"},
        {"/v1/chat/completions", "{\"messages\":[]}", "messages"},
        {"/v1/chat/completions", "{}", "messages"},
        {"/generate", "{}", "text"},
        {"/tokenize", "{}", "prompt"},
        {"/detokenize", "{}", "tokens"},
        {"/detokenize", "{\"tokens\":[1,1024]}", "tokens[1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        run(&q);
        if (q.status != 400) fail_msg("%s %s: %d", cases[i].path, cases[i].body, q.status);
        if (cases[i].param && strcmp(cases[i].param, "body") != 0)
            expect_error_answer(&q, 400, "invalid_request_error", cases[i].param);
        else
            fake_close(&q);
    }
    assert_int_equal(bridge.count, 0);
}

/* Clients send whole objects: null is treated as absent for any name. */
static void null_is_absent(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
    } cases[] = {
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"annotations\":null}]}"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"reasoning_effort\":null,"
                                 "\"response_format\":{\"type\":\"text\",\"x\":null}}"},
        {"/v1/completions", "{\"prompt\":\"a\",\"kv_transfer_params\":null,\"stream_options\":null}"},
        {"/v1/responses", "{\"input\":[{\"type\":null,\"role\":\"user\",\"content\":\"a\",\"phase\":null}],"
                          "\"reasoning\":null,\"text\":{\"verbosity\":null}}"},
        {"/generate", "{\"text\":\"a\",\"sampling_params\":{\"stream_interval\":null},\"extra_key\":null}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        run(&q);
        if (bridge.count != i + 1) fail_msg("%s: %s", cases[i].body, q.out.data ? q.out.data : "nothing");
        fake_done(&server, i, IV_FINISH_STOP);
        json_decref(answer(&q, 200));
    }
    iv_http_request q =
        make_request("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"phase\":1}]}");
    run(&q);
    expect_error_answer(&q, 400, "invalid_request_error", "messages[0].phase");
}

static void too_many_answers(void **state) {
    (void)state;
    iv_buf b = {0};
    assert_true(iv_buf_puts(&b, "{\"n\":128,\"prompt\":[\"a\""));
    for (int i = 0; i < 8; i++) assert_true(iv_buf_puts(&b, ",\"a\""));
    assert_true(iv_buf_puts(&b, "]}"));
    iv_http_request q = make_request("/v1/completions", b.data);
    run(&q);
    expect_error_answer(&q, 400, "invalid_request_error", "n");
    iv_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(choices_keep_their_order, begin, end),
        cmocka_unit_test_setup_teardown(seeds_of_choices_can_be_asked_for, begin, end),
        cmocka_unit_test_setup_teardown(a_body_may_begin_with_a_mark, begin, end),
        cmocka_unit_test_setup_teardown(refusals_say_what_was_found, begin, end),
        cmocka_unit_test_setup_teardown(refusal_gets_its_status, begin, end),
        cmocka_unit_test_setup_teardown(prompts_have_the_names_of_fields, begin, end),
        cmocka_unit_test_setup_teardown(too_long_is_said_as_openai_does, begin, end),
        cmocka_unit_test_setup_teardown(sampling_has_the_names_of_fields, begin, end),
        cmocka_unit_test_setup_teardown(full_queue_is_429, begin, end),
        cmocka_unit_test_setup_teardown(engine_error_should_not_be_retried, begin, end),
        cmocka_unit_test_setup_teardown(late_error_is_an_event, begin, end),
        cmocka_unit_test_setup_teardown(usage_of_streams_knows_the_prompt, begin, end),
        cmocka_unit_test_setup_teardown(the_longest_of_the_answers_is_noted_once, begin, end),
        cmocka_unit_test_setup_teardown(offsets_are_those_of_the_echoed_text, begin, end),
        cmocka_unit_test_setup_teardown(streams_begin_with_the_first_token, begin, end),
        cmocka_unit_test_setup_teardown(fields_that_ask_for_nothing, begin, end),
        cmocka_unit_test_setup_teardown(least_tokens_arrive, begin, end),
        cmocka_unit_test_setup_teardown(stop_reason_may_be_an_id, begin, end),
        cmocka_unit_test_setup_teardown(usage_counts_what_reasons, begin, end),
        cmocka_unit_test_setup_teardown(tool_calls, begin, end),
        cmocka_unit_test_setup_teardown(large_seeds_come_back, begin, end),
        cmocka_unit_test_setup_teardown(readers_leave, begin, end),
        cmocka_unit_test_setup_teardown(aborts, begin, end),
        cmocka_unit_test_setup_teardown(names, begin, end),
        cmocka_unit_test_setup_teardown(abort_of_a_leaving_reader, begin, end),
        cmocka_unit_test_setup_teardown(commands, begin, end),
        cmocka_unit_test_setup_teardown(bodies_that_are_none, begin, end),
        cmocka_unit_test_setup_teardown(null_is_absent, begin, end),
        cmocka_unit_test_setup_teardown(too_many_answers, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, close_text_model);
}
